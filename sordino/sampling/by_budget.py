"""Client sampling by personal budgets. The plan decides at which rate each client takes part (`Plan.rates`); the
cohorts below draw by these rates.

    by_budget            one hidden coin each, all rounds alike, at the rate a client's budget affords (Boenisch et al.,
                         NeurIPS 2023)
    threshold            one hidden coin each, at rates that change with a threshold planned in advance (after
                         Jorgensen, Yu and Cormode, ICDE 2015)
    threshold_published  as printed in "Consideration of FedProx in Privacy Protection" (Electronics 12(20), 2023):
                         thresholds from what is left of the budgets, participation visible, only drawn clients pay. It
                         does not keep the budgets it names; the receipt says what holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from sordino.accounting.thresholds import LostBudget
from sordino.errors import BELOW_ONE, ConfigError, check_range, is_number
from sordino.sampling import kinds
from sordino.sampling.draws import SamplingWords
from sordino.sampling.kinds import Cohort, IndependentCohort, Rates, alike


@dataclass(frozen=True)
class Personal(IndependentCohort):
    """Client sampling with a rate of its own for each client, by its personal budget."""

    personal: ClassVar[bool] = True

    def toss(self, population: int, coins: SamplingWords, rates: Rates | None = None) -> list[int]:
        assert rates is not None, "the plan of personal budgets says the rates"
        tossed = ((coins.words(population) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        return np.flatnonzero(tossed < rates).tolist()

    def participations(self, rounds: int, population: int) -> Sequence[int]:
        return alike(rounds, population)

    def expected(self, population: int) -> float:
        return float(population)  # at most; the plan knows the rates of each round


@dataclass(frozen=True)
class ByBudget(Personal):
    """A hidden cohort: each client is drawn at the rate that its own budget affords."""

    hidden: ClassVar[bool] = True
    size: float  # expected

    def expected(self, population: int) -> float:
        return self.size


@dataclass(frozen=True)
class _ByThreshold(Personal):
    waste: Literal["weighted", "sum", "fixed", "count"] = "weighted"
    waste_weights: Sequence[float] = (0.7, 0.3)  # of sampling and of noise, where waste is "fixed" or "count"

    def __post_init__(self) -> None:
        if len(self.waste_weights) != 2 or not all(is_number(w) and 0 <= w < math.inf for w in self.waste_weights):
            raise ConfigError(
                f"waste_weights = {self.waste_weights!r}",
                why="they weigh the loss by sampling and the loss by noise: two numbers, neither of them negative",
                fix="set for example waste_weights = [0.7, 0.3]",
                code="waste-weights",
            )

    @property
    def by(self) -> LostBudget:
        first, second = self.waste_weights
        return LostBudget(self.waste, (float(first), float(second)))


@dataclass(frozen=True)
class Threshold(_ByThreshold):
    """Hidden cohort in which all clients share a round's noise multiplier, and those with a budget below its threshold
    are drawn less often.
    """

    hidden: ClassVar[bool] = True


@dataclass(frozen=True)
class ThresholdPublished(_ByThreshold):
    """Threshold sampling of PDP-Prox as published; it is not proved to keep the budgets."""

    cost: Literal["one_round", "share", "full_round"] = "one_round"
    retire_below: float = 0.01  # of the smallest budget: who has less left takes no part any more

    def __post_init__(self) -> None:
        super().__post_init__()
        why = "it is a share of the smallest budget"
        check_range("retire_below", self.retire_below, BELOW_ONE, "share-out-of-range", why=why)


COHORTS: dict[str, type[Cohort]] = {
    **kinds.COHORTS,
    "by_budget": ByBudget,
    "threshold": Threshold,
    "threshold_published": ThresholdPublished,
}
