"""Slow clients (Li et al., MLSys 2020): the same clients are slow in every compared method, because only (seed, round) decides.

drop   a slow client is left out: nothing computed, nothing spent
keep   it does between 1 and E-1 of its E epochs, and that counts
late   it computes and uploads after the deadline: spent, but not used
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sordino import keys
from sordino.errors import ConfigError


class Crew(NamedTuple):
    active: list[int]
    late: frozenset[int]
    epochs: Mapping[int, int]  # of the slow ones that keep partial work


@dataclass(frozen=True)
class Stragglers:
    share: float = 0.0
    policy: Literal["drop", "keep", "late"] = "drop"
    epochs: int | None = None  # E of the algorithm, where it counts in epochs

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ConfigError(
                f"straggler share is {self.share}", why="a share lies in [0, 1]", code="share-out-of-range"
            )
        if self.policy == "keep" and self.share > 0 and (self.epochs is None or self.epochs < 2):
            raise ConfigError(
                'stragglers with policy "keep" need at least two local epochs',
                why="with one epoch or a number of steps there is no partial work to keep",
                fix='set algorithm.local_epochs to 2 or more, or stragglers.policy to "drop"',
                code="no-partial-work",
            )

    def split(self, cohort: Sequence[int], t: int, key: int) -> Crew:
        slow_count = len(cohort) - round(len(cohort) * (1 - self.share))  # Python rounds half to even
        if slow_count == 0:
            return Crew(list(cohort), frozenset(), {})
        here = keys.fold(key, "stragglers", t)
        slow = [cohort[i] for i in keys.permutation(here, len(cohort))[:slow_count].tolist()]
        if self.policy == "drop":
            dropped = frozenset(slow)
            return Crew([k for k in cohort if k not in dropped], frozenset(), {})
        if self.policy == "late":
            return Crew(list(cohort), frozenset(slow), {})
        assert self.epochs is not None
        efforts = 1 + keys.integers(keys.fold(here, "epochs"), slow_count, self.epochs - 1)
        return Crew(list(cohort), frozenset(), dict(zip(slow, efforts.tolist(), strict=True)))
