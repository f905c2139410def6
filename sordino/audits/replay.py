"""Replay of a run in memory for attacks and audits. Simulated runs are deterministic: the same experiment gives the
same uploads and noise that the server received. Nothing is written.

A bare run is the same run without its protection: no noise, no clip, no secure sum, no ledger.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from sordino import keys
from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.algorithms.optional import ChecksServer, Estimates, PublicTensors, first_state
from sordino.algorithms.phases import FeatureMean, Phase
from sordino.config import Experiment
from sordino.engine.client_states import PreparedShards, Shards
from sordino.engine.executor import Answers, Clients
from sordino.engine.server import FederatedServer
from sordino.engine.site import Site
from sordino.errors import PrivacyError
from sordino.keys import Key
from sordino.ledger.ledger import MEMORY
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.open import Open
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.stages import Weigh
from sordino.receipts.folder import RunFolder
from sordino.round import Outcome, one_round
from sordino.runs.simulation import Simulation, adds
from sordino.tree import Tree
from sordino.types import Examples, Params, Reader, Terms

IN_A_FILE = "attacks reconstruct images of the training data and keep them in a file"
Change = Callable[[int, Examples], Examples]  # a client and its rows -> its rows in the replay


def check_allowed(
    experiment: Experiment, folder: Path | None = None, verb: str = "attack", why: str = IN_A_FILE
) -> None:
    """Refuse runs with real noise or real sites: their data must not be reconstructed, and their noise not be drawn
    again.
    """
    between = folder is not None and bool(RunFolder(folder).environment.site)
    if experiment.privacy.real or between:
        raise PrivacyError(
            "this run protects real people and cannot be attacked",
            why=f"{why}; between sites no single machine has the data",
            fix=f"attack the same experiment as a simulation, on data that you may show: `sordino {verb} "
            "EXPERIMENT.toml privacy.noise=counter`",
            code="attack-on-real-run",
        )


class RecordedRound(NamedTuple):
    """Messages of one replayed round, with the model before it."""

    before: Params  # the broadcast model
    each: Mapping[int, Params]  # changes of the model in single uploads, decoded; empty where none can be read
    together: Params | None  # change of the model in the sum of all uploads
    answered: list[int]
    down: Tree
    terms: Mapping[int, Terms]
    digest: bytes = b""  # of the release of the round
    note: str = ""  # its note in the ledger


class PhaseStart(NamedTuple):
    """State from which a phase, or the training, starts: the end of the phase before."""

    result: Tree = None
    states: Mapping[str, Tree] = {}  # of its clients


BEGINNING = PhaseStart()


class Changed(Mapping[int, Examples]):
    """Rows of each client in a replay: the run's own, after a `change` such as a canary put in or a row taken out."""

    def __init__(self, shards: Mapping[int, Examples], change: Change) -> None:
        self._shards, self._change = shards, change

    def __getitem__(self, client: int) -> Examples:
        return self._change(client, self._shards[client])

    def __iter__(self) -> Iterator[int]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)


@dataclass
class RecordedClients(Clients):
    """Clients whose uploads are recorded."""

    inner: Site
    down: Tree = None
    terms: Mapping[int, Terms] = field(default_factory=dict)
    answers: dict[int, Tree] = field(default_factory=dict)

    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Answers:
        self.down, self.terms, self.answers = down, terms, {}
        self.inner.hears = self.answers.__setitem__
        return self.inner(t, down, terms)  # summed in the order of the run, so that rounding is the same


class Rounds(ABC):
    """Rounds of a run in order, replayed. `change` modifies clients' rows, `key` replaces the run's random key."""

    algorithm: AnyAlgorithm

    def __init__(self, simulation: Simulation, change: Change | None, key: int | None, start: PhaseStart) -> None:
        self.simulation, setup = simulation, simulation.setup
        run = setup.experiment.digest()[:16]
        prepares = setup.prepares
        states = setup.states().restore(start.states if prepares else {})
        given = None if prepares else PublicTensors.of(self.algorithm).public_tensors(start.result, simulation.home)
        federation, site = simulation.federation(MEMORY, run), simulation.site(run, states=states, public_tensors=given)
        site.adds, self._key = adds(setup), setup.key if key is None else key
        site = replace(site, algorithm=self.algorithm, shards=self._rows(site.shards, change))
        if key is not None:
            federation, site = replace(federation, key=key), replace(site, key=key)
        self.federation: FederatedServer = federation
        self.site = site
        self.server: Tree = first_state(self.algorithm, setup.task, setup.key, start.result, simulation.home)
        self.t = 0

    @abstractmethod
    def round(self) -> RecordedRound:
        """Computes the next round again, with the messages that it sends."""

    @abstractmethod
    def _rows(self, shards: Mapping[int, Examples], change: Change | None) -> Mapping[int, Examples]:
        """Rows of each client, changed by `change` where it is given."""

    def model(self) -> Params:
        return next(iter(self.algorithm.models(self.server).values()), {})

    def until(self, t: int) -> Self:
        """Replays all rounds before round t."""
        while self.t < t:
            self.round()
        return self

    @property
    def over(self) -> bool:
        """True at the end of the training, or of the phase being replayed."""
        phase = self.algorithm
        return phase.over(self.server) if isinstance(phase, Phase) else self.t >= self.simulation.setup.rounds

    @property
    def end(self) -> PhaseStart:
        """State at the end of this phase, from which the next one starts."""
        phase = self.algorithm
        assert isinstance(phase, Phase)
        return PhaseStart(phase.result(self.server), self.site.states.trees())

    def change_of(self, t: int, upload: Tree, down: Tree, client: int, held: int) -> Params | None:
        """Change of the model that a single upload reveals. `held`: number of rows that the client trains on in the
        attack, which decides its weight there.
        """
        run, uplink = self.federation, self.algorithm.uplink.at(t, down)
        usual = uplink.weight(run.sizes[client], run.largest)
        weight = self._weights[client] * uplink.weight(held, run.largest) / usual
        zero = self.algorithm.zero(self.simulation.setup.task, down)
        return Estimates.of(self.algorithm).change(uplink.opened(upload, zero, weight))

    @property
    def _weights(self) -> Sequence[float]:
        return self.federation.weights

    def _each(self, t: int, answers: Mapping[int, Tree], down: Tree) -> dict[int, Params]:
        if any(stage.aggregate_only for stage in self.algorithm.uplink.client):
            return {}
        changes = {k: self.change_of(t, upload, down, k, len(self.site.shards[k].y)) for k, upload in answers.items()}
        return {k: change for k, change in changes.items() if change is not None}


class Replay(Rounds):
    """A run's rounds repeated with its own noise, clip and ledger, to get the messages that an attacker saw."""

    def __init__(
        self,
        simulation: Simulation,
        change: Change | None = None,
        key: int | None = None,
        start: PhaseStart = BEGINNING,
    ) -> None:
        self.algorithm = simulation.setup.algorithm
        super().__init__(simulation, change, key, start)
        self._stalled = False

    def _rows(self, shards: Mapping[int, Examples], change: Change | None) -> Mapping[int, Examples]:
        """Rows of the clients, changed by `change`; where the method randomises examples, the changed rows are
        randomised."""
        if change is None:
            return shards
        return answering(shards, Changed(raw(self.simulation), change), self.algorithm.read, self._key)

    def round(self) -> RecordedRound:
        clients, t, before = RecordedClients(self.site), self.t, self.model()
        outcome, digest = self.step(clients)
        received = outcome.received
        return RecordedRound(
            before,
            self._each(t, clients.answers, clients.down),
            None if received is None else Estimates.of(self.algorithm).change(received.mean),
            outcome.answered,
            clients.down,
            clients.terms,
            digest,
            self.federation.entries()[-1].note,
        )

    def step(self, clients: Clients) -> tuple[Outcome, bytes]:
        """Replays the next round with these clients; returns its outcome and the digest of its release."""
        digests = list[bytes]()
        outcome = one_round(
            self.federation, self.server, self.t, clients, self._stalled, lambda outcome, digest: digests.append(digest)
        )
        self._stalled = outcome.stalled
        self.server, self.t = outcome.server, self.t + 1
        return outcome, digests[0]


class UnprotectedRounds(Rounds):
    """Rounds without protection: the method without clip and noise, and without a ledger. Attacks are compared with it
    as their control."""

    def __init__(
        self,
        simulation: Simulation,
        change: Change | None = None,
        key: int | None = None,
        start: PhaseStart = BEGINNING,
    ) -> None:
        self.algorithm = unprotected(simulation.setup.method)
        super().__init__(simulation, change, key, start)
        self.site = replace(self.site, sharing="loop")

    def _rows(self, shards: Mapping[int, Examples], change: Change | None) -> Mapping[int, Examples]:
        rows = raw(self.simulation)
        return rows if change is None else Changed(rows, change)

    @property
    def _weights(self) -> Sequence[float]:
        run, uplink = self.federation, self.algorithm.uplink
        return [uplink.weight(n, run.largest) for n in run.sizes]

    def round(self) -> RecordedRound:
        run, task, uplink, t = self.federation, self.simulation.setup.task, self.algorithm.uplink, self.t
        before, down, weights = self.model(), self.algorithm.broadcast(self.server), self._weights
        terms = {k: Terms(largest=run.largest) for k in run.draw(run.open(t), self.server)}
        answers = dict(self.site.each(t, down, terms))
        expected = run.cohort.expected(len(weights)) * math.fsum(weights) / len(weights)
        received: Any = uplink.receive(
            answers,
            self.algorithm.zero(task, down),
            weights,
            expected,
            None,
            Counter(0),
            each=self.algorithm.reads_each,
        )
        self.server, self.t = self.algorithm.update(self.server, received, self.simulation.home), t + 1
        each, together = self._each(t, answers, down), Estimates.of(self.algorithm).change(received.mean)
        return RecordedRound(before, each, together, [*terms], down, terms)


class ReplayedPreparation(NamedTuple):
    """Result of the phases before the training, replayed to their ends."""

    start: PhaseStart
    means: Sequence[FeatureMean]  # means of features that the server received


def preparation(simulation: Simulation, bare: bool) -> ReplayedPreparation:
    for simulated in (*simulation.preparation, simulation):
        ChecksServer.of(simulated.setup.algorithm).check(simulated.home)  # fails where the server lacks its own data
    start, means = BEGINNING, list[FeatureMean]()
    for simulated in simulation.preparation:
        rounds: Rounds = (UnprotectedRounds if bare else Replay)(simulated, start=start)
        phase = rounds.algorithm
        assert isinstance(phase, Phase)
        while not rounds.over:
            rounds.round()
        means += phase.means(rounds.server, simulated.setup.task)
        start = rounds.end
    return ReplayedPreparation(start, means)


def unprotected(method: AnyAlgorithm) -> AnyAlgorithm:
    """A copy of the method without protection: no clip or noise on gradients, and uploads that are only weighted (but
    not by precision).
    """
    weights = tuple(stage for stage in method.uplink.client if isinstance(stage, Weigh) and stage.by != "precision")
    return method.behind(read=method.read if method.read.plain else Open(), uplink=Uplink(client=weights))


def answering(
    like: Mapping[int, Examples], rows: Mapping[int, Examples], reader: Reader, key: Key
) -> Mapping[int, Examples]:
    """Rows as clients train on them: as they are, or randomised anew by `key`, where those in `like` are randomised."""
    if not isinstance(like, PreparedShards):
        return rows
    return PreparedShards(rows, reader, lambda k: Counter(keys.word(keys.fold(key, "game", k))))


def raw(simulation: Simulation) -> Shards:
    """Rows of all clients, before any are randomised."""
    rows = simulation.population.shares[0]
    return Shards(simulation.population.named.train, rows, range(len(rows)))
