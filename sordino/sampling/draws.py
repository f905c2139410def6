"""Random subsets and independent coins from counter-based keys, at a cost in proportion to the number drawn, not to the
population.

Slow clients (Li et al., MLSys 2020) and injected faults: the same clients in every compared method, because only (seed,
round) decides.

    drop   a slow client is left out: nothing computed, nothing spent
    keep   it does between 1 and E-1 of its E epochs; of one epoch, or of a number of steps, any part of the batches;
           its upload counts
    late   it computes and uploads after the deadline: spent, but not used

A fault strikes after the budget of the round was reserved, which stays spent. `lost` clients never answer, `late` ones
too late.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sordino import keys
from sordino.errors import ConfigError
from sordino.keys import Key
from sordino.privacy.noise.sources import SystemNoise
from sordino.types import Tensor

Words = NDArray[np.uint64]


class SamplingWords(Protocol):
    """Source of the random words that decide who takes part in a round."""

    def words(self, count: int, *part: int | str) -> Words: ...


@dataclass(frozen=True)
class Seeded:
    """Random words from a key: the same for all who know the seed."""

    key: keys.Key

    def words(self, count: int, *part: int | str) -> Words:
        return keys.words(keys.word(keys.fold(self.key, *part)), count)


class SystemWords:
    """Random words from the operating system, which cannot be drawn again."""

    def __init__(self) -> None:
        self._source = SystemNoise()

    def words(self, count: int, *part: int | str) -> Words:
        return self._source.words(count).cpu().numpy().view(np.uint64)


LONGEST = 1 << 16  # most coins that one random word may decide


def subset(key: int, size: int, population: int) -> NDArray[np.int64]:
    """Random subset: `size` different numbers below `population`, in rising order; all sets of this size are equally
    likely.

    They are the first different values of a sequence of independent uniform numbers. No set is preferred, because the
    sequence treats all numbers below `population` alike. A number is a random word cut to whole bits; values beyond the
    population are rejected, never folded back.
    """
    if 2 * size > population:  # cheaper to draw the others
        return np.setdiff1d(np.arange(population), subset(key, population - size, population), assume_unique=True)
    drawn = 2 * size + 16
    while size:
        numbers = keys.words(key, drawn) >> np.uint64(64 - (population - 1).bit_length())
        different, first = np.unique(numbers[numbers < population], return_index=True)
        if len(different) >= size:
            return np.sort(different[np.argsort(first)[:size]]).astype(np.int64)
        drawn *= 2  # the same words and as many again
    return np.empty(0, np.int64)


def heads(tossed: SamplingWords, rate: float, coins: int) -> NDArray[np.int64]:
    """The indices of the heads among `coins` independent coins, at a cost in proportion to the number of heads (and to
    1/65536 of the coins).

    One random word decides where the first head among the next few coins is, or that there is none. Coins behind a head
    are still undrawn, like those behind a block without a head, so the next word starts there.
    """
    if rate == 1:
        return np.arange(coins)
    thresholds = first_head(rate)
    block, found, passed = len(thresholds), [], 0
    each = -math.expm1(block * math.log1p(-rate)) / rate  # mean number of coins that a word decides
    for part in count():
        words = tossed.words(int(1.1 * (coins - passed) / each) + 16, part)
        first = np.searchsorted(thresholds, words, side="right")  # `block` where there is no head
        settled = passed + np.cumsum(np.minimum(first + 1, block))
        found.append(settled[first < block] - 1)
        passed = int(settled[-1])
        if passed >= coins:
            break
    drawn = np.concatenate(found)
    return drawn[drawn < coins]


@lru_cache(maxsize=8)
def first_head(rate: float) -> NDArray[np.uint64]:
    """Probabilities that the first head is one of the first j + 1 coins, 1 - (1 - rate)^(j + 1), in units of 2^-64, for
    about 1 / rate coins.

    Computed in whole numbers with 128 bits to spare, so each is off by less than one unit: a round over N clients is
    then within 2 N 2^-64 of independent coins in total variation.
    """
    numerator, denominator = rate.as_integer_ratio()
    none, thresholds = 1 << 192, []
    for _ in range(max(1, round(min(1 / rate, LONGEST)))):
        none -= none * numerator // denominator
        thresholds.append(((1 << 192) - none) >> 128)
    return np.array(thresholds, dtype=np.uint64)


class Turnout(NamedTuple):
    """Clients of a round: those that compute, those that are late or lost, and how much of their work slow ones do."""

    active: list[int]
    late: frozenset[int]
    epochs: Mapping[int, int]  # number of epochs of each slow client that keeps whole ones
    lost: frozenset[int] = frozenset()
    parts: Mapping[int, float] = {}  # share of its batches of each slow client that keeps a part


@dataclass(frozen=True)
class Stragglers:
    """Slow clients: their share and their treatment (drop, keep, late); and injected faults: the probabilities that an
    active client is lost, or late.
    """

    share: float = 0.0
    policy: Literal["drop", "keep", "late"] = "drop"
    epochs: int | None = None  # E of the algorithm, where it counts in epochs
    divisible: bool = True  # an epoch, or a number of steps, may be left unfinished
    faults: tuple[float, float] = (0.0, 0.0)  # probabilities that an active client is lost, or late
    own_fate: bool = False  # hidden cohort: whether a client is slow must not depend on others

    def __post_init__(self) -> None:
        if not all(0 <= share <= 1 for share in (self.share, *self.faults)) or sum(self.faults) > 1:
            raise ConfigError(
                f"the shares are {self.share} stragglers, {self.faults[0]} lost and {self.faults[1]} late clients",
                why="each share lies between 0 and 1; lost and late clients together are at most 1, since no client "
                "is both",
                fix="lower stragglers.share, chaos.drop or chaos.slow",
                code="share-out-of-range",
            )
        whole_epochs = self.epochs is not None and self.epochs >= 2
        if self.policy == "keep" and self.share > 0 and not whole_epochs and not self.divisible:
            raise ConfigError(
                'stragglers with policy "keep" need at least two local epochs here',
                why="a reader with noise pays for whole epochs: a part of an epoch cannot be paid for",
                fix='set algorithm.local_epochs to 2 or more, or stragglers.policy to "drop"',
                code="no-partial-work",
            )

    @property
    def leaves_out(self) -> bool:
        """True if the sum may leave out a client that was asked to compute."""
        return any(self.faults) or (self.policy == "late" and self.share > 0)

    def split(self, cohort: Sequence[int], t: int, key: int) -> Turnout:
        turnout, here = self._slow(cohort, t, key), keys.fold(key, "faults", t)
        lose, delay = self.faults
        if not lose + delay or not turnout.active:
            return turnout
        tossed = _fates(here, turnout.active).tolist()  # independent of the other clients
        lost = frozenset(k for k, toss in zip(turnout.active, tossed, strict=True) if toss < lose)
        late = frozenset(k for k, toss in zip(turnout.active, tossed, strict=True) if lose <= toss < lose + delay)
        return turnout._replace(lost=lost, late=turnout.late | late)

    def _slow(self, cohort: Sequence[int], t: int, key: int) -> Turnout:
        here = keys.fold(key, "stragglers", t)
        if self.own_fate:
            tossed = _fates(here, cohort).tolist() if self.share else [1.0] * len(cohort)
            slow = [k for k, toss in zip(cohort, tossed, strict=True) if toss < self.share]
        else:
            slow_count = len(cohort) - round(len(cohort) * (1 - self.share))  # Python rounds half to even
            slow = [cohort[i] for i in keys.order(keys.word(here), len(cohort))[:slow_count].tolist()]
        if not slow:
            return Turnout(list(cohort), frozenset(), {})
        if self.policy == "drop":
            dropped = frozenset(slow)
            return Turnout([k for k in cohort if k not in dropped], frozenset(), {})
        if self.policy == "late":
            return Turnout(list(cohort), frozenset(slow), {})
        if self.epochs is None or self.epochs < 2:
            drawn = self._drawn(keys.fold(here, "parts"), slow).tolist()
            return Turnout(list(cohort), frozenset(), {}, parts=dict(zip(slow, drawn, strict=True)))
        efforts = 1 + (self._drawn(keys.fold(here, "epochs"), slow) * (self.epochs - 1)).long()
        return Turnout(list(cohort), frozenset(), dict(zip(slow, efforts.tolist(), strict=True)))

    def _drawn(self, key: Key, slow: Sequence[int]) -> Tensor:
        return _fates(key, slow) if self.own_fate else keys.uniform(key, len(slow))


def _fates(key: Key, clients: Sequence[int]) -> Tensor:
    """A random number in (0, 1) for each client, the same whichever other clients are in the round."""
    return keys.uniform(keys.at(key, clients), 1).reshape(-1)
