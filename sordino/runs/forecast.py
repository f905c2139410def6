"""`privacy plan EXPERIMENT.toml`: the guarantee, traffic and time of an experiment, before any of it happens.

The planner computes guarantee and noise. Bytes are those of the rounds that it reserves, message by message. Minutes
are an estimate: the work of a few clients and one evaluation are timed on this machine, and scaled."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import torch

from sordino import config
from sordino.accounting.events import Json
from sordino.accounting.facts import Fact
from sordino.accounting.statement import Guarantee
from sordino.algorithms.optional import PublicTensors
from sordino.config import Experiment
from sordino.engine import wire
from sordino.engine.executor import cores
from sordino.engine.server import FederatedServer
from sordino.engine.site import Site
from sordino.errors import SordinoError
from sordino.ledger.ledger import MEMORY
from sordino.planning.calculator import alternatives, untouched, wider_cohort
from sordino.planning.planner import Planner, PlanRow, SmallestFederation
from sordino.receipts.private import new_key
from sordino.runs.population import Population
from sordino.runs.setup import PhaseSetup
from sordino.runs.simulation import Simulation, forks_of, settle, simulated
from sordino.tree import Tree
from sordino.types import Terms

SAMPLE = 4  # clients that are timed at first
ENOUGH = 0.2  # seconds: clients that take less are timed again, four times as many: an engine trains them together
PATIENCE = 5.0  # seconds: work that took longer is not timed a second time


class PerMessage(Fact):
    """Bytes of one message to a client, and of its answer."""

    down: int
    up: int


class Traffic(Fact):
    """Bytes: in total, of one message, and of the client that takes part most often."""

    bytes_down: int
    bytes_up: int
    bytes: int
    bytes_per_message: PerMessage
    bytes_busiest_client: int


class Planned(Traffic, PlanRow):
    """Plan of an experiment with its traffic and minutes, for which its data are read."""

    examples: int
    parameters: int
    noise_norm: float | None
    largest_signal: float | None


@dataclass(frozen=True)
class Compared:
    """Plan of an experiment as it is, and of alternatives that would keep its guarantee."""

    rows: list[Planned]
    guarantees: list[Guarantee]
    impossible: list[tuple[str, str]]  # (what, why not)
    enough: list[SmallestFederation]
    timing: str
    simulated: bool
    delta: float  # as requested

    @property
    def ratio(self) -> float | None:
        return self.rows[0].noise_to_signal

    def to_json(self) -> Json:
        return {
            "answer": self.rows[0].to_json(),
            "guarantees": [row.to_json() for row in self.guarantees],
            "alternatives": [row.to_json() for row in self.rows[1:]],
            "impossible": [{"what": what, "why": why} for what, why in self.impossible],
            "timing": self.timing,
            "simulated": self.simulated,
        }


def compare(
    source: Path | Mapping[str, object] | None,
    overrides: Sequence[str],
    settings: Mapping[str, object] | None = None,
) -> Compared:
    """The plan of `sordino run FILE OVERRIDES`, or of a table. Nothing is trained, nothing is written."""
    given = settings or {}
    experiment = settle(config.load(source, overrides, given))
    simulation, file = simulated(experiment), [str(source)] if isinstance(source, Path) else []
    typed = [*overrides, *(f"{key}={value}" for key, value in given.items())]
    asked = Forecast(simulation)
    rows, impossible = [asked.row("as asked", [*file, *typed], timed=True)], []
    for what, changes in (*alternatives(simulation.setup), *_more_clients(simulation.setup)):
        lines = [*untouched(overrides, changes), *changes]
        others = {key: value for key, value in given.items() if untouched([f"{key}="], changes)}
        words = [*untouched(typed, changes), *changes]
        try:
            other = beside(simulation, config.load(source, lines, others))
            alike = all(getattr(other.setup.experiment, part) == getattr(experiment, part) for part in LOCAL_WORK)
            rows.append(Forecast(other, asked.timed if alike else None).row(what, [*file, *words], alike))
        except SordinoError as error:
            impossible.append((what, f"{error.what}: {error.why}" if error.why else error.what))

    def at_delta(delta: float) -> PhaseSetup:
        privacy = experiment.privacy.model_copy(update={"delta": delta})
        return beside(simulation, experiment.model_copy(update={"privacy": privacy})).setup

    found, guarantees, privacy = asked.planner.loud_enough(at_delta), asked.planner.guarantees, experiment.privacy
    return Compared(rows, guarantees, impossible, found, asked.timing, not privacy.real, privacy.delta)


LOCAL_WORK = ("data", "model", "algorithm", "read")  # what the seconds of one client's work depend on


def _more_clients(setup: PhaseSetup) -> Iterator[tuple[str, list[str]]]:
    experiment, clients = setup.experiment, 2 * len(setup.public.sizes)
    if setup.plan.offer is not None and experiment.privacy.epsilon is not None and "clients" in experiment.partition:
        more = wider_cohort(experiment, 2, clients, size_only=True)
        yield "twice the clients, same data", [f"partition.clients={clients}", *([more] if more else [])]


def beside(simulation: Simulation, experiment: Experiment) -> Simulation:
    """Simulation of a changed experiment; data that are the same are not read again."""
    return Simulation.of(Population.like(simulation.population, settle(experiment)))


class Seconds(NamedTuple):
    """Times measured on this machine with the clients' own examples; nothing that they computed is kept."""

    clients: int
    work: float  # of all their steps
    effort: int  # examples that those steps went through
    evaluation: float


@dataclass(frozen=True)
class Forecast:
    """Forecast of a run: its guarantees, messages and seconds."""

    simulation: Simulation
    seconds: Seconds | None = None  # of an experiment with the same local work, where that has been timed

    @property
    def setup(self) -> PhaseSetup:
        return self.simulation.setup

    @cached_property
    def planner(self) -> Planner:
        return Planner(self.setup)

    @cached_property
    def federation(self) -> FederatedServer:
        """The server's side on a ledger in memory: it sizes messages and sets terms."""
        return self.setup.federation(self.simulation.home, "", MEMORY, self.planner.run)

    def traffic(self) -> Traffic:
        run, algorithm = self.federation, self.setup.algorithm
        down = algorithm.broadcast(self.setup.state("server"))
        fields = wire.schema(algorithm.uplink.at(0, down).shape(algorithm.zero(self.setup.task, down)))
        inbox = run.inbox
        both, total_down = Counter[int](), 0
        for t, granted in enumerate(self.planner.rounds):
            one, up = inbox.bytes_down(t, down, [0]), wire.sizes(inbox.header(t, 0), fields)
            both.update({k: one + up(k) for k in granted})
            total_down += one * len(granted)
        return Traffic(
            bytes_down=total_down,
            bytes_up=both.total() - total_down,
            bytes=both.total(),
            bytes_per_message=PerMessage(down=inbox.bytes_down(0, down, [0]), up=wire.size(inbox.header(0, 0), fields)),
            bytes_busiest_client=max(both.values(), default=0),
        )

    # minutes ----------------------------------------------------------------------------------------------------------

    @cached_property
    def timed(self) -> Seconds:
        return self.seconds or _time(self.simulation, self.federation)

    @property
    def minutes(self) -> float:
        """Minutes of local work and evaluation; the disk is not counted."""
        experiment, timed = self.setup.experiment, self.timed
        visits = Counter(k for granted in self.planner.rounds for k in granted)
        effort = sum(times * _effort(self.setup, k) for k, times in visits.items())
        engine, evaluation = self.setup.engine, experiment.evaluation
        # timed in one process where processes or forks will share the work, with all threads otherwise
        hands = min(int(engine.workers), cores()) if engine.client_processes or forks_of(self.setup) else 1
        last = max(0, experiment.rounds - max(1, evaluation.final))
        evaluations = last // evaluation.every + experiment.rounds - last
        return (timed.work * effort / timed.effort / hands + timed.evaluation * evaluations) / 60

    @property
    def timing(self) -> str:
        timed = self.timed
        return (
            f"an estimate: {timed.work:.2g} s for {timed.effort:,} examples of {timed.clients} clients and "
            f"{timed.evaluation:.2g} s for an evaluation, "
            "timed just now and scaled; the disk is not "
            f"counted{', and neither is what comes before round 1' if self.setup.preparation else ''}"
        )

    def row(self, what: str, run: list[str], timed: bool) -> Planned:
        noise = self.planner.expected_noise
        return self.planner.row(
            Planned,
            what,
            run,
            self.planner.promise,
            examples=sum(self.setup.public.sizes),
            parameters=self.setup.coordinates,
            noise_norm=noise and noise.norm,
            largest_signal=noise and noise.signal,
            **dict(self.traffic()),
            minutes=self.minutes if timed else None,
        )


def _effort(setup: PhaseSetup, client: int) -> int:
    work, size = setup.algorithm.work, setup.public.sizes[client]
    return int(work.count(size) * work.batch(size))


def _time(simulation: Simulation, run: FederatedServer) -> Seconds:
    """Time a round of a few clients of middling size, with their noise (one epoch of each where work is counted in
    epochs), then one evaluation.
    """
    setup = simulation.setup
    server = setup.state("server")
    algorithm, last = setup.algorithm, setup.preparation[-1] if setup.preparation else None
    before = last.result(last.state("server")) if last is not None else None
    public_tensors = PublicTensors.of(algorithm).public_tensors(before, simulation.home)
    clients = simulation.site(run.run, secret=new_key(), public_tensors=public_tensors)
    down, evaluate = algorithm.broadcast(server), simulation.evaluation()
    if forks_of(setup):
        clients.threads = None
    able = [k for k, times in enumerate(setup.plan.participations) if times] or list(range(len(setup.public.sizes)))
    able.sort(key=lambda k: (setup.public.sizes[k], k))
    epochs, zero = algorithm.work.epochs, setup.plan.currency.zero()
    many, most = SAMPLE, max(SAMPLE, int(setup.cohort.expected(len(setup.public.sizes))))
    before = torch.get_num_threads()
    torch.set_num_threads(setup.experiment.engine.threads)
    try:
        while True:
            start = max(0, (len(able) - many) // 2)
            chosen = able[start : start + many]
            terms = {k: run.terms(k, setup.plan.price(k, 0, zero), 1 if epochs else None) for k in chosen}
            work = _second_time(partial(_played, clients, down, terms))
            if work > ENOUGH or 4 * many > min(most, len(able)):
                break
            many *= 4
        effort = sum(_effort(setup, k) for k in chosen) // (epochs or 1)
        return Seconds(len(chosen), work, effort, _second_time(lambda: evaluate(0, server, clients.score)))
    finally:
        torch.set_num_threads(before)


def _played(clients: Site, down: Tree, terms: Mapping[int, Terms]) -> None:
    """Computes a round of these clients, and keeps nothing of it."""
    for _ in clients(0, down, terms).uploads:
        pass


def _second_time(work: Callable[[], object]) -> float:
    """Seconds of a second call of `work`, since the first may pay for what is done once; of the first where it takes
    too long to repeat.
    """
    taken = math.inf
    for _ in range(2):
        started = time.perf_counter()
        work()
        taken = time.perf_counter() - started
        if taken > PATIENCE:
            break
    return taken
