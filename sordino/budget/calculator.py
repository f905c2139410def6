"""`privacy plan` without data: from a budget to noise and back, what else would keep the promise, and how many clients
it takes to be heard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, NamedTuple

from sordino.accounting.accountants import EXACT, epsilon_by
from sordino.accounting.calibrate import exact_multiplier, sampled_multiplier
from sordino.accounting.claims import Subject
from sordino.accounting.events import Gaussian, Json, Poisson, Repeat, check_multiplier
from sordino.accounting.facts import Fact, Number
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.accounting.statement import Promised
from sordino.errors import COUNT, POSITIVE, ConfigError, UnsoundGuarantee, UnsupportedEvent, check_range

# noise / largest signal of one round: above the first it mostly shows noise, below the second a signal is plain
LOUD, QUIET = 1.0, 0.3
MANKIND = 10**10  # a plan that needs more clients needs another idea
BYTES = 4  # of a float32 parameter on the wire


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
        check_range("clip", self.clip, POSITIVE, "clip-not-positive")
        for name in ("clients", "cohort", "rounds", "parameters", "records"):
            check_range(name, getattr(self, name), COUNT, "out-of-range")
        if self.cohort > self.clients:
            raise ConfigError(
                f"a cohort of {self.cohort} out of {self.clients} clients",
                why="a client takes part at most once in a round",
                fix="make the cohort at most as large as the number of clients",
                code="cohort-too-large",
            )
        if self.delta >= 1 / self.protected:
            raise UnsoundGuarantee(
                f"delta {self.delta} is not below 1/{self.protected}",
                why=f"with such a delta a mechanism may publish one of the {self.protected} protected {self.unit}s in "
                "full and still keep its promise",
                fix=f"set delta below {1 / self.protected:.1e}",
                code="delta-too-large",
            )

    @property
    def protected(self) -> int:
        return self.clients * (self.records if self.unit == "example" else 1)

    @property
    def rate(self) -> float:
        return self.cohort / self.clients

    @property
    def turns(self) -> int:
        """How often the busiest client takes part where clients take turns and nothing amplifies."""
        return -(-self.rounds * self.cohort // self.clients)


DEFAULTS: Json = {"delta": 1e-5, "unit": "client", "clients": 1000, "cohort": 100, "rounds": 100}


class PlanRow(Fact):
    """A set-up and its price, as a table of plans shows it; None: nothing is known."""

    what: str
    clients: int
    cohort: Number
    rounds: int
    promise: Promised | None  # None: nothing is promised
    noise_multiplier: Number | None
    exposures: int
    noise_to_signal: float | None  # norm of the noise in the mean over the largest possible signal
    bytes: int
    minutes: float | None
    run: tuple[str, ...]  # what to give to `sordino run`


@dataclass(frozen=True)
class Answer:
    """One way to keep the promise."""

    what: str
    promise: Promised
    noise_multiplier: float  # noise / sensitivity
    exposures: int
    noise_to_signal: float  # norm of the noise in the mean, in units of the largest possible mean update or gradient
    question: Question
    set_up: tuple[str, ...]

    @property
    def noise_std(self) -> float:
        """The deviation of the noise in one coordinate of the sum: multiplier times sensitivity."""
        return self.noise_multiplier * self.question.clip * (2 if self.promise.neighbours == "replace" else 1)

    @property
    def bytes(self) -> int:
        """The bytes of the parameters alone, down and up."""
        return 2 * BYTES * self.question.parameters * self.question.cohort * self.question.rounds

    @property
    def run(self) -> list[str]:
        """The arguments of `sordino run` for exactly this answer."""
        q = self.question
        return [
            f"rounds={q.rounds}",
            f"partition.clients={q.clients}",
            *self.set_up,
            f"privacy.epsilon={q.epsilon}",
            f"privacy.delta={q.delta}",
        ]

    @property
    def row(self) -> PlanRow:
        q = self.question
        return PlanRow(
            what=self.what,
            clients=q.clients,
            cohort=q.cohort,
            rounds=q.rounds,
            promise=self.promise,
            noise_multiplier=self.noise_multiplier,
            exposures=self.exposures,
            noise_to_signal=self.noise_to_signal,
            bytes=self.bytes,
            minutes=None,  # nothing was measured
            run=tuple(self.run),
        )

    def to_json(self) -> Json:
        question = asdict(self.question)
        return {**self.row.to_json(), "question": question, "clip": self.question.clip, "noise_std": self.noise_std}


def ask(epsilon: float | None = None, noise_multiplier: float | None = None, **facts: object) -> Question:
    """A question in numbers, in one direction: from a budget, or from the budget that a noise multiplier buys."""
    if (epsilon is None) == (noise_multiplier is None):
        raise ConfigError(
            "both epsilon and a noise multiplier" if epsilon is not None else "neither epsilon nor a noise multiplier",
            why="one of the two must be given, and the other one is computed",
            fix="give --epsilon E to compute the noise, or --noise-multiplier Z to compute epsilon",
            code="one-direction",
        )
    question = Question(**{"epsilon": 1.0 if epsilon is None else epsilon, **DEFAULTS, **facts})
    return question if noise_multiplier is None else replace(question, epsilon=bought(noise_multiplier, question))


def answer(question: Question) -> list[Answer]:
    """The asked-for set-up first, then its alternatives."""
    return [asked(question), *_alternatives(question)]


def asked(q: Question) -> Answer:
    return _central(q) if q.unit == "client" else _records(q)


def bought(multiplier: float, question: Question) -> float:
    """The epsilon that this noise buys in the set-up asked for, by the accountant that calibrates it
    (`question.epsilon` is not read).
    """
    q = question
    check_multiplier(multiplier, "give a multiplier above 0: noise / sensitivity")
    try:
        if q.unit == "client" and q.rate < 1:
            epsilon = epsilon_by("pld", Repeat(Poisson(q.rate, Gaussian(multiplier)), q.rounds), q.delta, "zero_out")
        else:
            epsilon = epsilon_of(math.sqrt(q.turns) / multiplier, q.delta)
    except UnsupportedEvent:
        epsilon = math.inf
    if not 0 < epsilon < 1e6:
        raise UnsoundGuarantee(
            f"a noise multiplier of {multiplier:g} gives {('no finite epsilon' if epsilon else 'epsilon 0')} "
            f"at delta {q.delta:g}",
            why="this delta alone already allows whatever such strong noise still shows"
            if epsilon == 0
            else "so little noise protects nobody",
            fix="give a smaller multiplier, or a smaller delta" if epsilon == 0 else "give a larger multiplier",
            code="noise-buys-nothing",
        )
    return epsilon


# set-ups --------------------------------------------------------------------------------------------------------------


LOCAL = Subject(unit="client", neighbours="replace", adversary="server")
CENTRAL = Subject(unit="client", neighbours="zero_out", adversary="participants")


def _promise(q: Question, about: Subject, accountant: str = EXACT) -> Promised:
    known = {"unit": q.unit, "epsilon": q.epsilon, "delta": q.delta, "accountant": accountant}
    return Promised(**{**dict(about), **known, "status": "proved", "because": ()})


def _central(q: Question, what: str = "as asked: central noise, hidden cohort") -> Answer:
    if q.rate == 1:
        z, accountant = exact_multiplier(q.epsilon, q.delta, q.rounds), "gdp"
    else:
        z, accountant = sampled_multiplier(q.epsilon, q.delta, q.rate, q.rounds, "pld"), "pld"
    noise = z * math.sqrt(q.parameters) / q.cohort
    set_up = (*_uplink(q, "[{name='noise', neighbours='zero_out'}]"), f"cohort={{name='poisson', rate={q.rate}}}")
    return Answer(what, _promise(q, CENTRAL, accountant), z, q.rounds, noise, q, set_up)


def _visible(q: Question) -> Answer:
    z = exact_multiplier(q.epsilon, q.delta, q.turns)
    noise = z * math.sqrt(q.parameters) / q.cohort
    set_up = (*_uplink(q, "[{name='noise', neighbours='zero_out'}]"), _in_turn(q))
    what = "central noise, clients seen in turn"
    return Answer(what, _promise(q, CENTRAL), z, q.turns, noise, q, set_up)


def _local(q: Question, what: str = "local noise, by each client") -> Answer:
    z = exact_multiplier(q.epsilon, q.delta, q.turns)
    noise = 2 * z * math.sqrt(q.parameters / q.cohort)
    set_up = (f"algorithm={{name='whole_update', radius={q.clip}}}", _in_turn(q))
    return Answer(what, _promise(q, LOCAL), z, q.turns, noise, q, set_up)


def _records(q: Question, what: str = "as asked: noise in each gradient") -> Answer:
    z = exact_multiplier(q.epsilon, q.delta, q.turns)
    noise = 2 * z / q.records * math.sqrt(q.parameters / q.cohort)
    set_up = (f"algorithm={{name='gaussian_gdp', clip={q.clip}}}", _in_turn(q))
    return Answer(what, _promise(q, LOCAL), z, q.turns, noise, q, set_up)


def _uplink(q: Question, server: str) -> tuple[str, str]:
    return "algorithm=fedavg", f"uplink={{client=[{{name='clip', radius={q.clip}}}], server={server}}}"


def _in_turn(q: Question) -> str:
    return f"cohort={{name='round_robin', size={q.cohort}}}"


def _alternatives(q: Question) -> Iterator[Answer]:
    same = _central if q.unit == "client" else _records
    if q.cohort * 2 <= q.clients:
        yield same(replace(q, cohort=q.cohort * 2), "twice the cohort")
    if q.rounds > 1:
        yield same(replace(q, rounds=q.rounds // 2), "half the rounds")
    if q.delta < 1 / (q.protected * 10):
        yield same(replace(q, clients=q.clients * 10, cohort=q.cohort * 10), "10 x the clients and the cohort")
    if q.unit == "client":
        yield _visible(q)
        yield _local(q)
        if q.delta < 1 / (q.clients * q.records):
            yield _records(replace(q, unit="example"), "protect records, not clients")
        return
    if q.delta < 1 / (q.protected * 4):
        yield _records(replace(q, records=q.records * 4), "4 x the records per client")
    yield _central(replace(q, unit="client"), "protect clients, central noise")
    yield _local(replace(q, unit="client"), "protect clients, local noise")


# loud enough ----------------------------------------------------------------------------------------------------------


class Enough(NamedTuple):
    """The smallest federation, grown with its cohort in proportion, in which noise / largest signal falls below
    `below`.
    """

    below: float
    clients: int
    cohort: int
    delta: float  # smaller than the one asked for where that would no longer lie below 1 / protected units
    noise_to_signal: float


def enough(
    below: float, clients: int, cohort: float, delta: float, units: int, power: int, ratio: Callable[[float], float]
) -> Enough | None:
    """The smallest federation in which the noise is quiet enough; None where it has more clients than there are
    people.

    At a fixed sampling rate and number of rounds the multiplier does not depend on the number of clients, so
    `ratio(delta)`, at the size of now, falls as 1/cohort (central noise, power 1) or 1/sqrt(cohort) (every client's
    own, power 2). Only a smaller delta needs a new calibration. `units` are protected per client.
    """
    while True:
        now = ratio(delta)
        growth = (now / below) ** power
        if growth * clients > MANKIND:
            return None
        grown = math.floor(cohort * growth) + 1 if now >= below else math.ceil(cohort)
        people = math.ceil(grown * clients / cohort)
        if delta < 1 / (people * units):
            return Enough(below, people, grown, delta, now * (cohort / grown) ** (1 / power))
        delta = 10.0 ** -(math.floor(math.log10(people * units)) + 1)


def enough_for(q: Question) -> list[Enough]:
    """The smallest federations for both marks that the set-up asked for does not reach yet."""
    power = 1 if q.unit == "client" else 2
    units = q.records if q.unit == "example" else 1

    def ratio(delta: float) -> float:
        return asked(replace(q, delta=delta)).noise_to_signal

    return marks(lambda below: enough(below, q.clients, q.cohort, q.delta, units, power, ratio), ratio(q.delta))


def marks(search: Callable[[float], Enough | None], ratio: float) -> list[Enough]:
    return [found for below in (LOUD, QUIET) if ratio >= below and (found := search(below))]


def warning(ratio: float, ways: list[str]) -> str | None:
    """A warning where the noise of a round is louder than any signal, with ways out of it; None where it is not."""
    if ratio <= LOUD:
        return None
    loud = (
        f"The noise in one round's mean is {ratio:.3g} times the largest possible signal: a single round "
        "then shows mostly noise, and many rounds may still learn."
    )
    return " ".join([loud, *ways])


def ways_out(found: Sequence[Enough], delta: float) -> list[str]:
    return [
        f"It falls below {way.below:g} with {way.clients:,} such clients, {way.cohort:,} in a round"
        + (
            "."
            if way.delta == delta
            else f", at delta {way.delta:g}: {delta:g} would not be below 1 / protected units."
        )
        for way in found
    ]


NO_WAY = "More clients than there are people would not change that: plan fewer rounds, a smaller model or another unit."
