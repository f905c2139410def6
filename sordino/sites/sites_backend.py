"""Backend of a run between sites: the agreement, the server's own data, and the sites behind a carrier."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from sordino.algorithms.optional import PerClientMessages
from sordino.data.schema import Column, TableSchema
from sordino.engine import wire
from sordino.engine.commands import Begin, Command, Store
from sordino.engine.executor import Executor
from sordino.engine.server import FederatedServer
from sordino.ledger.files import atomic_write
from sordino.metrics.evaluation import Evaluation, Evaluator, Score
from sordino.metrics.rows import Scores
from sordino.metrics.scores import metrics_named
from sordino.receipts.folder import RunFolder
from sordino.runs.backend import Backend, Begun, ServerData, ServerRows, examples_of
from sordino.runs.setup import Whole
from sordino.sites.agreement_file import SitesAgreement
from sordino.sites.remote_sites import Kept, RemoteSites
from sordino.sites.secure_sums import kind_of_sites
from sordino.tasks.personalise import PLAIN, ways
from sordino.transport.carrier import Carrier
from sordino.transport.message import Signer
from sordino.transport.run_events import RunEvent
from sordino.transport.sites import Patience
from sordino.tree import Tree
from sordino.types import Examples, Params


@dataclass
class SitesConnection:
    """Connection of a server to its sites, the same for all phases of a run."""

    carrier: Carrier
    letterhead: Signer
    patience: Patience = Patience()
    note: Callable[[RunEvent], None] = lambda event: None
    ledger: Callable[[], str] = lambda: ""  # where the server's ledger stands
    stopped: Callable[[], bool] = lambda: False  # true where the run shall stop
    sites: RemoteSites | None = None  # of the phase that is played


@dataclass(frozen=True)
class SitesBackend(Backend):
    """Backend of one phase of a run between sites."""

    agreed: SitesAgreement
    post: SitesConnection = field(repr=False)
    declared: TableSchema | None = None  # of a table

    @classmethod
    def of(
        cls,
        whole: Whole,
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
        made.inbox.signed = self.post.letterhead.known is not None
        self.post.ledger = lambda: str(made.ledger.place())
        return made

    def evaluation(self) -> SitesEvaluation:
        given = self.check_evaluation()
        return SitesEvaluation(self, tuple(given.models), tuple(given.personal))

    def executor(
        self, folder: Path, place: Path, run: str, begun: Begun | None, handed: Params | None, stack: ExitStack
    ) -> Executor:
        setup, post = self.setup, self.post
        by_name = not (setup.policy.hidden or setup.promising.everyone_pays)
        prelude: list[tuple[Command, Sequence[bytes]]] = [(Begin(), ())]
        if handed is not None:
            prelude.append((Store(), [save({name: value.contiguous() for name, value in handed.items()})]))
        header, signed = setup.header(run), RunFolder(RunFolder(folder).private).sites_file
        post.sites = kind_of_sites(setup)(
            post.carrier,
            post.letterhead,
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
        if {*asked} != {PLAIN}:  # no site tells how well a model does that it has made its own
            return Scores()
        names = self.models or tuple(held)[:1]
        told, numbers = score(t, [held[name] for name in names], asked), len(names) * len(asked) * len(task.metrics)
        found = {k: row for k, row in told.items() if len(row) == numbers and all(map(math.isfinite, row))}
        if not found:  # no site shares scores
            return Scores()
        rows = [np.arange(c.tested if k in found else 0) for k, c in enumerate(self.backend.agreed.clients)]
        evaluator = Evaluator(task, Examples(torch.empty(0), torch.empty(0)), rows)
        return Evaluation(algorithm, evaluator, self.models, asked)(t, server, lambda *_: found)


def _signed(file: Path) -> Kept:
    """Newest ledger heads that sites have signed, read from the server's file; none where it cannot be read."""
    try:
        return {site: (many, bytes.fromhex(head)) for site, (many, head) in json.loads(file.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _keep_signed(file: Path, newest: Kept) -> None:
    """Writes the ledger heads that sites have signed to a private file: how often a site has answered tells who was
    drawn from a hidden cohort.
    """
    if file.parent.is_dir():  # where noise is real
        told = {site: [many, head.hex()] for site, (many, head) in newest.items()}
        atomic_write(file, json.dumps(told).encode(), private=True)
