"""The reader's Poisson sampler is what the accountant assumes: independent coins, fresh at every read.

1,000 reads of 30 examples, seen through noise-free gradients. Every statistic is a z-score and must stay within 6 (1e-9
each, a few hundred of them); fixed-size and shuffled samples of the same rate, which earn no such accounting, must be
rejected.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sordino import keys
from sordino.privacy.noise.sources import Counter, SystemNoise
from sordino.privacy.readers.noisy_gradient import NoisyGradient, Sampling
from sordino.tasks.quadratic import Quadratic
from sordino.types import Examples, Grant, LocalWork, NoiseSource
from tests.privacy.doubles import linear

READS, EXAMPLES, RATE = 1_000, 30, 0.3
Draws = NDArray[np.float64]  # [reads, examples], 1 where an example was read


def drawn(source: NoiseSource) -> Draws:
    """Example j has a gradient along coordinate j, so a gradient shows who was read; the noise is a millionth of it."""
    reader = NoisyGradient(1.0, sampling="poisson", rate=RATE, neighbours="zero_out")
    rows = Examples(9 * torch.eye(EXAMPLES, dtype=torch.float64), torch.zeros(EXAMPLES))
    params = {"w": torch.zeros(EXAMPLES, dtype=torch.float64)}
    shard = reader.open(rows, Grant(0, EXAMPLES, EXAMPLES, source, 1e-6), Quadratic(EXAMPLES))
    reads = shard.batches(LocalWork(None, READS, None), keys.root(1))
    return np.rint(torch.stack([batch.grad(linear, params)["w"] for batch in reads]).numpy() * RATE * EXAMPLES)


def worst_z(draws: Draws) -> dict[str, float]:
    reads, n = draws.shape
    variance = RATE * (1 - RATE)
    centred = (draws - RATE) / np.sqrt(variance)
    sizes = draws.sum(1)
    fourth = (1 + 3 * (n - 2) * variance) * n * variance - (
        n * variance
    ) ** 2  # of a binomial, minus its variance squared
    pairs = centred.T @ centred / np.sqrt(reads)
    serial = (centred[1:] * centred[:-1]).mean(1) * np.sqrt(n)
    return {
        "size variance": abs(((sizes - n * RATE) ** 2).mean() - n * variance) / np.sqrt(fourth / reads),
        "marginals": np.abs(centred.mean(0)).max() * np.sqrt(reads),
        "pairs": np.abs(pairs - np.diag(np.diag(pairs))).max(),
        "serial": abs(serial.mean()) * np.sqrt(reads - 1),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "source", [pytest.param(Counter(5), id="counter", marks=pytest.mark.slow), pytest.param(SystemNoise(), id="system")]
)
def test_every_example_tosses_its_own_coin_at_every_read(source: NoiseSource) -> None:
    draws = drawn(source)
    assert set(np.unique(draws)) == {0.0, 1.0}
    assert max(worst_z(draws).values()) < 6


def test_samples_of_fixed_size_are_rejected() -> None:
    rng = np.random.default_rng(1)
    draws = np.argsort(rng.random((READS, EXAMPLES)), axis=1) < RATE * EXAMPLES
    assert worst_z(draws.astype(np.float64))["size variance"] > 10


def test_shuffled_batches_are_rejected() -> None:
    rng = np.random.default_rng(1)
    epochs = [np.argsort(rng.random(EXAMPLES)) * 3 // EXAMPLES for _ in range(READS // 3)]
    draws = np.concatenate([np.stack([epoch == part for part in range(3)]) for epoch in epochs]).astype(np.float64)
    assert worst_z(draws)["serial"] > 10
    assert worst_z(draws)["size variance"] > 10


@pytest.mark.parametrize(
    ("sampling", "rate", "read", "divided"),
    [("full", 1.0, 30, 30), ("poisson", 0.3, None, 9.0), ("fixed_subset", 0.3, 9, 9), ("fixed_subset", 0.01, 1, 1)],
)
def test_a_sum_is_divided_by_a_public_number(sampling: Sampling, rate: float, read: int | None, divided: float) -> None:
    """By the expected number of rows, or by the exact one where it is fixed: at least one. Never by the rows drawn."""
    how = "zero_out" if sampling == "poisson" else "replace"
    reader = NoisyGradient(1.0, sampling=sampling, rate=rate, neighbours=how)
    rows = Examples(9 * torch.eye(EXAMPLES, dtype=torch.float64), torch.zeros(EXAMPLES))
    params = {"w": torch.zeros(EXAMPLES, dtype=torch.float64)}
    shard = reader.open(rows, Grant(0, EXAMPLES, EXAMPLES, Counter(1), 1e-9), Quadratic(EXAMPLES))
    for batch in shard.batches(LocalWork(None, 3, None), keys.root(1)):
        mean = batch.grad(linear, params)["w"]
        seen = (mean.abs() > 1e-3).sum().item()
        assert mean[mean.abs() > 1e-3].abs().numpy() == pytest.approx(1 / divided, rel=1e-4)
        assert read is None or seen == read
    assert reader.denominator(EXAMPLES, EXAMPLES) == pytest.approx(divided)
