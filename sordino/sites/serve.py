"""`sordino serve`: server of a run between sites. It holds no data of the sites; what it knows of them is in the
agreement. The same command resumes a run that was stopped or killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from safetensors.torch import save

from sordino.algorithms.optional import ChecksServer, PerClientMessages
from sordino.config import Experiment
from sordino.data.schema import Column, TableSchema
from sordino.engine import checkpoint, wire
from sordino.engine.commands import Begin, Command, Store
from sordino.engine.executor import Executor, check_between_machines
from sordino.engine.server import FederatedServer
from sordino.errors import ConfigError, RunError, UnsoundGuarantee
from sordino.ledger.files import atomic_write
from sordino.ledger.ledger import Ledger
from sordino.metrics import Scores, can_be
from sordino.metrics.evaluation import Evaluation, Evaluator, Score
from sordino.metrics.scores import metrics_named
from sordino.planning.methods import Methods
from sordino.planning.planner import Planner
from sordino.receipts import Environment, private
from sordino.receipts.folder import RunFolder
from sordino.runs.backend import Backend, ServerData, ServerRows, StartingPoint, examples_of
from sordino.runs.declared_data import DeclaredData
from sordino.runs.new_folder import create_folder, environment_of
from sordino.runs.play import Ended, Progress, play
from sordino.runs.public_inputs import check_announced
from sordino.runs.rounds import patience
from sordino.runs.setup import RunSetup, decided
from sordino.runs.simulation import settle
from sordino.sites import agreement_file
from sordino.sites.agreement_file import SERVER, AgreedClient, Invitation, SitesAgreement, invite
from sordino.sites.agreement_file import read as read_agreement
from sordino.sites.event_log import EventLog
from sordino.sites.grpc_server import Rpc
from sordino.sites.identity import AllowList
from sordino.sites.own_data import servers_rows
from sordino.sites.remote_sites import RemoteSites, SignedHeads
from sordino.sites.secure_sums import check_elsewhere, kind_of_sites, peers_of
from sordino.tasks.personalise import PLAIN, ways
from sordino.transport.message import Carrier, Signer
from sordino.transport.run_events import RunEvent
from sordino.transport.sites import Patience
from sordino.transport.tls import Certificates
from sordino.tree import Tree
from sordino.types import Examples, Params


@dataclass
class SitesConnection:
    """Connection of a server to its sites, the same for all phases of a run."""

    carrier: Carrier
    signer: Signer
    patience: Patience = Patience()
    note: Callable[[RunEvent], None] = lambda event: None
    ledger: Callable[[], str] = lambda: ""  # number and hash of the last record in the server's ledger
    stopped: Callable[[], bool] = lambda: False  # true where the run shall stop
    sites: RemoteSites | None = None  # of the current phase


@dataclass(frozen=True)
class SitesBackend(Backend):
    """Backend of one phase of a run between sites."""

    agreed: SitesAgreement
    post: SitesConnection = field(repr=False)
    declared: TableSchema | None = None  # of a table

    @classmethod
    def of(
        cls,
        whole: RunSetup,
        agreed: SitesAgreement,
        post: SitesConnection,
        rows: ServerRows,
        declared: TableSchema | None = None,
    ) -> SitesBackend:
        return cls(whole.phases[-1], ServerData(whole, rows), agreed, post, declared)

    @property
    def columns(self) -> Mapping[str, Column]:
        return self.declared.features if self.declared is not None else {}

    @property
    def dataset(self) -> str:
        return self.agreed.digest

    def federation(self, ledger: Path | str, run: str) -> FederatedServer:
        made = super().federation(ledger, run)
        made.inbox.signed = self.post.signer.known is not None
        self.post.ledger = lambda: str(made.ledger.place())
        return made

    def evaluation(self) -> SitesEvaluation:
        given = self.check_evaluation()
        return SitesEvaluation(self, tuple(given.models), tuple(given.personal))

    def executor(
        self,
        folder: Path,
        place: Path,
        run: str,
        begun: StartingPoint | None,
        public_tensors: Params | None,
        stack: ExitStack,
    ) -> Executor:
        setup, post = self.setup, self.post
        by_name = not (setup.policy.hidden or setup.promising.everyone_pays)
        prelude: list[tuple[Command, Sequence[bytes]]] = [(Begin(), ())]
        if public_tensors is not None:
            prelude.append((Store(), [save({name: value.contiguous() for name, value in public_tensors.items()})]))
        header, signed = setup.header(run), RunFolder(RunFolder(folder).private).sites_file
        post.sites = kind_of_sites(setup)(
            post.carrier,
            post.signer,
            setup.stage,
            self.agreed.sites,
            lambda t: header(t, -1),
            own.per_client_message if isinstance(own := setup.algorithm, PerClientMessages) else None,
            post.patience,
            secure=setup.algorithm.uplink.secure,
            repeats=not setup.policy.secure and by_name,
            note=lambda event: post.note(event.beside(phase=setup.phase)),
            ledger=lambda: post.ledger(),
            called=setup.public.called,
            stopped=lambda: post.stopped(),
            prelude=prelude,
            signed=_signed(signed),
            keep_signed=lambda newest: _keep_signed(signed, newest),
        )
        return post.sites

    def end(self, run: str, model: Params | None) -> None:
        """Tells the sites that the run is over, and sends them the trained model."""
        if self.post.sites is None:
            return
        message = None
        if model is not None:
            message = wire.encode(self.setup.header(run)(self.setup.rounds, -1), model)
        self.post.sites.part(message)


@dataclass(frozen=True)
class SitesEvaluation:
    """Evaluation after a round: scores of the models on the server's own examples, where it has some, or on those of
    the sites that share their scores.
    """

    backend: SitesBackend
    models: tuple[str, ...]  # () for the first one
    ways: tuple[str, ...]  # () as the algorithm says

    def __call__(self, t: int, server: Tree, score: Score) -> Scores:
        setup, home = self.backend.setup, self.backend.home
        task, algorithm, given = setup.task, setup.algorithm, setup.experiment.evaluation
        if home.kept.tested is not None and not ways(algorithm, self.ways):
            tested, own = examples_of(home.kept.tested), metrics_named(given.metrics)
            evaluator = Evaluator(task, tested, [], tuple(given.scores), own)
            return Evaluation(algorithm, evaluator, self.models, ())(t, server, score)
        held, asked = algorithm.models(server), ways(algorithm, self.ways) or (PLAIN,)
        if {*asked} != {PLAIN}:  # no site reports scores of its personalised models
            return Scores()
        names = self.models or tuple(held)[:1]
        scores, numbers = score(t, [held[name] for name in names], asked), len(names) * len(asked) * len(task.metrics)
        metrics = [*task.metrics] * (numbers // len(task.metrics))
        found = {k: row for k, row in scores.items() if len(row) == numbers and all(map(can_be, metrics, row))}
        if not found:  # no site shares scores
            return Scores()
        rows = [np.arange(c.tested if k in found else 0) for k, c in enumerate(self.backend.agreed.clients)]
        evaluator = Evaluator(task, Examples(torch.empty(0), torch.empty(0)), rows)
        return Evaluation(algorithm, evaluator, self.models, asked)(t, server, lambda *_: found)


def _signed(file: Path) -> SignedHeads:
    """Newest ledger heads that sites have signed, read from the server's file; none where it cannot be read."""
    try:
        return {site: (many, bytes.fromhex(head)) for site, (many, head) in json.loads(file.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _keep_signed(file: Path, newest: SignedHeads) -> None:
    """Writes the ledger heads that sites have signed to a private file: how often a site has answered tells who was
    drawn from a hidden cohort.
    """
    if file.parent.is_dir():  # where noise is real
        positions = {site: [many, head.hex()] for site, (many, head) in newest.items()}
        atomic_write(file, json.dumps(positions).encode(), private=True)


# arguments: invitation, names of all sites, longest message in bytes, keys of the allowed sites, event log
Carried: TypeAlias = Callable[
    [Invitation, Sequence[str], int, Mapping[str, Ed25519PublicKey], Callable[[RunEvent], None]], Carrier
]
AGREEMENT, INVITATION = "agreement.toml", "invitation.toml"
BESIDE = 1 << 22  # bytes that a message may have in addition to its uploads


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Start options of a server."""

    experiment: Experiment
    agreement: Path
    folder: Path
    identity: Ed25519PrivateKey = field(repr=False)
    allowed: Path  # path of the list of allowed sites
    bind: str = "127.0.0.1:9443"
    address: str = ""  # address that sites connect to; empty: `bind`
    tls: Certificates | None = None
    own: Path | None = None  # the server's own data
    patience: Patience = Patience()
    rehearsal: bool = False  # a trial with noise from a seed, which protects nobody
    moved: bool = False  # true: this folder has taken the place of the one where the run began


def agreed_clients(folder: Path) -> Sequence[AgreedClient]:
    """Clients that the sites of a run agreed on; none where its folder holds no agreement of theirs."""
    place = folder / AGREEMENT
    return read_agreement(place).clients if place.is_file() else ()


def serve(
    options: ServeOptions,
    watch: Callable[[Progress], None] | None = None,
    hears: Callable[[RunEvent], None] = lambda event: None,
    invited: Callable[[Path], None] = lambda invitation: None,
    carried: Carried | None = None,
) -> Ended:
    """Serves a run between sites, from its last checkpoint to its end. `hears` receives each event, and `invited` the
    path of the invitation. `carried`: makes the carrier of its messages; None: gRPC, at the address of the options.
    """
    experiment, agreed = settled(options.experiment, options.rehearsal), read_agreement(options.agreement)
    real = experiment.privacy.real
    whole = RunSetup(experiment, agreed.public(experiment, DeclaredData(experiment).schema))
    for phase in whole.phases:
        _ = phase.plan, kind_of_sites(phase)  # unsound settings are refused before a folder exists
    Planner(whole.phases[-1]).check_noise()
    environment, known = _environment(options.folder, experiment, agreed), AllowList(options.allowed)
    peers = peers_of(whole, agreed)
    if options.folder.exists() and real:
        private.check_place(options.folder, options.moved)
    log = EventLog.of(options.folder, whole, hears)
    if options.folder.exists():
        invitation = agreement_file.read_invitation(options.folder / INVITATION, with_code=True)  # its own
    else:
        invitation = invite(environment.run, options.address or options.bind, options.identity, experiment, agreed)
    if carried is None:
        carrier: Carrier = Rpc(options.bind, environment.run, peers, longest(whole, agreed), known, options.tls, log)
    else:
        check_elsewhere(whole)
        carrier = carried(invitation, peers, longest(whole, agreed), known, log)
    signer = Signer(SERVER, environment.run, experiment.digest(), agreed.digest, options.identity, known)
    rows = ServerRows() if options.own is None else servers_rows(experiment, options.own)
    post = SitesConnection(carrier, signer, options.patience, log)
    side = SitesBackend.of(whole, agreed, post, rows, invitation.declared)
    for phase in whole.phases:
        ChecksServer.of(phase.algorithm).check(side.home)
    if not options.folder.exists():
        more = {AGREEMENT: agreed.toml(), INVITATION: invitation.toml()}
        create_folder(options.folder, side.setup, side.agreement(), environment, b"", side.home.story, more)
    invited(options.folder / INVITATION)
    with carrier, log.kept(peers), log.watching(carrier), patience() as side.post.stopped:
        if strangers := [site for site in peers if site not in known]:
            log(RunEvent(event="unlisted", sites=tuple(strangers)))
        ended = play(side, options.folder, watch, moved=options.moved)
        if not ended.interrupted:
            _end(side, options.folder, environment.run)
        log(RunEvent(event="stopped" if ended.interrupted else "over"))
    return ended


def settled(experiment: Experiment, rehearsal: bool) -> Experiment:
    """Decide all settings of an experiment for a run between sites, or refuse the experiment. `rehearsal`: seeded noise
    is allowed.
    """
    experiment = settle(experiment)
    check_announced(experiment.data)
    if not experiment.privacy.real and not rehearsal:
        raise UnsoundGuarantee(
            f"privacy.noise = {experiment.privacy.noise!r} between real sites",
            why="anyone who has the experiment can draw the same seeded noise again, so it hides nothing",
            fix='privacy.noise = "system"; for a trial without real people, --rehearsal',
            code="seeded-noise-between-sites",
        )
    if not experiment.privacy.public_sizes:
        raise UnsoundGuarantee(
            "privacy.public_sizes = false between sites",
            why="the agreement names how many examples each client has",
            fix="privacy.public_sizes = true",
            code="sizes-are-agreed",
        )
    if experiment.privacy.ledger is not None:
        raise ConfigError(
            "privacy.ledger between sites",
            why="every site keeps its own ledger, and the server keeps one for this run",
            fix="leave it out",
            code="shared-ledger-between-sites",
        )
    check_between_machines(experiment.engine.device)
    methods = Methods(experiment)
    methods.needs()
    engine = decided(experiment.engine, methods.training)
    # a site keeps its last answers: a server that went further back than these would be refused
    return experiment.model_copy(update={"engine": engine.model_copy(update={"checkpoint_every": 1})})


def longest(whole: RunSetup, agreed: SitesAgreement) -> int:
    """Bytes of the longest message that a site may send: twice the size of its uploads, four times where they are
    summed securely, and `BESIDE` more.
    """
    each = 0
    for phase in whole.phases:
        algorithm = phase.algorithm
        down = algorithm.broadcast(phase.state("server"))
        shape = algorithm.uplink.at(0, down).shape(algorithm.zero(phase.task, down))
        times = 4 if phase.policy.secure else 2
        each = max(each, times * wire.payload_bytes(wire.schema(shape)))
    return BESIDE + each * max(map(len, agreed.sites.values()))


def _environment(folder: Path, experiment: Experiment, agreed: SitesAgreement) -> Environment:
    """Environment of the run in the folder, refused where that is another run; a new one where there is no folder."""
    if not folder.exists():
        return environment_of(experiment).beside(site=SERVER)
    files = RunFolder(folder)
    files.check()
    if files.environment.site != SERVER or not (folder / AGREEMENT).is_file():
        raise RunError(
            f"{folder} holds a run that is not one between sites",
            fix="choose another --out",
            code="run-exists",
        )
    if files.environment.config != experiment.digest() or read_agreement(folder / AGREEMENT).digest != agreed.digest:
        raise RunError(
            f"{folder} holds a run of another experiment or another agreement",
            why="sites have accepted that one, and it may not change while it runs",
            fix="put the old files back, or choose another --out for a new run",
            code="edited-run",
        )
    return files.environment


def _end(side: SitesBackend, folder: Path, run: str) -> None:
    """Tell the sites that the run is over, and give them the model."""
    with Ledger.as_founded(RunFolder(folder).ledger) as ledger:
        stands = str(ledger.place())
    side.post.ledger = lambda: stands
    loaded = checkpoint.load(RunFolder(folder).checkpoints, side.setup.state)
    model = None if loaded is None else next(iter(side.setup.algorithm.models(loaded.trees["server"]).values()))
    side.end(run, model)
