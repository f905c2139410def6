"""`privacy plan EXPERIMENT.toml`: what a real experiment will promise, send and take, before any of it happens.

The promise is the statement of a rehearsal: every round is reserved in a ledger in memory, as the run would reserve it,
and nothing is computed. The bytes are those of the same rounds, message by message. Minutes are an estimate: the work
of a few clients and one evaluation are timed here, and scaled.
"""

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
from sordino.accounting.claims import Subject
from sordino.accounting.events import Json
from sordino.accounting.facts import Fact
from sordino.accounting.statement import Guarantee, Promised, unspent
from sordino.algorithms.optional import Estimates, PublicTensors
from sordino.budget.calculator import Enough, PlanRow
from sordino.config import Experiment
from sordino.engine import wire
from sordino.engine.choose_executor import cores
from sordino.engine.server import Federation
from sordino.engine.site import Site
from sordino.errors import SordinoError
from sordino.receipts.private import throwaway
from sordino.runs.clients import forks_of
from sordino.runs.noise_level import ExpectedNoise, expected_noise, loud_enough, multiplier
from sordino.runs.population import Population
from sordino.runs.rehearsal import Rehearsal
from sordino.runs.setup import Setup
from sordino.runs.simulation import Simulation, settle, simulated
from sordino.tree import Tree
from sordino.types import Terms

LIKELY_STEP = 0.1  # of a method that does not say
SAMPLE = 4  # clients that are timed at first
ENOUGH = 0.2  # seconds: clients that take less are timed again, four times as many: an engine trains them together
PATIENCE = 5.0  # seconds: work that took longer is not timed a second time


class PerMessage(Fact):
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
    """What an experiment will promise, send and take."""

    examples: int
    parameters: int
    noise_norm: float | None
    largest_signal: float | None


@dataclass(frozen=True)
class Compared:
    """An experiment as it is, and what else would keep its promise."""

    rows: list[Planned]
    guarantees: list[Guarantee]
    impossible: list[tuple[str, str]]  # (what, why not)
    enough: list[Enough]
    timing: str
    simulated: bool
    delta: float  # that was asked for

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
    for what, changes in alternatives(simulation.setup):
        said = [*_untouched(overrides, changes), *changes]
        others = {key: value for key, value in given.items() if _untouched([f"{key}="], changes)}
        words = [*_untouched(typed, changes), *changes]
        try:
            other = beside(simulation, config.load(source, said, others))
            alike = all(getattr(other.setup.experiment, part) == getattr(experiment, part) for part in LOCAL_WORK)
            rows.append(Forecast(other, asked.timed if alike else None).row(what, [*file, *words], alike))
        except SordinoError as error:
            impossible.append((what, f"{error.what}: {error.why}" if error.why else error.what))

    def at_delta(delta: float) -> Setup:
        privacy = experiment.privacy.model_copy(update={"delta": delta})
        return beside(simulation, experiment.model_copy(update={"privacy": privacy})).setup

    found = loud_enough(simulation.setup, asked.noise, at_delta) if asked.noise else []
    asked_for = experiment.privacy
    return Compared(rows, asked.guarantees, impossible, found, asked.timing, not asked_for.real, asked_for.delta)


def _untouched(overrides: Sequence[str], changes: Sequence[str]) -> list[str]:
    """Without what a change says anew."""
    new = [change.partition("=")[0] for change in changes]
    return [o for o in overrides if not any((o.partition("=")[0] + ".").startswith(f"{path}.") for path in new)]


LOCAL_WORK = ("data", "model", "algorithm", "read")  # what the seconds of one client's work depend on


# alternatives ---------------------------------------------------------------------------------------------------------


def alternatives(setup: Setup) -> Iterator[tuple[str, list[str]]]:
    """What else would keep the same promise, or another unit's at the same price: a name, and what to give to `sordino
    run`.
    """
    experiment, offer, population = setup.experiment, setup.plan.offer, len(setup.public.sizes)
    if offer is None or experiment.privacy.epsilon is None:
        return
    if wider := _cohort(experiment, 2, population):
        yield "twice the cohort", [wider]
    if experiment.rounds > 1:
        yield "half the rounds", [f"rounds={experiment.rounds // 2}"]
    if "clients" in experiment.partition:
        more = _cohort(experiment, 2, 2 * population, size_only=True)
        yield "twice the clients, same data", [f"partition.clients={2 * population}", *([more] if more else [])]
    yield from _other_gates(setup)


GROWS = {"poisson": "rate", "round_robin_peer": "fraction", "round_robin": "size", "random": "size"}


def _cohort(experiment: Experiment, factor: int, population: int, size_only: bool = False) -> str | None:
    key = GROWS.get(experiment.cohort["name"])
    if key is None or (size_only and key != "size"):
        return None
    value = experiment.cohort[key] * factor
    return f"cohort.{key}={value}" if value <= (population if key == "size" else 1) else None


def _other_gates(setup: Setup) -> Iterator[tuple[str, list[str]]]:
    experiment, offer, algorithm = setup.experiment, setup.plan.offer, setup.algorithm
    assert offer is not None
    lr, population = Estimates.of(algorithm).step_size or LIKELY_STEP, len(setup.public.sizes)
    records = offer.subject.unit != "client"
    clip = (algorithm.read.cut or 1.0) if records else algorithm.uplink.bound(setup.coordinates).l2
    opened = ["read={name='open'}"] if experiment.read is not None else []
    fedavg = [f"algorithm={{name='fedavg', lr={lr}}}", *opened] if records else []
    bounded = f"uplink={{client=[{{name='clip', radius={clip}}}%s], server=[%s]}}"
    rate, hidden = setup.cohort.expected(population) / population, setup.policy.hidden
    unit = "protect clients, " if records else ""
    if records or not (hidden and algorithm.uplink.server):
        coins = [] if hidden else [f"cohort={{name='poisson', rate={rate}}}"]
        # each at the rate its own budget affords
        if setup.whole.budget is not None and setup.whole.budget.personal is not None:
            coins = [f"cohort={{name='by_budget', size={setup.cohort.expected(population):g}}}"]
        central = bounded % ("", "{name='noise', neighbours='zero_out'}")
        yield f"{unit}central noise, hidden cohort", [*fedavg, central, *coins]
    if records or algorithm.uplink.server:
        yield f"{unit}local noise", [*fedavg, bounded % (", {name='noise'}", "")]
    if not records:
        read = [f"read={{name='noisy_gradient', clip={clip}}}"] if experiment.read is not None else []
        raw = ["uplink={client=[{name='weigh'}]}"] if experiment.uplink is not None else []
        step = f"algorithm={{name='gaussian_gdp', clip={clip}, lr={lr}}}"
        yield "protect records, not clients", [step, *read, *raw]


def beside(simulation: Simulation, experiment: Experiment) -> Simulation:
    """A changed experiment; data that are the same are not read again."""
    return Simulation.of(Population.like(simulation.population, settle(experiment)))


# a rehearsal ----------------------------------------------------------------------------------------------------------


class Seconds(NamedTuple):
    """Measured here, on the clients' own examples; nothing of it is kept."""

    clients: int
    work: float  # of all their steps
    effort: int  # examples that those steps went through
    evaluation: float


@dataclass(frozen=True)
class Forecast:
    simulation: Simulation
    seconds: Seconds | None = None  # of an experiment with the same local work, where that has been timed

    @property
    def setup(self) -> Setup:
        return self.simulation.setup

    @cached_property
    def _rehearsal(self) -> Rehearsal:
        return Rehearsal(self.setup, self.simulation.home)

    @property
    def federation(self) -> Federation:
        return self._rehearsal.federation

    @property
    def rounds(self) -> list[Sequence[int]]:
        """Who will take part and pay, round by round."""
        return self._rehearsal.rounds

    @property
    def guarantees(self) -> list[Guarantee]:
        """What the receipt will say when every planned round has been played."""
        return self._rehearsal.guarantees

    @cached_property
    def noise(self) -> ExpectedNoise | None:
        return expected_noise(self.setup)

    @cached_property
    def busiest(self) -> int:
        plan = self.setup.plan
        return max(range(len(plan.exposures)), key=lambda k: (plan.exposures[k] * plan.reads[k], plan.exposures[k], -k))

    def traffic(self) -> Traffic:
        run, algorithm = self.federation, self.setup.algorithm
        down = algorithm.broadcast(self.setup.state("server"))
        fields = wire.schema(algorithm.uplink.at(0, down).shape(algorithm.zero(self.setup.task, down)))
        inbox = run.inbox
        both, total_down = Counter[int](), 0
        for t, granted in enumerate(self.rounds):
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
        visits = Counter(k for granted in self.rounds for k in granted)
        effort = sum(times * _effort(self.setup, k) for k, times in visits.items())
        engine, evaluation = self.setup.engine, experiment.evaluation
        # it was timed with one pair of hands where forks will help, with all threads elsewhere
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
        setup, offer, experiment = self.setup, self.setup.plan.offer, self.setup.experiment
        promise = None if offer is None else self._promise(offer.subject)
        return Planned(
            what=what,
            clients=len(setup.public.sizes),
            cohort=setup.cohort.expected(len(setup.public.sizes)),
            rounds=experiment.rounds,
            examples=sum(setup.public.sizes),
            parameters=setup.coordinates,
            promise=promise,
            noise_multiplier=None if offer is None else multiplier(setup, self.busiest),
            exposures=setup.plan.exposures[self.busiest],
            noise_norm=self.noise and self.noise.norm,
            largest_signal=self.noise and self.noise.signal,
            noise_to_signal=self.noise and self.noise.ratio,
            **dict(self.traffic()),
            minutes=self.minutes if timed else None,
            run=tuple(run),
        )

    def _promise(self, subject: Subject) -> Promised:
        rows = {row.subject: row for row in self.guarantees}
        row = rows[subject] if subject in rows else unspent(subject, "none: nobody ever takes part")
        return Promised.of(row, accountant=row.accountant)


def _effort(setup: Setup, client: int) -> int:
    work, size = setup.algorithm.work, setup.public.sizes[client]
    return int(work.count(size) * work.batch(size))


def _time(simulation: Simulation, run: Federation) -> Seconds:
    """A few clients of middling size, one epoch of each where it counts in epochs, by the engine and with their noise;
    then one evaluation.
    """
    setup = simulation.setup
    server = setup.state("server")
    algorithm, last = setup.algorithm, setup.preparation[-1] if setup.preparation else None
    before = last.result(last.state("server")) if last is not None else None
    handed = PublicTensors.of(algorithm).public_tensors(before, simulation.home)
    clients, down, evaluate = (
        simulation.site(run.run, secret=throwaway(), handed=handed),
        algorithm.broadcast(server),
        simulation.evaluation(),
    )
    if forks_of(setup):
        clients.threads = None
    able = [k for k, times in enumerate(setup.plan.exposures) if times] or list(range(len(setup.public.sizes)))
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
    """A round of these clients, of which nothing is kept."""
    for _ in clients(0, down, terms).uploads:
        pass


def _second_time(work: Callable[[], object]) -> float:
    """Seconds; the first time may pay for what is done once."""
    taken = math.inf
    for _ in range(2):
        started = time.perf_counter()
        work()
        taken = time.perf_counter() - started
        if taken > PATIENCE:
            break
    return taken
