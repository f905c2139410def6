"""`privacy plan`: a budget in, noise out, and what else the same budget would buy. No data, no training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from sordino.errors import ConfigError, UnsoundGuarantee
from sordino.ledger.calibrate import exact_multiplier, sampled_multiplier


@dataclass(frozen=True)
class Question:
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
        if not 0 < self.clip < math.inf:
            raise ConfigError(
                f"clip is {self.clip}", why="a clip needs a finite norm above 0", code="clip-not-positive"
            )
        for name in ("clients", "cohort", "rounds", "parameters", "records"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", why="it must be at least 1", code="out-of-range")
        if self.cohort > self.clients:
            raise ConfigError(
                f"a cohort of {self.cohort} out of {self.clients} clients",
                fix="make it at most clients",
                code="cohort-too-large",
            )
        protected = self.clients * (self.records if self.unit == "example" else 1)
        if self.delta >= 1 / protected:
            raise UnsoundGuarantee(
                f"delta {self.delta} is not below 1/{protected}",
                why=f"a mechanism may then publish one of the {protected} protected {self.unit}s outright",
                fix=f"set delta below {1 / protected:.1e}",
                code="delta-too-large",
            )


@dataclass(frozen=True)
class Answer:
    """One way to keep the promise."""

    what: str
    adversary: str
    neighbours: str
    noise_multiplier: float  # noise / sensitivity
    exposures: int
    noise_to_signal: float  # norm of the noise in the mean, in units of the largest possible mean update or gradient
    accountant: str
    question: Question
    set_up: tuple[str, ...]

    @property
    def noise_std(self) -> float:
        """Of one coordinate of the noised sum: multiplier times sensitivity."""
        return self.noise_multiplier * self.question.clip * (2 if self.neighbours == "replace" else 1)

    @property
    def run(self) -> list[str]:
        """What to give to `sordino run` for exactly this."""
        q = self.question
        return [
            f"rounds={q.rounds}",
            f"partition.clients={q.clients}",
            *self.set_up,
            f"privacy.epsilon={q.epsilon}",
            f"privacy.delta={q.delta}",
        ]

    def to_json(self) -> dict[str, Any]:
        q = self.question
        promise = {"epsilon": q.epsilon, "delta": q.delta, "unit": q.unit, "status": "proved"}
        return {
            **asdict(self),
            **promise,
            "cohort": q.cohort,
            "clip": q.clip,
            "noise_std": self.noise_std,
            "run": self.run,
        }


def answer(question: Question) -> list[Answer]:
    """The asked-for set-up first, then its alternatives."""
    direct = _central(question) if question.unit == "client" else _records(question, "as asked")
    return [direct, *_alternatives(question)]


def _central(q: Question, what: str = "as asked: central noise, hidden Poisson cohort") -> Answer:
    rate = q.cohort / q.clients
    if rate == 1:
        z, accountant = exact_multiplier(q.epsilon, q.delta, q.rounds), "gdp"
    else:
        z, accountant = sampled_multiplier(q.epsilon, q.delta, rate, q.rounds, "pld"), "pld"
    noise = z * math.sqrt(q.parameters) / q.cohort
    set_up = (*_uplink(q, "[{name='noise', neighbours='add_remove'}]"), f"cohort={{name='poisson', rate={rate}}}")
    return Answer(what, "participants", "add_remove", z, q.rounds, noise, accountant, q, set_up)


def _visible(q: Question) -> Answer:
    z, times = _unsampled(q)
    noise = z * math.sqrt(q.parameters) / q.cohort
    set_up = (*_uplink(q, "[{name='noise', neighbours='zero_out'}]"), _in_turn(q))
    what = "central noise, visible round-robin cohort"
    return Answer(what, "participants", "zero_out", z, times, noise, "gdp", q, set_up)


def _local(q: Question) -> Answer:
    z, times = _unsampled(q)
    noise = 2 * z * math.sqrt(q.parameters / q.cohort)
    set_up = (f"algorithm={{name='whole_update', radius={q.clip}}}", _in_turn(q))
    return Answer(
        "every client adds its own noise (round robin)", "server", "replace", z, times, noise, "gdp", q, set_up
    )


def _records(q: Question, what: str) -> Answer:
    z, times = _unsampled(q)
    noise = 2 * z / q.records * math.sqrt(q.parameters / q.cohort)
    set_up = (f"algorithm={{name='gaussian_gdp', clip={q.clip}}}", _in_turn(q))
    what = f"{what}: one noised full-batch step per exposure"
    return Answer(what, "server", "replace", z, times, noise, "gdp", q, set_up)


def _unsampled(q: Question) -> tuple[float, int]:
    """Multiplier and exposures of the busiest client where clients take turns and nothing amplifies."""
    times = -(-q.rounds * q.cohort // q.clients)
    return exact_multiplier(q.epsilon, q.delta, times), times


def _uplink(q: Question, server: str) -> tuple[str, str]:
    return "algorithm=fedavg", f"uplink={{client=[{{name='clip', radius={q.clip}}}], server={server}}}"


def _in_turn(q: Question) -> str:
    return f"cohort={{name='round_robin', size={q.cohort}}}"


def _alternatives(q: Question) -> Iterator[Answer]:
    if q.unit == "example":
        yield _records(replace(q, rounds=max(1, q.rounds // 2)), "half the rounds")
        if q.delta < 1 / (q.clients * q.records * 4):
            yield _records(replace(q, records=q.records * 4), "four times the records per client")
        if q.delta < 1 / q.clients:
            yield _central(replace(q, unit="client"), "protect whole clients instead: central noise")
        return
    if q.cohort * 2 <= q.clients:
        yield _central(replace(q, cohort=q.cohort * 2), "twice the cohort")
    yield _central(replace(q, rounds=max(1, q.rounds // 2)), "half the rounds")
    if q.delta < 1 / (q.clients * 10):
        yield _central(replace(q, clients=q.clients * 10, cohort=q.cohort * 10), "ten times the clients and cohort")
    yield _visible(q)
    yield _local(q)
    if q.delta < 1 / (q.clients * q.records):
        yield _records(replace(q, unit="example"), f"protect records instead ({q.records} per client)")
