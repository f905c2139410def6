"""Every choice that a sampler can make, with the program's own chances, and every neighbour pair of small federations
behind it: what is printed covers each, exactly.

A client holds -1, 0 or 1; the noisy sum of those who were drawn is released. Nothing is drawn here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

import numpy as np
import pytest

from sordino import keys
from sordino.accounting.accountants import best
from sordino.accounting.events import DiscreteGaussian, Event, Laplace, Poisson, Repeat
from sordino.accounting.statement import lacking
from sordino.privacy.noise.sources import TABLE_ERROR
from sordino.sampling import PoissonSample, Random, draws
from sordino.sampling.by_budget import ByBudget
from tests.helpers.exact_laws import WORDS, Law, changes, delta_of_both, gaussian_law, laplace_law, mixed, worst

slow = pytest.mark.slow
World = tuple[int, ...]  # what each client holds


class Given:
    """Coins whose words are given."""

    def __init__(self, words: np.ndarray) -> None:
        self.given = words

    def words(self, count: int, *part: int | str) -> np.ndarray:
        return np.resize(self.given, count)


@lru_cache(maxsize=32)
def hidden(rate: float, clients: int) -> Law:
    """Law of a Poisson sample: of each word of its coins it matters only between which points it lies."""
    block = len(draws.first_head(rate))

    def first(words: np.ndarray) -> np.ndarray:
        """The first head of the coins that a word settles; `block` where there is none."""
        found = []
        for word in words:
            heads = draws.heads(Given(np.array([word])), rate, block)
            found.append(int(heads[0]) if len(heads) else block)
        return np.array(found)

    points = changes(lambda words: first(words) <= np.arange(block), block)
    edges = [0, *points, WORDS]
    each = [(a, b - a) for a, b in itertools.pairwise(edges) if b > a]

    def outcomes() -> Iterator[tuple[Hashable, int]]:
        for parts in itertools.product(each, repeat=clients):  # every word settles at least one coin
            words = np.array([word for word, _ in parts], dtype=np.uint64)
            drawn = PoissonSample(rate).toss(clients, Given(words))
            yield tuple(drawn), math.prod(chance for _, chance in parts)

    return Law.of(outcomes(), WORDS**clients)


@lru_cache(maxsize=32)
def personal(rates: tuple[float, ...]) -> Law:
    """Law of a cohort in which each client has a coin at a rate of its own."""

    def taken(words: np.ndarray) -> np.ndarray:
        rows = [ByBudget(1.0).toss(len(rates), Given(words), np.array(rates))]
        return np.isin(np.arange(len(rates)), rows[0])

    points = changes(taken, len(rates))
    drawn = itertools.product(*[((True, point), (False, WORDS - point)) for point in points])
    law = [
        (tuple(k for k, (yes, _) in enumerate(coins) if yes), math.prod(chance for _, chance in coins))
        for coins in drawn
    ]
    return Law.of(law, WORDS ** len(rates))


def summed(cohorts: Law, world: World) -> Law:
    """Law of the sum over those who are drawn."""
    sums = ((sum(world[k] for k in drawn), chance) for drawn, chance in cohorts.chances.items())  # type: ignore[attr-defined]
    return Law.of(sums, cohorts.total)


def neighbours(clients: int) -> Iterator[tuple[World, World, int]]:
    """All worlds, with one client of each counted for nothing."""
    for world in itertools.product((-1, 0, 1), repeat=clients):
        for k in range(clients):
            if world[k]:
                yield world, (*world[:k], 0, *world[k + 1 :]), k


def replaced(clients: int) -> Iterator[tuple[World, World, int]]:
    for world in itertools.product((-1, 0, 1), repeat=clients):
        for k in range(clients):
            for value in {-1, 0, 1} - {world[k]}:
                yield world, (*world[:k], value, *world[k + 1 :]), k


@cache
def price(event: Event, allowed: float, relation: str) -> float:
    return best(event, allowed, relation).epsilon


def most_beyond(
    cohorts: Law,
    noise: Law,
    pairs: Iterable[tuple[World, World, int]],
    event: Callable[[int], Event],
    relation: str,
    allowed: float,
    releases: int = 1,
) -> tuple[int, float]:
    """The number of pairs, and the largest delta of one at what is printed for it, over the delta that is stated."""
    laws: dict[World, Law] = {}
    known: dict[Any, float] = {}
    count, most = 0, 0.0
    for world, other, client in pairs:
        count += 1
        for one in (world, other):
            laws[one] = laws.get(one) or summed(cohorts, one)
        sums = tuple(tuple(sorted(laws[one].chances.items())) for one in (world, other))
        if (sums, client) not in known:
            printed = price(Repeat(event(client), releases), allowed, relation)
            stated = allowed + lacking(printed, releases * TABLE_ERROR)
            p, q = (laws[one].plus(noise) for one in (world, other))
            if releases == 1:
                lost = worst(p, q, printed)
            else:
                lost = max(delta_of_both((a, b), (a, b), printed) for a, b in ((p, q), (q, p)))
            known[sums, client] = float(lost / stated)
        most = max(most, known[sums, client])
    return count, most


# who is drawn ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "clients"), [(0.5, 4), (0.3, 4), (0.19, 3), pytest.param(0.25, 5, marks=slow)])
def test_a_hidden_cohort_has_independent_coins(rate: float, clients: int) -> None:
    """All cohorts, to within two units of a word for each client; each client alone at its rate, or a little less."""
    law, exact, off = hidden(rate, clients), Fraction(rate), Fraction(0)
    for size in range(clients + 1):
        for drawn in itertools.combinations(range(clients), size):
            off += abs(law.chance(drawn) - exact**size * (1 - exact) ** (clients - size))
    assert off / 2 <= Fraction(2 * clients, WORDS)
    assert sum(law.chances.values()) == law.total


def test_a_cohort_of_fixed_size_prefers_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among the words that settle it, every cohort has the same number: all words of two bits, up to seven of them."""
    found: dict[tuple[int, ...], int] = {}
    for length in range(2, 8):
        for numbers in itertools.product(range(4), repeat=length):
            if len(set(numbers)) == 2 and len(set(numbers[:-1])) == 1 and max(numbers) < 3:
                words = np.array(numbers, dtype=np.uint64) << np.uint64(62)
                rest = np.full(64, np.uint64(3) << np.uint64(62))  # beyond the three clients
                monkeypatch.setattr(keys, "words", lambda key, count, w=words, r=rest: np.concatenate([w, r])[:count])
                drawn = tuple(Random(1).draw(0, 3, keys.root(0))), tuple(draws.subset(1, 1, 3).tolist())
                found[drawn[1]] = found.get(drawn[1], 0) + 1
                assert drawn[0] == drawn[1] == (numbers[0],)
    assert len(set(found.values())) == 1
    assert len(found) == 3


# what is released -----------------------------------------------------------------------------------------------------
LAWS: dict[str, tuple[Callable[[float], Law], Callable[[float], Event]]] = {
    "laplace": (laplace_law, Laplace),
    "gaussian": (gaussian_law, DiscreteGaussian),
}


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("rate", "clients", "scales"),
    [(0.5, 3, [1.0]), (0.3, 4, [0.5, 1.0, 2.0]), (0.19, 3, [0.5, 1.0])],
)
def test_every_client_of_a_hidden_cohort_keeps_the_amplified_price(
    law: str, rate: float, clients: int, scales: list[float]
) -> None:
    noise, event = LAWS[law]
    found = []
    for scale in scales:
        for allowed in (1e-6, 1e-2):
            args = noise(scale), neighbours(clients), lambda k, s=scale: Poisson(rate, event(s)), "zero_out", allowed
            count, most = most_beyond(hidden(rate, clients), *args)
            assert count == 2 * clients * 3 ** (clients - 1)
            assert most <= 1
            found.append(most)
    if law == "laplace":
        assert max(found) > 0.5  # of the delta that is stated


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("rate", [0.5, 0.3])
def test_two_hidden_rounds_keep_what_is_printed_for_both(law: str, rate: float) -> None:
    noise, event = LAWS[law]
    for allowed in (1e-5, 1e-2):
        args = noise(1.0), neighbours(2), lambda k: Poisson(rate, event(1.0)), "zero_out", allowed
        assert most_beyond(hidden(rate, 2), *args, releases=2)[1] <= 1


@pytest.mark.slow
def test_each_client_keeps_the_price_of_its_own_rate() -> None:
    rates = (0.1, 0.37, 0.8)
    law = personal(rates)
    for k, rate in enumerate(rates):
        alone = sum((law.chance(drawn) for drawn in law.chances if k in drawn), Fraction(0))  # type: ignore[operator]
        assert abs(alone - Fraction(rate)) <= Fraction(1, 2**53)
    for allowed in (1e-6, 1e-2):
        args = neighbours(3), lambda k: Poisson(rates[k], Laplace(1.0)), "zero_out", allowed
        assert most_beyond(law, laplace_law(1.0), *args)[1] <= 1
    args = neighbours(3), lambda k: Poisson(min(rates), Laplace(1.0)), "zero_out", 1e-2
    assert most_beyond(law, laplace_law(1.0), *args)[1] > 1  # the broken twin: all at the smallest rate


def fixed(size: int, clients: int) -> Law:
    return Law.of((drawn, 1) for drawn in itertools.combinations(range(clients), size))


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_a_cohort_of_fixed_size_keeps_the_price_without_amplification(law: str) -> None:
    """Whoever is drawn pays in full. The broken twin is priced as a Poisson sample of the same rate."""
    noise, event = LAWS[law]
    assert Random(2).amplify(event(1.0), "public") == event(1.0)
    for allowed in (1e-6, 1e-2):
        args = noise(2.0), [*replaced(3)], lambda k: event(1.0), "replace", allowed
        count, most = most_beyond(fixed(2, 3), *args)
        assert count == 3 * 27 * 2
        assert most <= 1
    everybody = most_beyond(fixed(3, 3), *args)[1]
    assert (0.5 if law == "laplace" else 0.1) < everybody <= 1  # nothing is left unsaid of who is always drawn
    both = [(w, o, k) for w, o, k in replaced(3) if w[k] * o[k] == -1]
    args = noise(2.0), both, lambda k: Poisson(2 / 3, event(2.0)), "zero_out", 1e-2
    assert most_beyond(fixed(2, 3), *args)[1] > 1


# broken twins ---------------------------------------------------------------------------------------------------------


def overlapping(tossed: Any, rate: float, coins: int) -> np.ndarray:
    """Its coins begin where the last head was, and not behind it."""
    found = {int(k) for k in draws_heads(tossed, rate, coins)}
    return np.array(sorted(found | {k - 1 for k in found if k}))


def a_round_of_two_words(tossed: Any, rate: float, coins: int) -> np.ndarray:
    """All coins of a block are settled together."""
    found = draws_heads(tossed, rate, coins)
    return np.arange(coins) if len(found) else found


draws_heads = draws.heads
SAMPLERS = {"off by one": overlapping, "one coin for all": a_round_of_two_words}


@pytest.mark.parametrize("twin", SAMPLERS)
def test_a_sampler_that_is_a_little_off_is_caught(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sordino.sampling.heads", SAMPLERS[twin])
    hidden.cache_clear()
    try:
        law = hidden(0.3, 3)
    finally:
        hidden.cache_clear()
    args = laplace_law(1.0), neighbours(3), lambda k: Poisson(0.3, Laplace(1.0)), "zero_out", 1e-3
    assert most_beyond(law, *args)[1] > 1


def test_a_mixture_is_the_law_of_its_parts() -> None:
    halves = mixed([(1, Law({0: 1, 1: 3}, 4)), (3, Law({0: 4}, 4))])
    assert (halves.chance(0), halves.chance(1)) == (Fraction(13, 16), Fraction(3, 16))
