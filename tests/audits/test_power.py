"""How near an audit of a trained run comes to the truth, how often it is wrong, and what it finds.

Sound audits are drawn again from the law of a replay (`redrawn`): coins, samples and noise anew, without training. That
replays follow this law is tested beside them. All seeds are fixed.
"""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from scipy.stats import binom, kstest

from experiments.audit_trained.study import ROWS, played, redrawn
from sordino import config, keys
from sordino.accounting.accountants import best
from sordino.accounting.events import DiscreteGaussian, Event, Gaussian, Poisson, Repeat, Together
from sordino.accounting.gaussian_dp import epsilon_of, mu_of
from sordino.accounting.statement import Guarantee
from sordino.audits.canary_replays import ScoredCanaries
from sordino.audits.trained import WRONG, NoiseRead, judged, noise_lacking, strongest
from sordino.planning.planner import Planner
from sordino.runs.simulation import Simulation, settle, simulated
from tests.audits.test_trained import promise

SAMPLED = Repeat(Poisson(0.2, Gaussian(1.0765)), 40)  # epsilon 8 at 1e-5
COMPOSED = Together((Gaussian(3.0), Repeat(Gaussian(5.0), 30)))


@cache
def run(*words: str) -> tuple[Simulation, Guarantee]:
    simulation = simulated(settle(config.load(None, [*words])))
    return simulation, strongest([row for row in Planner(simulation.setup).guarantees if row.finite])[0]


def alike(many: int) -> ScoredCanaries:
    return ScoredCanaries(
        torch.zeros(many), torch.zeros(many), torch.ones(many).double(), torch.zeros(many), torch.zeros(many)
    )


def rarely(refuted: int, of: int, at_most: float) -> bool:
    """False for a share of `at_most` with probability 1e-4 at most."""
    return refuted <= binom.isf(1e-4, of, at_most)


# how often it is wrong ------------------------------------------------------------------------------------------------


@pytest.mark.one_fast
@pytest.mark.parametrize("event", [COMPOSED, SAMPLED, Repeat(DiscreteGaussian(2.0), 5)])
def test_sound_noise_is_found_too_small_as_seldom_as_is_stated(event: Event) -> None:
    """In 2% of 1,000 audits at most; noise / 1.25 in nearly all."""
    held, reads = promise(event, 8.0).beside(neighbours="zero_out"), NoiseRead.of(event, "zero_out")
    sound, broken = (
        sum(noise_lacking(reads, redrawn(held, alike(1000), seed, weak), 0.02) > 1 for seed in range(many))
        for weak, many in ((1.0, 1000), (1.25, 100))
    )
    assert rarely(sound, 1000, 0.02)
    assert broken > 95


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.5, 1.7])
def test_of_many_sound_audits_as_few_are_refuted_as_is_stated(mu: float) -> None:
    """All bounds together, at 5%; and at 1e-3 with noise / 1.25 behind the claim, in nine of ten."""
    held, runs = promise(Gaussian(1 / mu), epsilon_of(mu, 1e-5)), 100
    sound = sum(judged(held, redrawn(held, alike(600), seed), 0.05).refutes(held.epsilon) for seed in range(runs))
    assert rarely(sound, runs, 0.05)
    broken = [judged(held, redrawn(held, alike(600), seed, 1.25)) for seed in range(20)]
    assert sum(one.refutes(held.epsilon) for one in broken) >= 18


@pytest.mark.slow
@pytest.mark.parametrize("event", [Gaussian(1 / mu_of(2.0, 1e-5)), Gaussian(1 / mu_of(8.0, 1e-5)), COMPOSED])
def test_of_a_thousand_sound_audits_hardly_one_is_refuted(event: Event) -> None:
    held = promise(event, best(event, 1e-5, "replace").epsilon)
    sound = sum(judged(held, redrawn(held, alike(600), seed)).refutes(held.epsilon) for seed in range(1000))
    assert rarely(sound, 1000, WRONG)


@pytest.mark.slow
def test_a_secret_sample_that_is_none_is_found_by_the_wrong_guesses() -> None:
    """Noise as promised, and the canary in every sample although it should be in a fifth of them."""
    held = promise(SAMPLED, best(SAMPLED, 1e-5, "zero_out").epsilon).beside(neighbours="zero_out")
    told = redrawn(held, alike(1000), 0)
    assert not judged(held, told).refutes(held.epsilon)
    noise = keys.normal(keys.root(0), 1000) / math.sqrt(40 * (0.2 / 1.0765) ** 2)
    always = told._replace(scores=told.there * 5.0 + noise)
    assert noise_lacking(NoiseRead.of(SAMPLED, "zero_out"), always, 1e-3) < 1
    assert judged(held, always).refutes(held.epsilon)


# replays --------------------------------------------------------------------------------------------------------------

DIGITS = ("algorithm=gaussian_gdp", "privacy.delta=1e-5")


@pytest.mark.slow
def test_scores_of_a_replay_are_gaussian_with_the_promised_deviation() -> None:
    """What `redrawn` draws is what replays show, but for 1e-3 of all seeds; noise / 1.5 is not."""
    simulation, held = run(*DIGITS, "rounds=4", "privacy.epsilon=8")
    mu = mu_of(8.0, 1e-5)
    for weak, found in ((1.0, False), (1.5, True)):
        told = played(simulation, held, 1000, weak, 1)
        off = mu * (told.scores - told.there.double())
        assert (float(kstest(off, "norm").pvalue) < 1e-3) is found


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [8.0, 2.0])
@pytest.mark.parametrize(
    ("words", "many", "share"), [(("rounds=1", "algorithm.local_steps=1"), 10_000, 0.9), (("rounds=10",), 1000, 0.8)]
)
def test_the_bound_comes_near_the_truth(words: tuple[str, ...], many: int, share: float, epsilon: float) -> None:
    simulation, held = run(*DIGITS, *words, f"privacy.epsilon={epsilon}")
    told = played(simulation, held, many, 1.0, 0)
    assert len(told.scores) >= many
    assert share * epsilon < judged(held, told).at_least <= epsilon == pytest.approx(held.epsilon)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [f"{who}{at}" for who in ("examples", "clients", "clients, noise at the server") for at in ("", ", epsilon 2")],
)
def test_four_fifths_of_the_noise_are_caught_in_nine_of_ten(name: str) -> None:
    """In three replays of three, and in nine of ten audits redrawn from the first: of an audit that catches half, both
    are true with probability 2e-3.
    """
    simulation, held = run(*ROWS[name].words)
    assert not judged(held, played(simulation, held, ROWS[name].canaries, 1.0, 0)).refutes(held.epsilon)
    told = [played(simulation, held, ROWS[name].canaries, 1.25, seed) for seed in range(3)]
    assert all(judged(held, one).refutes(held.epsilon) for one in told)
    again = (redrawn(held, told[0], seed, 1.25) for seed in range(10))
    assert sum(judged(held, one).refutes(held.epsilon) for one in again) >= 9
