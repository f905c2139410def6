"""`privacy plan` without data: computes the noise for a budget, or the budget for a noise multiplier, from numbers
alone, with alternatives within the same budget. The numbers become an experiment over public sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from sordino import config
from sordino.accounting.accountants import EXACT, epsilon_by
from sordino.accounting.events import Gaussian, Json, Poisson, Repeat, check_multiplier, valid_epsilon
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.accounting.pricing import Counted, accountant
from sordino.accounting.statement import Promised
from sordino.algorithms.optional import Estimates
from sordino.config import Experiment
from sordino.errors import (
    COUNT,
    POSITIVE,
    ConfigError,
    Range,
    SordinoError,
    UnsoundGuarantee,
    check_range,
)
from sordino.planning import MOST_CLIENTS, PublicNumbers
from sordino.planning.phase import PlannedPhase, PlannedRun
from sordino.planning.planner import Planner, PlanRow, SmallestFederation
from sordino.sampling import alike

BYTES = 4  # of a float32 parameter on the wire


@dataclass(frozen=True)
class Question:
    """Question to `sordino privacy plan` in numbers alone: a budget, a number of clients, and rounds."""

    epsilon: float
    delta: float
    unit: Literal["client", "example"]
    clients: int
    cohort: int
    rounds: int
    parameters: int = 21_840
    records: int = 600  # per client; matters for unit "example" only
    clip: float = 1.0  # of an update, or of a record's gradient

    def __post_init__(self) -> None:
        valid_epsilon(self.epsilon)
        check_range("clip", self.clip, POSITIVE, "clip-not-positive")
        for name in ("cohort", "rounds", "parameters", "records"):
            check_range(name, getattr(self, name), COUNT, "out-of-range")
        check_range("clients", self.clients, Range(least=1, most=MOST_CLIENTS, whole=True), "out-of-range")
        allowed, why = Range(least=1, most=self.clients), "a client takes part at most once in a round"
        fix = "make the cohort at most as large as the number of clients"
        check_range("cohort", self.cohort, allowed, "cohort-too-large", why=why, fix=fix)

    @property
    def rate(self) -> float:
        return self.cohort / self.clients

    @property
    def turns(self) -> int:
        """Rounds in which the busiest client takes part, under round-robin sampling (no amplification)."""
        return -(-self.rounds * self.cohort // self.clients)

    @property
    def run(self) -> list[str]:
        """Arguments of `sordino run` for the plan in question."""
        clip = f"{{name='clip', radius={self.clip}}}"
        central = f"uplink={{client=[{clip}], server=[{{name='noise', neighbours='zero_out'}}]}}"
        return [
            f"rounds={self.rounds}",
            f"partition.clients={self.clients}",
            *(
                ("algorithm=fedavg", central, f"cohort={{name='poisson', rate={self.rate}}}")
                if self.unit == "client"
                else (
                    f"algorithm={{name='gaussian_gdp', clip={self.clip}}}",
                    f"cohort={{name='round_robin', size={self.cohort}}}",
                )
            ),
            f"privacy.epsilon={self.epsilon}",
            f"privacy.delta={self.delta}",
        ]


DEFAULTS: Json = {"delta": 1e-5, "unit": "client", "clients": 1000, "cohort": 100, "rounds": 100}


class Answer(PlanRow):
    """A plan within the budget in question, with its noise."""

    promise: Promised
    noise_multiplier: float  # noise / sensitivity
    noise_to_signal: float  # norm of the noise in the mean, in units of the largest possible mean update or gradient
    question: Question
    clip: float
    noise_std: float  # of one coordinate of the sum: multiplier times sensitivity


def ask(epsilon: float | None = None, noise_multiplier: float | None = None, **facts: object) -> Question:
    """A plan to compute from numbers: the noise for a budget epsilon, or epsilon for a noise multiplier."""
    if (epsilon is None) == (noise_multiplier is None):
        raise ConfigError(
            "both epsilon and a noise multiplier" if epsilon is not None else "neither epsilon nor a noise multiplier",
            why="one of the two must be given, and the other one is computed",
            fix="give --epsilon E to compute the noise, or --noise-multiplier Z to compute epsilon",
            code="one-direction",
        )
    question = Question(**{"epsilon": 1.0 if epsilon is None else epsilon, **DEFAULTS, **facts})
    return question if noise_multiplier is None else replace(question, epsilon=bought(noise_multiplier, question))


def bought(multiplier: float, question: Question) -> float:
    """Epsilon of the plan in question with this noise multiplier, by the accountant that would calibrate it.
    `question.epsilon` is ignored."""
    q = question
    check_multiplier(multiplier, "give a multiplier above 0: noise / sensitivity")
    if q.unit == "client" and q.rate < 1:
        event = Repeat(Poisson(q.rate, Gaussian(multiplier)), q.rounds)
        epsilon = epsilon_by(accountant(q.rounds, q.delta), event, q.delta, "zero_out")
    else:
        epsilon = epsilon_of(math.sqrt(q.turns) / multiplier, q.delta)
    if not 0 < epsilon < 1e6:
        raise UnsoundGuarantee(
            f"a noise multiplier of {multiplier:g} gives {('no finite epsilon' if epsilon else 'epsilon 0')} "
            f"at delta {q.delta:g}",
            why="delta alone already covers all that noise this strong can reveal"
            if epsilon == 0
            else "so little noise protects no one",
            fix="give a smaller multiplier, or a smaller delta" if epsilon == 0 else "give a larger multiplier",
            code="noise-buys-nothing",
        )
    return epsilon


def answer(question: Question) -> list[Answer]:
    """The plan in question, and then alternatives within the same epsilon and delta: other cohorts, rounds, mechanisms
    or sizes."""
    return [asked(question), *_others(question)]


def asked(question: Question) -> Answer:
    how = "central noise, hidden cohort" if question.unit == "client" else "noise in each gradient"
    return _row(question, f"as asked: {how}", question.run)


def enough_for(question: Question) -> list[SmallestFederation]:
    """The smallest federations in which the noise falls below each noise level (LOUD, QUIET) that the plan in question
    exceeds.
    """
    return planned(question).loud_enough(lambda delta: planned(replace(question, delta=delta)).phase)


def planned(question: Question, run: Sequence[str] | None = None) -> Planner:
    """Planner of the plan in question, or of another one given as arguments of `sordino run`."""
    return _planner(tuple(question.run if run is None else run), question.records, question.parameters)


@lru_cache(maxsize=32)
def _planner(run: tuple[str, ...], records: int, parameters: int) -> Planner:
    """Planner for a federation of clients with equal numbers of records."""
    experiment = config.load(None, run)
    sizes = alike(records, experiment.partition["clients"])
    public = PublicNumbers(kind="table", shape=(1,), classes=2, named=2, sizes=sizes)
    return Planner(PlannedRun(experiment, public, {"": parameters}).phases[-1])


def _others(question: Question) -> Iterator[Answer]:
    phase, people = planned(question).phase, question.clients * 10
    wider = wider_cohort(phase.experiment, 10, people, size_only=True)
    larger = [f"partition.clients={people}", *([wider] if wider else [])]
    others = [*alternatives(phase), *([("10 x the clients and the cohort", larger)] if people <= MOST_CLIENTS else [])]
    for what, changes in others:
        yield from _possible(question, what, [*untouched(question.run, changes), *changes])
    if question.unit == "example":
        yield from _possible(replace(question, records=4 * question.records), "4 x the records per client")


def _possible(question: Question, what: str, run: Sequence[str] | None = None) -> list[Answer]:
    try:
        return [_row(question, what, question.run if run is None else run)]
    except SordinoError:  # delta is no longer below 1 / protected units
        return []


def _row(question: Question, what: str, run: Sequence[str]) -> Answer:
    planner = planned(question, run)
    phase, plan, z = planner.phase, planner.phase.plan, planner.multiplier(planner.busiest)
    assert plan.offer is not None
    assert plan.budget is not None
    assert z is not None, "a budget that pays for no round is refused"
    subject, people, rounds = plan.offer.subject, len(phase.public.sizes), phase.experiment.rounds
    unit: Literal["client", "example"] = "client" if subject.unit == "client" else "example"
    cohort = round(phase.cohort.expected(people))
    # every round is planned alike, so that what the budget grants is what the receipt will say
    promise = Promised(
        **dict(subject),
        epsilon=plan.budget.epsilon,
        delta=plan.budget.delta,
        accountant=accountant(rounds, plan.budget.delta) if isinstance(plan.pricing, Counted) else EXACT,
        status="proved",
        because=(),
    )
    return planner.row(
        Answer,
        what,
        run,
        promise,
        bytes=2 * BYTES * question.parameters * cohort * rounds,  # of the parameters alone, down and up
        question=replace(question, clients=people, cohort=cohort, rounds=rounds, unit=unit),
        clip=question.clip,
        noise_std=z * question.clip * (2 if subject.neighbours == "replace" else 1),
    )


LIKELY_STEP = 0.1  # step size of a method that does not say


def alternatives(phase: PlannedPhase) -> Iterator[tuple[str, list[str]]]:
    """Alternatives to the plan of a phase: the name of each, and its changes as arguments of `sordino run`."""
    experiment, offer = phase.experiment, phase.plan.offer
    if offer is None or experiment.privacy.epsilon is None:
        return
    if wider := wider_cohort(experiment, 2, len(phase.public.sizes)):
        yield "twice the cohort", [wider]
    if experiment.rounds > 1:
        yield "half the rounds", [f"rounds={experiment.rounds // 2}"]
    yield from _other_gates(phase)


GROWS = {"poisson": "rate", "round_robin_peer": "fraction", "round_robin": "size", "random": "size"}


def wider_cohort(experiment: Experiment, factor: int, population: int, size_only: bool = False) -> str | None:
    """Change that makes the cohort of a round `factor` times as large; None where the cohort has no setting for it, or
    would be larger than the population. `size_only`: None, too, for a cohort that is set by a fraction or a rate.
    """
    key = GROWS.get(experiment.cohort["name"])
    if key is None or (size_only and key != "size"):
        return None
    value = experiment.cohort[key] * factor
    return f"cohort.{key}={value}" if value <= (population if key == "size" else 1) else None


def _other_gates(phase: PlannedPhase) -> Iterator[tuple[str, list[str]]]:
    experiment, offer, algorithm = phase.experiment, phase.plan.offer, phase.algorithm
    assert offer is not None
    lr, population = Estimates.of(algorithm).step_size or LIKELY_STEP, len(phase.public.sizes)
    records, hidden = offer.subject.unit != "client", phase.policy.hidden
    clip = (algorithm.read.cut or 1.0) if records else algorithm.uplink.bound(phase.coordinates).l2
    size = phase.cohort.expected(population)
    opened = ["read={name='open'}"] if experiment.read is not None else []
    fedavg = [f"algorithm={{name='fedavg', lr={lr}}}", *opened] if records else []
    bounded = f"uplink={{client=[{{name='clip', radius={clip}}}%s], server=[%s]}}"
    central = bounded % ("", "{name='noise', neighbours='zero_out'}")
    # without noise of the server sampling amplifies nothing: in turn, a client pays for fewer rounds
    in_turn = [f"cohort={{name='round_robin', size={max(1, round(size))}}}"] if hidden else []
    unit = "protect clients, " if records else ""
    if not (hidden and phase.plan.everyone_pays):
        coins = [] if hidden else [f"cohort={{name='poisson', rate={size / population}}}"]
        # each client at the rate that its own budget affords
        if phase.whole.budget is not None and phase.whole.budget.personal is not None:
            coins = [f"cohort={{name='by_budget', size={size:g}}}"]
        yield f"{unit}central noise, hidden cohort", [*fedavg, central, *coins]
    elif in_turn:
        yield "central noise, clients seen in turn", in_turn
    if records or algorithm.uplink.server:
        yield f"{unit}local noise", [*fedavg, bounded % (", {name='noise'}", ""), *in_turn]
    if not records:
        read = [f"read={{name='noisy_gradient', clip={clip}}}"] if experiment.read is not None else []
        raw = ["uplink={client=[{name='weigh'}]}"] if experiment.uplink is not None else []
        step = f"algorithm={{name='gaussian_gdp', clip={clip}, lr={lr}}}"
        yield "protect records, not clients", [step, *read, *raw, *in_turn]


def untouched(overrides: Sequence[str], changes: Sequence[str]) -> list[str]:
    """Overrides, without those whose settings are set again in `changes`."""
    new = [change.partition("=")[0] for change in changes]
    return [o for o in overrides if not any((o.partition("=")[0] + ".").startswith(f"{path}.") for path in new)]
