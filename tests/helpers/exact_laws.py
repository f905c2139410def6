"""Laws of mechanisms that draw from random bits, as exact whole numbers, and the delta between two of them.

A program's chance is read off the program: it is asked for the random word at which its answer changes. Nothing is
computed from a textbook. The one real number is e^epsilon, which is taken from below, so that a delta is never too
small.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cmp_to_key, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import mpmath
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.privacy import noise
from sordino.privacy.noise import NoiseLaw
from sordino.privacy.noise.sources import grid_step
from sordino.privacy.readers import responses

HALF = responses.HALF
WORDS = 1 << 64
PRECISION = 160  # bits of e^epsilon
Words = NDArray[np.uint64]


class Law(NamedTuple):
    """Outcomes and their chances, as whole numbers of 1 / total."""

    chances: dict[Hashable, int]
    total: int

    @classmethod
    def of(cls, weights: Iterable[tuple[Hashable, int]], total: int | None = None) -> Law:
        found: dict[Hashable, int] = {}
        for outcome, weight in weights:
            if weight:
                found[outcome] = found.get(outcome, 0) + weight
        return cls(found, sum(found.values()) if total is None else total)

    def chance(self, outcome: Hashable) -> Fraction:
        return Fraction(self.chances.get(outcome, 0), self.total)

    def moved(self, by: int) -> Law:
        return Law({outcome + by: weight for outcome, weight in self.chances.items()}, self.total)  # type: ignore[operator]

    def plus(self, other: Law) -> Law:
        """The law of the sum of two independent numbers."""
        pairs = ((a + b, p * q) for a, p in self.chances.items() for b, q in other.chances.items())  # type: ignore[operator]
        return Law.of(pairs, self.total * other.total)

    def beside(self, other: Law) -> Law:
        """The law of both outcomes of two independent releases."""
        pairs = (((a, b), p * q) for a, p in self.chances.items() for b, q in other.chances.items())
        return Law.of(pairs, self.total * other.total)


def mixed(parts: Iterable[tuple[int, Law]]) -> Law:
    """The law that draws one of these laws, of equal totals, by whole weights."""
    made = list(parts)
    (total,) = {law.total for _, law in made}
    pairs = ((outcome, weight * p) for weight, law in made for outcome, p in law.chances.items())
    return Law.of(pairs, total * sum(weight for weight, _ in made))


@lru_cache(maxsize=4096)
def power(epsilon: float) -> int:
    """e^epsilon in units of 2^-PRECISION, rounded down."""
    with mpmath.workprec(2 * PRECISION + 64):
        return int(mpmath.floor(mpmath.exp(mpmath.mpf(epsilon)) * mpmath.mpf(2) ** PRECISION))


def delta(p: Law, q: Law, epsilon: float) -> Fraction:
    """The least delta at which p is at most e^epsilon times q: the sum over outcomes of what is above."""
    most = power(epsilon) * p.total
    over = 0
    for outcome, weight in p.chances.items():
        over += max((weight * q.total << PRECISION) - most * q.chances.get(outcome, 0), 0)
    return Fraction(over, p.total * q.total << PRECISION)


def worst(p: Law, q: Law, epsilon: float) -> Fraction:
    """The delta in the worse direction."""
    return max(delta(p, q, epsilon), delta(q, p, epsilon))


def delta_of_both(first: tuple[Law, Law], second: tuple[Law, Law], epsilon: float) -> Fraction:
    """The delta of two independent releases: `delta` of their pairs of outcomes, by partial sums over one of them in
    the order of its quotients.
    """
    (p, q), (r, s) = first, second
    pairs = [(r.chances.get(y, 0), s.chances.get(y, 0)) for y in r.chances.keys() | s.chances.keys()]
    pairs.sort(key=cmp_to_key(lambda one, two: two[0] * one[1] - one[0] * two[1]))  # the largest quotient comes first
    above, below = (list(itertools.accumulate(part, initial=0)) for part in zip(*pairs, strict=True))
    over, most = 0, power(epsilon) * p.total * r.total
    for outcome, weight in p.chances.items():
        here, there = weight * q.total * s.total << PRECISION, most * q.chances.get(outcome, 0)
        low, high = 0, len(pairs)
        while low < high:
            middle = (low + high) // 2
            higher = here * pairs[middle][0] > there * pairs[middle][1]
            low, high = (middle + 1, high) if higher else (low, middle)
        over += here * above[low] - there * below[low]
    return Fraction(over, p.total * q.total * r.total * s.total << PRECISION)


def least(p: Law, q: Law, allowed: float, at_most: float) -> float:
    """The least epsilon below `at_most` that keeps this delta, to a millionth, to say how tight a bound is."""
    low, high = 0.0, at_most
    while high - low > 1e-6 * at_most:
        middle = (low + high) / 2
        low, high = (low, middle) if worst(p, q, middle) <= allowed else (middle, high)
    return high


@dataclass
class Script:
    """A source whose random words are written down, by the names of its children."""

    words_of: Mapping[tuple[Any, ...], Any] | Callable[[tuple[Any, ...]], Any]
    place: tuple[Any, ...] = ()
    name: str = "script"
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def child(self, *parts: int | str) -> Script:
        return Script(self.words_of, (*self.place, *parts), self.name, self.asked)

    def words(self, count: int, *part: int | str) -> Tensor:
        found = self.words_of(self.place) if callable(self.words_of) else self.words_of[self.place]
        self.asked.append(self.place)
        return torch.from_numpy(np.broadcast_to(np.asarray(found, np.uint64), (count,)).copy().view(np.int64))


def changes(holds: Callable[[Words], NDArray[np.bool_]], count: int, bits: int = 64) -> list[int]:
    """For each of `count` falling questions, the number of words below 2^bits for which it holds: those below one
    point, which is found by bisection.
    """
    low, high = [0] * count, [1 << bits] * count  # it holds for all words below `low`, and for none from `high` on
    while any(a < b for a, b in zip(low, high, strict=True)):
        middle = [min((a + b) // 2, (1 << bits) - 1) for a, b in zip(low, high, strict=True)]
        found = holds(np.array(middle, dtype=np.uint64))
        for i, (m, yes) in enumerate(zip(middle, found.tolist(), strict=True)):
            if low[i] < high[i]:
                low[i], high[i] = (m + 1, high[i]) if yes else (low[i], m)
    return low


# laws of the program ---------------------------------------------------------------------------------------------------


def told(index: NDArray[Any], epsilon: float, k: int, words: Words) -> NDArray[np.int64]:
    """The answers to these values with these random words."""
    source = Script(lambda place: words)
    return np.asarray(responses.respond(torch.from_numpy(index), epsilon, k, source), np.int64)


def response_chances(epsilon: float, k: int) -> tuple[int, list[int]]:
    """High halves at which a value is replaced, and the low halves that give each answer then, out of 2^32 both."""
    low, high = np.uint64(HALF - 1), np.uint64(32)
    zeros = np.zeros(k, np.int64)
    (replaced,) = changes(lambda w: told(zeros[:1], epsilon, k, w << high | low) == k - 1, 1, bits=32)
    points = changes(lambda w: told(zeros[1:], epsilon, k, w) < np.arange(1, k), k - 1, bits=32)
    edges = [0, *points, HALF]
    return replaced, [b - a for a, b in pairwise(edges)]


def response_law(epsilon: float, k: int, value: int) -> Law:
    replaced, shares = response_chances(epsilon, k)
    kept = (HALF - replaced) * HALF
    return Law.of(((j, replaced * share + kept * (j == value)) for j, share in enumerate(shares)), WORDS)


class Drawn(NamedTuple):
    """Numbers that a program draws with every pattern of its bits, the words behind them, and their chances."""

    numbers: NDArray[np.int64]
    words: dict[tuple[Any, ...], Words]
    chances: list[int]
    total: int


@lru_cache(maxsize=64)
def laplace_drawn(scale: float, rounded: bool = True) -> Drawn:
    """Rounded or discrete Laplace noise: each of its bits is 1 where a word lies below a point."""
    program, least_word = noise.rounded_laplace if rounded else noise.discrete_laplace, np.uint64(0)

    def draw(words_of: Callable[[tuple[Any, ...]], Any], count: int = 1) -> NDArray[np.int64]:
        return program(Script(words_of), count, scale)

    asked = Script(lambda place: least_word)
    ones = program(asked, 1, scale)
    points = []
    for place in asked.asked:  # the other bits are 1
        points += changes(lambda w, p=place: draw(lambda at: w if at == p else least_word) == ones, 1)  # type: ignore[misc]
    patterns, chances, words = np.arange(1 << len(points), dtype=np.uint64), [1], {}
    for i, (place, point) in enumerate(zip(asked.asked, points, strict=True)):
        words[place] = np.uint64(point) - (patterns >> np.uint64(i) & np.uint64(1))
        chances = [c * (WORDS - point) for c in chances] + [c * point for c in chances]
    return Drawn(draw(lambda at: words[at], len(patterns)), words, chances, WORDS ** len(points))


def laplace_law(scale: float, rounded: bool = True) -> Law:
    drawn = laplace_drawn(scale, rounded)
    return Law.of(zip(drawn.numbers.tolist(), drawn.chances, strict=True), drawn.total)


@lru_cache(maxsize=32)
def gaussian_law(sigma: float) -> Law:
    """Discrete Gaussian noise: a Laplace number of the program, kept where a word lies below a point that depends on
    it, else drawn anew.
    """
    numbers, words, chances, _ = laplace_drawn(sigma, rounded=False)

    def kept(accept: Words) -> NDArray[np.bool_]:
        source = Script(lambda place: accept if place == ("accept",) else words[place])
        return np.isin(numbers, noise._attempt(source, len(numbers), sigma))

    points = changes(kept, len(numbers))
    return Law.of(zip(numbers.tolist(), (c * point for c, point in zip(chances, points, strict=True)), strict=True))


def subset_law(draw: Callable[[Any], Iterable[int]], points: list[int], words: int) -> Law:
    """Law of a sampler that reads a fixed number of words and asks of each between which points it lies."""
    edges = [0, *points, WORDS]
    each = [(a, b - a) for a, b in pairwise(edges) if b > a]

    def outcomes() -> Iterator[tuple[Hashable, int]]:
        for parts in itertools.product(each, repeat=words):
            given = np.array([word for word, _ in parts], dtype=np.uint64)
            yield tuple(draw(given)), math.prod(chance for _, chance in parts)

    return Law.of(outcomes(), WORDS**words)


def grid_law(law: NoiseLaw, scale: float, value: float) -> Law:
    """Law of a number with real noise in steps of the fine grid: the table's step, and whether the fraction carries
    over into the next one.
    """
    step = grid_step(scale)
    steps = law.in_steps(math.ceil(scale / step * 1e9) / 1e9)
    points = [0, *map(int, steps.thresholds.tolist()), WORDS]
    whole = math.floor(value / step)
    places = np.arange(len(points) - 1, dtype=np.int64) + steps.lowest
    carried = steps.carry(places, np.full(len(places), value / step - whole))
    over = np.ceil(np.clip(carried, 0, 1) * 2.0**53).astype(np.int64).tolist()  # words of 53 bits below the chance
    weights: dict[Hashable, int] = {}
    for place, chance, yes in zip(places.tolist(), (b - a for a, b in pairwise(points)), over, strict=True):
        for at, part in ((whole + place, (1 << 53) - yes), (whole + place + 1, yes)):
            weights[at] = weights.get(at, 0) + chance * part
    return Law(weights, WORDS << 53)
