"""Random subsets and independent coins from counter-based keys, at a cost in proportion to the number drawn, not to the
population."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sordino import keys
from sordino.privacy.noise.sources import System

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
        self._source = System()

    def words(self, count: int, *part: int | str) -> Words:
        return self._source.words(count).cpu().numpy().view(np.uint64)


LONGEST = 1 << 16  # coins that one word may settle


def subset(key: int, size: int, population: int) -> NDArray[np.int64]:
    """Random subset: `size` different numbers below `population`, in rising order; all sets of this size are equally
    likely.

    They are the first different values of a sequence of independent uniform numbers. No set is preferred, because the
    sequence treats all numbers below `population` alike. A number is a random word cut to whole bits; values beyond the
    population are rejected, never folded back.
    """
    if 2 * size > population:  # cheaper to say who stays at home
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
    each = -math.expm1(block * math.log1p(-rate)) / rate  # coins that a word settles on average
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
