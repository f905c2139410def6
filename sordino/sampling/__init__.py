"""Client sampling: the cohort of each round, and stragglers.

Cohorts say in how many rounds each client takes part, and what amplification by sampling they earn. A draw depends on
(key, round) only, so methods under comparison see the same cohorts. The planned number of participations is known
before training, since a client's budget is divided by it. Amplification belongs to the sampler (Balle, Barthe &
Gaboardi 2018): only hidden, independent coins earn it, and never against a server that sees who uploads. Fixed-size and
shuffled cohorts earn nothing here: they are not what the sampled accountants assume (Chua et al. 2024).

The cost of a draw grows with the cohort, not with the population, and facts about every client are one array: a
memoryview of it, whose items are plain integers.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sordino import keys
from sordino.accounting.events import Event, Poisson
from sordino.errors import COUNT, FRACTION, ConfigError, UnsoundGuarantee, check_range
from sordino.sampling.draws import SamplingWords, Seeded, heads, subset

Rates = NDArray[np.float64]


class Cohort(ABC):
    """A rule that draws the clients of each round. The defaults are those of a visible cohort."""

    hidden: ClassVar[bool] = False
    personal: ClassVar[bool] = False  # drawn by personal budgets, at the rates of the plan

    @abstractmethod
    def draw(self, round_index: int, population: int, key: keys.Key) -> list[int]:
        """Draws the clients of a round: their numbers below `population`."""

    @abstractmethod
    def participations(self, rounds: int, population: int) -> Sequence[int]:
        """The planned number of rounds of every client, by which its budget is divided."""

    @abstractmethod
    def expected(self, population: int) -> float:
        """The public expected size of a cohort, by which every mean is divided, however many clients take part."""

    def amplify(self, event: Event, adversary: str) -> Event:
        """The privacy event of a round against this adversary: `event` on a secret sample of clients, where the
        adversary cannot see who takes part; by default `event` unchanged.
        """
        return event

    def warnings(self, rounds: int, population: int) -> list[str]:
        return []


@dataclass(frozen=True)
class Everyone(Cohort):
    """Every client takes part in every round."""

    def draw(self, round_index: int, population: int, key: keys.Key) -> list[int]:
        return list(range(_people(population)))

    def participations(self, rounds: int, population: int) -> Sequence[int]:
        return alike(rounds, population)

    def expected(self, population: int) -> float:
        return float(_people(population))


@dataclass(frozen=True)
class _OfSize(Cohort):
    size: int

    def __post_init__(self) -> None:
        check_range("the size of a cohort", self.size, COUNT, "cohort-empty")

    def expected(self, population: int) -> float:
        _fits(self.size, population)
        return float(self.size)


@dataclass(frozen=True)
class RoundRobin(_OfSize):
    """A cohort of the next `size` clients in a circle. The number of rounds of each client is known exactly, and
    differs by at most 1 between clients.
    """

    def draw(self, round_index: int, population: int, key: keys.Key) -> list[int]:
        _fits(self.size, population)
        return [(round_index * self.size + i) % population for i in range(self.size)]

    def participations(self, rounds: int, population: int) -> Sequence[int]:
        _fits(self.size, population)
        each, more = divmod(rounds * self.size, population)
        return (each + (np.arange(population) < more)).data


@dataclass(frozen=True)
class RoundRobinPeer(Cohort):
    """Round robin as the compared library publishes it, for a fraction f of K clients and R rounds: int(1/f) blocks of
    int(f K) clients, and R f planned rounds for every client.

    Right only where 1/f is a whole number that divides everything evenly; `warnings` says what goes wrong otherwise.
    """

    fraction: float

    def __post_init__(self) -> None:
        check_range("fraction", self.fraction, FRACTION, "fraction-out-of-range")

    def draw(self, round_index: int, population: int, key: keys.Key) -> list[int]:
        size = self._size(population)
        start = round_index % self._blocks(population) * size
        return list(range(start, start + size))

    def participations(self, rounds: int, population: int) -> Sequence[int]:
        return alike(max(1, round(rounds * self.fraction)), population)

    def actual(self, rounds: int, population: int) -> Sequence[int]:
        """The number of rounds in which each client really takes part."""
        blocks, size = self._blocks(population), self._size(population)
        turns = np.array([len(range(block, rounds, blocks)) for block in range(blocks)])
        return np.pad(np.repeat(turns, size), (0, population - blocks * size)).data

    def overspend(self, rounds: int, population: int) -> float:
        """Largest part of its budget that a client spends, above 1 where it takes part in more rounds than `rounds *
        fraction`, into which its budget is divided.
        """
        return max(self.actual(rounds, population)) / (rounds * self.fraction)

    def expected(self, population: int) -> float:
        return float(self._size(population))

    def warnings(self, rounds: int, population: int) -> list[str]:
        never, over = list(self.actual(rounds, population)).count(0), self.overspend(rounds, population)
        size, share = self._size(population), self.fraction * population
        remarks = {
            f"a round has {size} of {population} clients, as published: {share:g} is cut": abs(size - share) > 1e-9,
            f"the busiest client is drawn for {over:.3f} of its budget: what is above 1 it abstains": over > 1 + 1e-9,
            f"{never} of {population} clients never take part": never > 0,
        }
        return [remark for remark, true in remarks.items() if true]

    def _blocks(self, population: int) -> int:
        return min(int(1 / self.fraction), population // self._size(population))

    def _size(self, population: int) -> int:
        return max(int(self.fraction * _people(population)), 1)


@dataclass(frozen=True)
class Random(_OfSize):
    """A cohort of `size` clients without replacement. The number of rounds in which a client is drawn is random; one
    that is drawn more often than the planned `t_plan` abstains.

    The default plan is the 99.9% quantile of this number (binomial), at least 1. Abstaining depends on counts alone and
    leaks nothing.
    """

    t_plan: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.t_plan is not None:
            check_range(
                "t_plan",
                self.t_plan,
                COUNT,
                "t-plan-not-positive",
                why="it is the planned number of rounds in which a client takes part",
            )

    def draw(self, round_index: int, population: int, key: keys.Key) -> list[int]:
        _fits(self.size, population)
        drawn: list[int] = subset(keys.word(_coins(key, round_index)), self.size, population).tolist()
        return drawn

    def participations(self, rounds: int, population: int) -> Sequence[int]:
        _fits(self.size, population)
        planned = self.t_plan or max(1, binomial_quantile(0.999, rounds, self.size / population))
        return alike(min(planned, rounds), population)


class IndependentCohort(Cohort):
    """Cohort by independent coins, one per client and round. Whoever knows the coins knows who takes part, so in a run
    with real noise a hidden cohort gets its coins from the operating system, not from a seed.
    """

    @abstractmethod
    def toss(self, population: int, coins: SamplingWords, rates: Rates | None = None) -> list[int]:
        """The clients of a round, each drawn by a coin; `rates`: each client's rate by the plan, where budgets are
        personal.
        """

    def draw(self, round_index: int, population: int, key: keys.Key) -> list[int]:
        return self.toss(population, Seeded(_coins(key, round_index)))


@dataclass(frozen=True)
class PoissonSample(IndependentCohort):
    """Poisson sampling, the only cohort that amplifies: a coin decides for every client in every round.

    The drawn clients stay hidden, so every client pays for every round.
    """

    hidden: ClassVar[bool] = True
    rate: float

    def __post_init__(self) -> None:
        check_range("rate", self.rate, FRACTION, "rate-out-of-range")

    def toss(self, population: int, coins: SamplingWords, rates: Rates | None = None) -> list[int]:
        drawn: list[int] = heads(coins, self.rate, _people(population)).tolist()
        return drawn

    def participations(self, rounds: int, population: int) -> Sequence[int]:
        return alike(rounds, population)

    def expected(self, population: int) -> float:
        return self.rate * _people(population)

    def amplify(self, event: Event, adversary: str) -> Event:
        return event if adversary == "server" else Poisson(self.rate, event)


# of a hidden cohort: what its guarantee rests on
BY_THE_LIBRARY = "draw", "toss", "participations", "expected", "amplify"


def check_promises(own: Cohort) -> None:
    """Refuses a user's own cohort that claims an amplification which is not proved: only independent sampling by the
    library, at the rate that the cohort gives, is.
    """
    made = type(own)
    if own.hidden:
        sound = isinstance(own, PoissonSample) and all(
            inspect.getattr_static(made, name) is inspect.getattr_static(PoissonSample, name) for name in BY_THE_LIBRARY
        )
    else:
        sound = inspect.getattr_static(made, "amplify") is inspect.getattr_static(Cohort, "amplify")
    if not sound or own.personal:
        raise UnsoundGuarantee(
            f"the cohort {made.__name__} claims privacy amplification for its own draw",
            why="amplification is proved only for independent coins that the library tosses and keeps hidden; for "
            "another rule it is not known",
            fix="leave out `hidden`, `personal` and `amplify`: then the cohort is visible, and each client pays "
            "for its own rounds. For a hidden cohort, write a subclass of PoissonSample that says its rate, and "
            "nothing else",
            code="own-cohort-amplifies",
        )


def each_once(drawn: Sequence[int], population: int) -> list[int]:
    """The clients of a draw, checked: one that is drawn twice, or under two numbers, adds twice what it pays for."""
    numbers = list(map(int, drawn))
    if numbers != list(drawn) or len({k for k in numbers if 0 <= k < population}) < len(numbers):
        raise ConfigError(
            f"the clients {list(drawn)} are drawn, of {population}",
            why="noise is sized, and each client pays, for one contribution a round, under its one number",
            fix="draw whole numbers from 0 on, each at most once; `sordino check` tries it",
            code="own-cohort-draws",
        )
    return numbers


COHORTS: dict[str, type[Cohort]] = {
    "everyone": Everyone,
    "round_robin": RoundRobin,
    "round_robin_peer": RoundRobinPeer,
    "random": Random,
    "poisson": PoissonSample,
}


def binomial_quantile(level: float, trials: int, probability: float) -> int:
    """The smallest t with Pr[Binomial(trials, probability) <= t] >= level."""
    if probability == 1:
        return trials
    from scipy.special import bdtr

    low, high = -1, trials
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if bdtr(middle, trials, probability) >= level else (middle, high)
    return high


def _coins(key: keys.Key, round_index: int) -> keys.Key:
    return keys.fold(key, "cohort", round_index)


def alike(value: int, population: int) -> memoryview[Any]:
    """The same number for every client, stored once."""
    return np.broadcast_to(np.int64(value), _people(population)).data


def _people(population: int) -> int:
    if population < 1:
        raise ConfigError("a federation without clients", fix="give at least 1 client", code="no-clients")
    return population


def _fits(size: int, population: int) -> None:
    if size > _people(population):
        raise ConfigError(
            f"a cohort of {size} out of {population} clients",
            why="a client takes part at most once in a round",
            fix=f"set a size of at most {population}",
            code="cohort-larger-than-population",
        )
