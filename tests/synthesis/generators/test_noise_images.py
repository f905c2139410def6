"""Pure noise with classes: they are there, and nobody's data is."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sordino import keys
from sordino.synthesis import vhl
from sordino.synthesis.vhl import Source, noise_set, spread_rows

KEY = keys.root(14)


def accuracy(x: Tensor, y: Tensor) -> float:
    """Of the nearest class mean of one half, on the other half."""
    flat, half = x.float().flatten(1), torch.arange(len(y)) % 2 == 0
    means = torch.stack([flat[half & (y == c)].mean(0) for c in range(int(y.max()) + 1)])
    return float((torch.cdist(flat[~half], means).argmin(1) == y[~half]).double().mean())


@pytest.mark.parametrize(
    ("source", "side", "channels"),
    [("stylegan", 16, 1), ("stylegan", 32, 3), ("random_conv", 16, 1), ("random_conv", 28, 3)],
)
@pytest.mark.slow
def test_classes_can_be_told_apart(source: Source, side: int, channels: int) -> None:
    x, y = noise_set(10, 20, side, channels, KEY, source, width=32)
    assert x.shape == (200, side, side, channels)
    assert (x.dtype, y.dtype) == (torch.uint8, torch.int64)
    assert y.bincount().tolist() == [20] * 10
    assert 20 < float(x.float().std()) < 110  # neither grey nor black and white
    assert accuracy(x, y) > 0.4
    mixed = y[keys.permutation(KEY, len(y))]
    assert accuracy(x, mixed) < 0.28  # chance is 0.1: 6 standard errors of 100 coins
    assert float(x.float().flatten(1).std(0).mean()) > 5
    assert len({image.numpy().tobytes() for image in x}) == 200


@pytest.mark.slow
@pytest.mark.parametrize("source", ["stylegan", "random_conv"])
def test_a_function_of_the_key(source: Source) -> None:
    before = torch.get_rng_state()
    one, again = (noise_set(3, 4, 16, 1, KEY, source, width=16)[0] for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(one, again)
    assert not torch.equal(one, noise_set(3, 4, 16, 1, keys.root(2), source, width=16)[0])


@pytest.mark.slow
def test_classes_differ_by_what_is_injected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vhl, "FEW", vhl.Latents(64, 0.0, 0.3))  # equal means of the latents
    assert accuracy(*noise_set(4, 100, 16, 1, KEY, width=32)) > 0.42
    # without either, chance is 1/4: 5.5 standard errors of 200 coins
    monkeypatch.setattr(vhl, "spread_rows", lambda classes, layers, key: torch.zeros(classes, layers))
    assert accuracy(*noise_set(4, 100, 16, 1, KEY, width=32)) < 0.42


@pytest.mark.slow
def test_columns_of_the_layer_means_part() -> None:
    start = torch.randn(10, 7, generator=keys.generator(KEY))
    rows = spread_rows(10, 7, KEY)
    assert torch.allclose(rows.norm(dim=1), torch.ones(10))

    def tangled(r: Tensor) -> float:
        products = (F.normalize(r).T @ F.normalize(r)).square()
        return float(products.sum() - products.diagonal().sum())

    assert tangled(rows) < 0.05 * tangled(start)


def test_it_says_what_it_does_while_it_draws(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="sordino.waiting"):
        noise_set(2, 1, 8, 1, KEY, "random_conv", width=8)
    assert caplog.messages == [f"draws images of noise, once for all clients: class {c} of 2" for c in (1, 2)]
