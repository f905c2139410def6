"""Cohorts: exact exposure counts, and the law of the Poisson sampler.

The statistical test rejects at |z| > 6 in some 5,050 statistics: a false alarm has probability about 1e-5 for a fresh
seed, and the seed is fixed. Its power is shown by the samplers it must reject.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from sordino import keys
from sordino.engine.cohort import (
    COHORTS,
    Cohort,
    Everyone,
    PoissonSample,
    Random,
    RoundRobin,
    RoundRobinPeer,
    binomial_quantile,
)
from sordino.errors import ConfigError
from sordino.ledger.events import Gaussian, Poisson

KEY = keys.root(5)
Drawn = NDArray[np.bool_]  # rounds x clients


def drawn(cohort: Cohort, rounds: int, population: int, key: keys.Key = KEY) -> Drawn:
    table = np.zeros((rounds, population), dtype=bool)
    for r in range(rounds):
        table[r, cohort.draw(r, population, key)] = True
    return table


# ------------------------------------------------------------------------------------------------ exposures


@pytest.mark.parametrize(("population", "size", "rounds"), [(10, 3, 7), (100, 20, 100), (7, 7, 3), (5, 2, 1)])
def test_round_robin_counts_are_exact(population: int, size: int, rounds: int) -> None:
    cohort = RoundRobin(size)
    planned = cohort.exposures(rounds, population)
    assert planned == drawn(cohort, rounds, population).sum(0).tolist()
    assert sum(planned) == rounds * size


def test_round_robin_numbers() -> None:
    assert RoundRobin(3).exposures(7, 10) == [3] + [2] * 9
    assert RoundRobin(20).exposures(100, 100) == [20] * 100
    assert RoundRobin(3).draw(3, 10, KEY) == [9, 0, 1]  # the pointer runs over the end


@pytest.mark.parametrize(("fraction", "overspend", "never"), [(0.3, 1.133, 10), (0.7, 1.429, 30)])
def test_the_peer_scheme_overspends(fraction: float, overspend: float, never: int) -> None:
    cohort = RoundRobinPeer(fraction)
    assert cohort.overspend(100, 100) == pytest.approx(overspend, abs=5e-4)
    counts = drawn(cohort, 100, 100).sum(0)
    assert counts.tolist() == cohort.actual(100, 100)
    assert (counts == 0).sum() == never
    assert counts.max() / cohort.exposures(100, 100)[0] == pytest.approx(overspend, abs=5e-4)
    first, second = cohort.warnings(100, 100)
    assert f"{overspend}" in first
    assert f"{never} of 100" in second


@pytest.mark.parametrize("fraction", [0.2, 0.5, 1.0])
def test_the_peer_scheme_is_round_robin_where_everything_divides(fraction: float) -> None:
    cohort, same = RoundRobinPeer(fraction), RoundRobin(round(fraction * 100))
    assert cohort.warnings(100, 100) == []
    assert cohort.exposures(100, 100) == same.exposures(100, 100)
    assert all(cohort.draw(r, 100, KEY) == same.draw(r, 100, KEY) for r in range(100))


def test_the_peer_scheme_stays_inside_small_populations() -> None:
    for fraction in (0.01, 0.05, 0.34):
        assert drawn(RoundRobinPeer(fraction), 50, 3).sum() >= 50


def test_random_cohorts_need_a_plan() -> None:
    from scipy.stats import binom

    assert Random(20).exposures(100, 100) == [33] * 100
    assert 1 - binom.cdf(20, 100, 0.2) == pytest.approx(0.441, abs=5e-4)  # a plan for the mean fails that often
    for level, trials, p in ((0.999, 100, 0.2), (0.5, 7, 0.9), (0.999, 1, 0.01), (0.9, 1000, 0.5)):
        assert binomial_quantile(level, trials, p) == binom.ppf(level, trials, p)
    assert Random(20, t_plan=25).exposures(100, 100) == [25] * 100
    assert Random(20, t_plan=25).exposures(10, 100) == [10] * 100  # never more than the rounds
    assert Random(5).exposures(9, 5) == [9] * 5


def test_everybody_is_charged_where_participation_is_hidden() -> None:
    assert PoissonSample(0.1).exposures(50, 4) == [50] * 4 == Everyone().exposures(50, 4)


# ----------------------------------------------------------------------------------------------------- draws


@pytest.mark.parametrize("cohort", [Everyone(), RoundRobin(4), RoundRobinPeer(0.4), Random(4), PoissonSample(0.4)])
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
    assert PoissonSample(1.0).draw(0, 5, KEY) == [0, 1, 2, 3, 4]


def test_random_cohorts_are_fair() -> None:
    counts = drawn(Random(5), 4000, 20).sum(0)
    z = (counts - 1000) / math.sqrt(4000 * 0.25 * 0.75)
    assert np.abs(z).max() < 6  # false alarm 20 * 2e-9


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


def test_other_samplers_are_rejected() -> None:
    fixed = poisson_scores(drawn(Random(20), 20_000, 100), 0.2)
    assert fixed["size variance"] < -50
    shuffle = poisson_scores(shuffled(20_000, 100, 20), 0.2)
    assert shuffle["size variance"] < -50
    assert shuffle["serial overlap"] < -50
    repeated = np.repeat(drawn(PoissonSample(0.2), 10_000, 100), 2, axis=0)  # coins reused for a second round
    assert poisson_scores(repeated, 0.2)["serial overlap"] > 50
    twins = drawn(PoissonSample(0.2), 20_000, 50)[:, np.arange(100) % 50]  # two clients sharing a coin
    assert poisson_scores(twins, 0.2)["pairs"] > 50


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
        (lambda: RoundRobin(11).exposures(5, 10), "cohort-larger-than-population"),
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
