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

    def __post_init__(self) -> None:
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

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "epsilon": self.question.epsilon,
            "delta": self.question.delta,
            "unit": self.question.unit,
            "status": "proved",
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
    return Answer(
        what, "participants", "add_remove", z, q.rounds, z * math.sqrt(q.parameters) / q.cohort, accountant, q
    )


def _local(q: Question) -> Answer:
    times = -(-q.rounds * q.cohort // q.clients)
    z = exact_multiplier(q.epsilon, q.delta, times)
    noise = 2 * z * math.sqrt(q.parameters / q.cohort)
    return Answer("every client adds its own noise (round robin)", "server", "replace", z, times, noise, "gdp", q)


def _visible(q: Question) -> Answer:
    times = -(-q.rounds * q.cohort // q.clients)
    z = exact_multiplier(q.epsilon, q.delta, times)
    return Answer(
        "central noise, visible round-robin cohort",
        "participants",
        "zero_out",
        z,
        times,
        z * math.sqrt(q.parameters) / q.cohort,
        "gdp",
        q,
    )


def _records(q: Question, what: str) -> Answer:
    times = -(-q.rounds * q.cohort // q.clients)
    z = exact_multiplier(q.epsilon, q.delta, times)
    noise = 2 * z / q.records * math.sqrt(q.parameters / q.cohort)
    return Answer(
        f"{what}: one noised full-batch step per exposure (gaussian_gdp)",
        "server",
        "replace",
        z,
        times,
        noise,
        "gdp",
        q,
    )


def _alternatives(q: Question) -> Iterator[Answer]:
    if q.unit == "example":
        yield _records(replace(q, rounds=max(1, q.rounds // 2)), "half the rounds")
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
