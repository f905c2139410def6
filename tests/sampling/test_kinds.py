"""Cohorts: exact participation counts, and the law of the Poisson sampler.

The statistical tests of the Poisson sampler reject at |z| > 6 in some 5,050 statistics for each rate: a false alarm has
probability about 1e-5 for a fresh seed, and the seed is fixed. Their power is shown by the samplers they must reject.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from sordino import keys
from sordino import sampling as cohorts
from sordino.accounting.events import Gaussian, Poisson
from sordino.errors import ConfigError
from sordino.sampling import (
    COHORTS,
    Cohort,
    Everyone,
    PoissonSample,
    Random,
    RoundRobin,
    RoundRobinPeer,
    binomial_quantile,
)
from sordino.sampling.draws import SamplingWords, first_head

KEY = keys.root(5)
Drawn = NDArray[np.bool_]  # rounds x clients
COHORTS_OF_FOUR: list[Cohort] = [Everyone(), RoundRobin(4), RoundRobinPeer(0.4), Random(4), PoissonSample(0.4)]


def drawn(cohort: Cohort, rounds: int, population: int, key: keys.Key = KEY) -> Drawn:
    table = np.zeros((rounds, population), dtype=bool)
    for r in range(rounds):
        table[r, cohort.draw(r, population, key)] = True
    return table


# ------------------------------------------------------------------------------------------------ participations


@pytest.mark.parametrize(("population", "size", "rounds"), [(10, 3, 7), (100, 20, 100), (7, 7, 3), (5, 2, 1)])
def test_round_robin_counts_are_exact(population: int, size: int, rounds: int) -> None:
    cohort = RoundRobin(size)
    planned = list(cohort.participations(rounds, population))
    assert planned == drawn(cohort, rounds, population).sum(0).tolist()
    assert sum(planned) == rounds * size


def test_round_robin_numbers() -> None:
    assert list(RoundRobin(3).participations(7, 10)) == [3] + [2] * 9
    assert list(RoundRobin(20).participations(100, 100)) == [20] * 100
    assert RoundRobin(3).draw(3, 10, KEY) == [9, 0, 1]  # the pointer runs over the end


@pytest.mark.parametrize(("fraction", "overspend", "never"), [(0.3, 1.133, 10), (0.7, 1.429, 30)])
def test_the_peer_scheme_overspends(fraction: float, overspend: float, never: int) -> None:
    cohort = RoundRobinPeer(fraction)
    assert cohort.overspend(100, 100) == pytest.approx(overspend, abs=5e-4)
    counts = drawn(cohort, 100, 100).sum(0)
    assert counts.tolist() == list(cohort.actual(100, 100))
    assert (counts == 0).sum() == never
    assert counts.max() / cohort.participations(100, 100)[0] == pytest.approx(overspend, abs=5e-4)
    first, second = cohort.warnings(100, 100)
    assert f"{overspend}" in first
    assert "abstains" in first  # as `test_the_published_selection_abstains_where_it_would_overspend` plays it
    assert f"{never} of 100" in second


@pytest.mark.parametrize("fraction", [0.2, 0.5, 1.0])
def test_the_peer_scheme_is_round_robin_where_everything_divides(fraction: float) -> None:
    cohort, same = RoundRobinPeer(fraction), RoundRobin(round(fraction * 100))
    assert cohort.warnings(100, 100) == []
    assert cohort.participations(100, 100) == same.participations(100, 100)
    assert all(cohort.draw(r, 100, KEY) == same.draw(r, 100, KEY) for r in range(100))


@pytest.mark.parametrize(("fraction", "population", "cut"), [(0.29, 100, 28), (0.25, 10, 2), (0.07, 100, 7)])
def test_the_peer_scheme_says_where_it_cuts_a_part_of_a_client(fraction: float, population: int, cut: int) -> None:
    """In floating point 0.29 of 100 is 28.999..., which int() makes 28; 0.07 of 100 is a little above 7."""
    cohort = RoundRobinPeer(fraction)
    assert len(cohort.draw(0, population, KEY)) == cut
    told = [remark for remark in cohort.warnings(8, population) if "is cut" in remark]
    assert bool(told) == (round(fraction * population, 6) != cut)
    assert all(f"a round has {cut} of {population} clients" in remark for remark in told)


def test_the_peer_scheme_stays_inside_small_populations() -> None:
    for fraction in (0.01, 0.05, 0.34):
        assert drawn(RoundRobinPeer(fraction), 50, 3).sum() >= 50


def test_random_cohorts_need_a_plan() -> None:
    from scipy.stats import binom

    assert list(Random(20).participations(100, 100)) == [33] * 100
    assert 1 - binom.cdf(20, 100, 0.2) == pytest.approx(0.441, abs=5e-4)  # a plan for the mean fails that often
    for level, trials, p in ((0.999, 100, 0.2), (0.5, 7, 0.9), (0.999, 1, 0.01), (0.9, 1000, 0.5)):
        assert binomial_quantile(level, trials, p) == binom.ppf(level, trials, p)
    assert list(Random(20, t_plan=25).participations(100, 100)) == [25] * 100
    assert list(Random(20, t_plan=25).participations(10, 100)) == [10] * 100  # never more than the rounds
    assert list(Random(5).participations(9, 5)) == [9] * 5
    assert set(Random(100).participations(3, 10**6)) == {1}  # hardly anybody is drawn, but whoever is may take part


def test_everybody_is_charged_where_participation_is_hidden() -> None:
    assert list(PoissonSample(0.1).participations(50, 4)) == [50] * 4 == list(Everyone().participations(50, 4))


def test_what_is_known_of_everybody_is_an_array_of_plain_numbers() -> None:
    for cohort in COHORTS_OF_FOUR:
        planned = cohort.participations(30, 10)
        assert all(
            type(times) is int for times in (planned[0], planned[-1], max(planned))
        )  # a receipt must be able to hold them
        assert np.asarray(planned).nbytes <= 8 * 10


# ----------------------------------------------------------------------------------------------------- draws


@pytest.mark.parametrize("cohort", COHORTS_OF_FOUR)
def test_a_draw_is_a_function_of_key_and_round(cohort: Cohort) -> None:
    draws = [cohort.draw(r, 10, KEY) for r in range(40)]
    assert draws == [cohort.draw(r, 10, KEY) for r in reversed(range(40))][::-1]
    for clients in draws:
        assert len(set(clients)) == len(clients)
        assert set(clients) <= set(range(10))
    if not isinstance(cohort, RoundRobin):
        assert draws == [sorted(clients) for clients in draws]
    mean = np.mean([len(clients) for clients in draws])
    assert mean == pytest.approx(cohort.expected(10), abs=0.0 if not cohort.hidden else 1.5)
    random = isinstance(cohort, Random | PoissonSample)
    assert (draws != [cohort.draw(r, 10, keys.root(6)) for r in range(40)]) == random
    assert (len({tuple(clients) for clients in draws}) > 20) == random


def test_an_empty_cohort_is_legal() -> None:
    assert any(PoissonSample(0.05).draw(r, 3, KEY) == [] for r in range(20))
    assert PoissonSample(5e-324).draw(0, 10**6, KEY) == []
    assert PoissonSample(1.0).draw(0, 5, KEY) == [0, 1, 2, 3, 4]


def test_random_cohorts_are_fair() -> None:
    counts = drawn(Random(5), 4000, 20).sum(0)
    z = (counts - 1000) / math.sqrt(4000 * 0.25 * 0.75)
    assert np.abs(z).max() < 6  # false alarm 20 * 2e-9


def subsets(draw: Callable[[int], list[int]], size: int, population: int, draws: int = 8_000) -> float:
    """p-value of the chi-square test that all sets are drawn equally often."""
    every = list(itertools.combinations(range(population), size))
    found = Counter(tuple(draw(r)) for r in range(draws))
    assert found.keys() <= set(every)
    return float(stats.chisquare([found[one] for one in every]).pvalue)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "population"),
    [(2, 5), (4, 6), *(pytest.param(*pair, marks=pytest.mark.slow) for pair in ((1, 2), (3, 6), (5, 6)))],
)
def test_every_set_of_clients_is_equally_likely(size: int, population: int) -> None:
    # level 1e-6 for each of five pairs, fixed seed
    assert subsets(lambda r: Random(size).draw(r, population, KEY), size, population) > 1e-6


@pytest.mark.slow
def test_folding_words_back_into_the_population_is_noticed() -> None:
    def folded(r: int) -> list[int]:
        """Broken twin: what is too large is taken modulo the population instead of passed over."""
        numbers = [int(word) >> 61 for word in keys.words(keys.word(keys.fold(KEY, r)), 100)]
        return sorted(list(dict.fromkeys(number % 5 for number in numbers))[:2])

    assert subsets(folded, 2, 5) < 1e-6


def words_drawn(cohort: Cohort, population: int, monkeypatch: pytest.MonkeyPatch) -> int:
    drawn: list[int] = []
    whole = keys.words
    with monkeypatch.context() as patch:
        patch.setattr(keys, "words", lambda key, count: (drawn.append(count), whole(key, count))[1])
        for r in range(20):
            cohort.draw(r, population, KEY)
    return sum(drawn)


def test_drawing_costs_what_the_cohort_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = 10**3, 10**8  # a permutation of the latter would need a gigabyte
    for small, large in ((Random(100), Random(100)), (PoissonSample(100 / few), PoissonSample(100 / many))):
        assert words_drawn(large, many, monkeypatch) < 2 * words_drawn(small, few, monkeypatch) + 20 * many / 2**16
        assert words_drawn(small, few, monkeypatch) < 20 * 4 * 100
    assert words_drawn(Random(few - 3), few, monkeypatch) < 20 * 30  # it says who stays at home


# --------------------------------------------------------------------------------- the law of the Poisson sampler


def poisson_scores(table: Drawn, rate: float) -> dict[str, float]:
    """z-scores that are standard normal for independent coins of this rate (the largest one for families)."""
    rounds, clients = table.shape
    x = table.astype(np.float64)
    variance = clients * rate * (1 - rate)
    squares = (x.sum(1) - clients * rate) ** 2 / variance
    spread = math.sqrt((2 + (1 - 6 * rate * (1 - rate)) / variance) / rounds)  # fourth moment of the binomial
    pair = rate**2
    together = (x.T @ x - rounds * pair) / math.sqrt(rounds * pair * (1 - pair))
    overlap = (x[1:] * x[:-1]).sum()
    noise = (rounds - 1) * clients * pair * (1 - pair) + 2 * (rounds - 2) * clients * (rate**3 - rate**4)
    return {
        "size variance": float((squares.mean() - 1) / spread),
        "marginals": float(np.abs((x.sum(0) - rounds * rate) / math.sqrt(rounds * rate * (1 - rate))).max()),
        "pairs": float(np.abs(together[~np.eye(clients, dtype=bool)]).max()),
        "serial overlap": float((overlap - (rounds - 1) * clients * pair) / math.sqrt(noise)),
    }


def check_poisson(table: Drawn, rate: float) -> None:
    scores = poisson_scores(table, rate)
    assert all(abs(z) <= 6 for z in scores.values()), scores


def shuffled(rounds: int, clients: int, size: int) -> Drawn:
    """Epochs: a fresh permutation cut into blocks, the loader most people use."""
    rng = np.random.default_rng(0)

    def blocks() -> Iterator[NDArray[np.int64]]:
        while True:
            yield from rng.permutation(clients).reshape(-1, size)

    table = np.zeros((rounds, clients), dtype=bool)
    for row, block in zip(table, blocks(), strict=False):
        row[block] = True
    return table


@pytest.mark.slow
def test_the_poisson_sampler_is_what_its_event_says() -> None:
    cohort = PoissonSample(0.2)
    event = cohort.amplify(Gaussian(1.0), "public")
    assert event == Poisson(0.2, Gaussian(1.0))
    assert isinstance(event, Poisson)
    table = drawn(cohort, 20_000, 100)
    check_poisson(table, event.rate)
    for wrong in (event.rate / 10, event.rate * 1.05, event.rate * 0.95):
        with pytest.raises(AssertionError):
            check_poisson(table, wrong)
    for name in ("marginals", "pairs"):
        assert poisson_scores(table, event.rate)[name] > 1  # the families really hold many statistics


# 50, 3, 2 coins and 1 coin to a word
@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.02, 0.62, *(pytest.param(q, marks=pytest.mark.slow) for q in (0.3, 0.97))])
def test_the_law_holds_at_other_rates(rate: float) -> None:
    check_poisson(drawn(PoissonSample(rate), 10_000, 100), rate)


@pytest.mark.parametrize("rate", [1e-300, 1e-9, 1e-4, 0.01, 0.1, 1 / 3, 0.5, 0.6, 0.7, 1 - 2**-53])
def test_a_word_is_cut_where_the_law_says(rate: float) -> None:
    """Exact fractions, at a few coins of each block: never off by more than one unit of 2^-64."""
    thresholds = first_head(rate).tolist()
    assert len(thresholds) == min(max(1, round(1 / rate)), 2**16)
    assert thresholds == sorted(thresholds)
    for j in {0, 1, 2, len(thresholds) // 500, min(len(thresholds), 200) - 1} & set(range(len(thresholds))):
        exact = (1 - (1 - Fraction(rate)) ** (j + 1)) * 2**64
        assert abs(thresholds[j] - exact) <= 1


def broken_heads(how: str) -> Callable[[SamplingWords, float, int], NDArray[np.int64]]:
    """Twins of the sampler: one head to a block at most; the coin behind a head left out; the last coin of a block
    without heads tossed again.
    """
    ends: dict[str, Callable[[int, int], int]] = {
        "one": lambda first, block: block,
        "skips": lambda first, block: first + 2 if first < block else block,
        "twice": lambda first, block: first + 1 if first < block else block - 1,
    }

    def heads(tossed: SamplingWords, rate: float, coins: int) -> NDArray[np.int64]:
        thresholds = first_head(rate)
        block, found, passed = len(thresholds), [], 0
        for word in tossed.words(4 * coins):
            first = int(np.searchsorted(thresholds, word, side="right"))
            if first < block:
                found.append(passed + first)
            passed += ends[how](first, block)
            if passed >= coins:
                break
        return np.array([k for k in found if k < coins])

    return heads


@pytest.mark.slow
@pytest.mark.parametrize("how", ["skips", *(pytest.param(how, marks=pytest.mark.slow) for how in ("one", "twice"))])
def test_a_broken_skipper_is_rejected(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohorts, "heads", broken_heads(how))
    scores = poisson_scores(drawn(PoissonSample(0.2), 5_000, 60), 0.2)
    assert max(abs(z) for z in scores.values()) > 10


def test_gaps_are_geometric_however_long_the_blocks() -> None:
    # chi-square over 40 equally likely cells, level 1e-6 for each of three rates, fixed seed; the control is 5% off
    for rate in (0.2, 0.003, 1e-5):
        gaps = np.concatenate(
            [np.diff(PoissonSample(rate).draw(r, int(3000 / rate), KEY), prepend=-1) for r in range(10)]
        )
        for claimed, holds in ((rate, True), (rate * 1.05, False)):
            edges = np.unique(stats.geom.ppf(np.arange(1, 40) / 40, claimed))
            mass = np.diff(stats.geom.cdf(edges, claimed), prepend=0, append=1)
            seen = np.bincount(np.searchsorted(edges, gaps), minlength=len(mass))
            assert (stats.chisquare(seen, mass * len(gaps)).pvalue > 1e-6) == holds


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "beyond"), [(4_000, 20), pytest.param(20_000, 50, marks=pytest.mark.slow)])
def test_other_samplers_are_rejected(rounds: int, beyond: int) -> None:
    fixed = poisson_scores(drawn(Random(20), rounds, 100), 0.2)
    assert fixed["size variance"] < -beyond
    shuffle = poisson_scores(shuffled(rounds, 100, 20), 0.2)
    assert shuffle["size variance"] < -beyond
    assert shuffle["serial overlap"] < -beyond
    repeated = np.repeat(drawn(PoissonSample(0.2), rounds // 2, 100), 2, axis=0)  # coins reused for a second round
    assert poisson_scores(repeated, 0.2)["serial overlap"] > beyond
    twins = drawn(PoissonSample(0.2), rounds, 50)[:, np.arange(100) % 50]  # two clients sharing a coin
    assert poisson_scores(twins, 0.2)["pairs"] > beyond


# ------------------------------------------------------------------------------------------------ amplification


@pytest.mark.parametrize("adversary", ["server", "participants", "public"])
def test_only_hidden_coins_amplify_and_never_against_the_server(adversary: str) -> None:
    event = Gaussian(2.0)
    for cohort in (Everyone(), RoundRobin(2), RoundRobinPeer(0.2), Random(2)):
        assert not cohort.hidden
        assert cohort.amplify(event, adversary) == event
    coins = PoissonSample(0.2)
    assert coins.hidden
    assert coins.amplify(event, adversary) == (event if adversary == "server" else Poisson(0.2, event))


def test_expected_is_public_and_fixed() -> None:
    sizes = {c: c.expected(50) for c in (Everyone(), RoundRobin(7), RoundRobinPeer(0.3), Random(7), PoissonSample(0.3))}
    assert list(sizes.values()) == [50.0, 7.0, 15.0, 7.0, 15.0]


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: RoundRobin(0), "cohort-empty"),
        (lambda: Random(2.5), "cohort-empty"),  # type: ignore[arg-type]
        (lambda: Random(True), "cohort-empty"),
        (lambda: Random(3, t_plan=0), "t-plan-not-positive"),
        (lambda: RoundRobin(11).draw(0, 10, KEY), "cohort-larger-than-population"),
        (lambda: RoundRobin(11).participations(5, 10), "cohort-larger-than-population"),
        (lambda: Random(11).draw(0, 10, KEY), "cohort-larger-than-population"),
        (lambda: Random(11).expected(10), "cohort-larger-than-population"),
        (lambda: PoissonSample(0.0), "rate-out-of-range"),
        (lambda: PoissonSample(1.1), "rate-out-of-range"),
        (lambda: PoissonSample(math.nan), "rate-out-of-range"),
        (lambda: RoundRobinPeer(0.0), "fraction-out-of-range"),
        (lambda: RoundRobinPeer(1.5), "fraction-out-of-range"),
        (lambda: Everyone().draw(0, 0, KEY), "no-clients"),
    ],
)
def test_refusals(call: Callable[[], object], code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    assert caught.value.code == code


def test_every_cohort_has_a_name() -> None:
    assert set(COHORTS) == {"everyone", "round_robin", "round_robin_peer", "random", "poisson"}
