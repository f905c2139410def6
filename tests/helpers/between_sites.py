"""A simulated experiment, played between sites: each client's rows go to a site of its own, and the server keeps none."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sordino.config import Experiment
from sordino.engine.client_states import Shards
from sordino.ledger.ledger import Entry
from sordino.planning.methods import Methods
from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import opened
from sordino.runs.new_folder import create_folder, environment_of
from sordino.runs.play import Ended, play
from sordino.runs.setup import RunSetup, decided
from sordino.runs.simulation import settle, simulated
from sordino.sites import remote_sites
from sordino.sites.agreement_file import AgreedClient, Announced, SitesAgreement
from sordino.sites.key_holder import KeyHolder
from sordino.sites.membership import Membership
from sordino.sites.secure_sums import HOLDER, peers_of
from sordino.sites.serve import SitesBackend, SitesConnection
from sordino.transport.message import Carrier, Signer
from sordino.transport.run_events import ROUTINE, RunEvent
from sordino.transport.sites import Patience
from tests.helpers.in_process import InProcess
from tests.laws.cases import CASES

SERVER = "server"
SHARED_KEYS = {"paillier_fl", "lattice_fl"}  # one key that all share: refused there
BETWEEN_SITES = [case for case in CASES if case.name not in SHARED_KEYS]


@dataclass
class Federated:
    """An experiment between a server and its sites, all in this process."""

    experiment: Experiment
    place: Path
    per_site: int = 1  # clients
    shares_scores: bool = False
    moved: bool = False  # has the folder of a site that is started taken the place of the one that joined?
    patience: Patience = Patience()
    carried: Callable[[Mapping[str, Callable[[bytes], bytes]]], Carrier] = InProcess
    keys: dict[str, Ed25519PrivateKey] = field(default_factory=dict)
    holder: KeyHolder | None = None
    members: dict[str, Membership] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    hears: Callable[[RunEvent], None] = lambda event: None

    def __post_init__(self) -> None:
        experiment = settle(self.experiment)
        engine = decided(experiment.engine, Methods(experiment).training)
        self.experiment = experiment.model_copy(update={"engine": engine})
        self.simulation = simulated(self.experiment)
        population = self.simulation.population
        tested = population.shares[1]
        clients = tuple(
            AgreedClient(
                name=f"c{k}",
                site=f"site-{k // self.per_site}",
                examples=n,
                tested=len(tested[k]),
                commitment=hashlib.sha256(f"data of c{k}".encode()).hexdigest(),
            )
            for k, n in enumerate(population.sizes)
        )
        self.agreed = SitesAgreement(format=1, data=Announced(**population.public.about), clients=clients)
        self.environment = environment_of(self.experiment)
        whole = RunSetup(self.experiment, self.agreed.public(self.experiment, self.simulation.population.source.schema))
        peers = peers_of(whole, self.agreed)
        for name in (SERVER, *peers):
            self.keys.setdefault(name, Ed25519PrivateKey.generate())
        if HOLDER in peers:
            self.holder = KeyHolder(self.place / HOLDER, whole, self.signer(HOLDER))

    @property
    def run(self) -> str:
        return self.environment.run

    @property
    def folder(self) -> Path:
        return self.place / SERVER

    def signer(self, name: str) -> Signer:
        known = {who: key.public_key() for who, key in self.keys.items() if (who == SERVER) != (name == SERVER)}
        return Signer(name, self.run, self.experiment.digest(), self.agreed.digest, self.keys[name], known)

    def member(self, site: str) -> Membership:
        """A site as it stands in its folder: call it again, and it has been restarted."""
        whole, population = (
            RunSetup(self.experiment, self.agreed.public(self.experiment, self.simulation.population.source.schema)),
            self.simulation.population,
        )
        which, folder = self.agreed.sites[site], self.place / site
        own = range(which[0], which[-1] + 1)
        if not folder.exists():
            environment = self.environment.beside(site=site, clients=tuple(which), shares_scores=self.shares_scores)
            create_folder(folder, whole.phases[-1], whole.agreement(f"data of {site}"), environment, b"key")
        rows, tests = population.shares
        trained = Shards(population.named.train, rows, own)
        tested = Shards(population.named.test, tests, own)
        member = Membership(folder, whole, trained, tested, self.signer(site), moved=self.moved)
        if self.holder is not None:
            member.key_digest = self.holder.digest
        self.members[site] = member
        return member

    def stop(self, site: str) -> None:
        self.members.pop(site).close()

    def half(self, carrier: Carrier) -> SitesBackend:
        whole = RunSetup(self.experiment, self.agreed.public(self.experiment, self.simulation.population.source.schema))
        post = SitesConnection(carrier, self.signer(SERVER), self.patience, self._note)
        population = self.simulation.population
        return SitesBackend.of(
            whole, self.agreed, post, population.kept._replace(tested=None), population.source.schema
        )

    def _note(self, event: RunEvent) -> None:
        if event.event not in ROUTINE:
            self.notes.append(event.words)
        self.hears(event)

    def _asks_holder(self, message: bytes) -> bytes:
        """The holder as it is now: a test may start it again."""
        assert self.holder is not None
        return self.holder.answer(message)

    def play(self, carrier: Carrier | None = None) -> Ended:
        """From where it stands to the end; sites that are not there are started. Nobody is far, so nobody is waited for."""
        with ExitStack() as stack:
            stack.enter_context(pytest.MonkeyPatch.context()).setattr(remote_sites, "SOON", 0.01)
            for site in self.agreed.sites:
                if site not in self.members:
                    self.member(site)
                stack.callback(self.stop, site)
            handlers = {
                site: lambda message, site=site: self.members[site].handler.answer(message) for site in self.members
            }
            if self.holder is not None:
                handlers[HOLDER] = self._asks_holder
            half = self.half(carrier or self.carried(handlers))
            if not self.folder.exists():
                environment = self.environment.beside(site=SERVER)
                create_folder(self.folder, half.setup, half.agreement(), environment, b"key", half.home.story)
            return play(half, self.folder)


def ledger_of(folder: Path) -> list[Entry]:
    _, federation = opened(folder)
    with federation.ledger as ledger:
        return [entry._replace(sequence=0, hash="") for entry in ledger.entries()]


def model_of(folder: Path) -> bytes:
    return RunFolder(folder).model_file.read_bytes()
