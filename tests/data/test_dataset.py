"""Loaders: exact contents, caches that survive damage, and a refusal of its own for everything that does not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sordino.data import SOURCES, sources
from sordino.data.dataset import Dataset, Split, pixel_stats, stratified
from sordino.data.label_kinds import Numbers
from tests.data.files import Array, refused


# ---- the data set
def small(**changes: Any) -> Dataset:
    split = Split(np.arange(12, dtype=np.uint8).reshape(3, 2, 2, 1), np.array([0, 1, 1]), np.array([5, 5, 6]))
    return replace(Dataset("small", "image", 2, split, split, (0.5,), (0.5,)), **changes)


def test_the_fingerprint_is_of_the_data_alone() -> None:
    data = small()
    assert data.fingerprint() == data.fingerprint() == small(name="other", note="x", mean=(0.0,)).fingerprint()
    x, y, group = data.train
    changed = [
        Split(x + np.uint8(1), y, group),
        Split(x.view(np.int8), y, group),
        Split(x.reshape(3, 1, 4, 1), y, group),
        Split(x, y[::-1].copy(), group),
        Split(x, y, None),
        Split(x, y, y),
    ]
    prints = {data.fingerprint(), *(small(train=split).fingerprint() for split in changed)}
    assert len(prints) == 1 + len(changed)
    assert small(train=changed[0]).fingerprint() != small(test=changed[0]).fingerprint()
    with_group, without = Split(y, y, y), Split(y, y, None)
    one, other = small(train=with_group, test=without), small(train=without, test=with_group)
    assert one.fingerprint() != other.fingerprint()
    assert small(train=Split(np.asfortranarray(x), y, group)).fingerprint() == data.fingerprint()


def test_pixel_statistics_agree_with_floating_point() -> None:
    x = np.random.default_rng(0).integers(0, 256, (2500, 3, 2, 3), dtype=np.uint8)
    x[..., 1] = 7
    mean, std = pixel_stats(x)
    assert mean == pytest.approx((x / 255).mean((0, 1, 2)))
    assert std[::2] == pytest.approx((x / 255).std((0, 1, 2))[::2])
    assert std[1] == 1.0  # a constant channel must not divide by 0


def test_a_stratified_split_keeps_proportions_and_refuses_an_empty_side() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [100, 50, 10]))
    train, test = stratified(labels, 0.2, 3)
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(160))
    assert np.bincount(labels[test]).tolist() == [20, 10, 2]
    assert not np.array_equal(test, stratified(labels, 0.2, 4)[1])
    assert refused(lambda: stratified(np.arange(5), 0.2, 0)).code == "empty-split"


def test_every_source_is_a_loader() -> None:
    assert SOURCES["digits"]().shape == (8, 8, 1)
    assert SOURCES["quadratic"](clients=3, dim=4).shape == (8,)
    assert SOURCES["synthetic"](clients=2).shape == (60,)
    assert set(SOURCES) == {"digits", "folder", "images", "tabular", "quadratic", "synthetic"}


def test_digits_are_all_there() -> None:
    from sklearn.datasets import load_digits

    data = sources.digits()
    assert (len(data.train.y), len(data.test.y), data.classes) == (1438, 359, 10)
    assert data.train.x.dtype == np.uint8
    assert data.train.y.dtype == np.int64
    both = np.concatenate([data.train.x, data.test.x]).astype(float)[..., 0]
    grey = np.rint(both * 16 / 255)
    assert np.abs(both - grey * 255 / 16).max() <= 0.5

    def row(image: Array) -> tuple[float, ...]:
        return tuple(image.ravel().tolist())

    assert sorted(map(row, grey)) == sorted(map(row, load_digits().images))
    whole = np.bincount(np.concatenate([data.train.y, data.test.y]))
    assert np.abs(np.bincount(data.test.y) - whole / 5).max() <= 0.5
    assert sources.digits().fingerprint() == data.fingerprint() != sources.digits(seed=1).fingerprint()


# ---- quadratics
def fedavg_fixed_point(data: Dataset, steps: int, lr: float) -> Array:
    """Full participation, `steps` gradient steps per round on loss(w; row) = 0.5 * sum(a * (w - b)^2)."""
    a, b = np.hsplit(data.train.x.astype(np.float64), 2)
    w = np.zeros(a.shape[1])
    for _ in range(2000):
        local = np.tile(w, (len(a), 1))
        for _ in range(steps):
            local -= lr * a * (local - b)
        w = local.mean(0)
    return w


@pytest.mark.slow
def test_the_quadratic_optimum_has_no_gradient_and_fedavg_misses_it() -> None:
    data, optimum = sources.quadratic_with_optimum(clients=6, dim=4, seed=3, examples=2)
    a, b = np.hsplit(data.train.x.astype(np.float64), 2)
    assert np.abs((a * (optimum - b)).mean(0)).max() < 1e-12
    assert a.min() >= 0.5
    assert a.max() <= 2
    assert (np.ptp(a, axis=0) > 0.1).all()
    assert np.abs(fedavg_fixed_point(data, 1, 0.1) - optimum).max() < 1e-9  # one step is gradient descent
    assert np.abs(fedavg_fixed_point(data, 50, 0.4) - b.mean(0)).max() < 1e-3  # many: the mean of the minimisers
    assert np.abs(b.mean(0) - optimum).max() > 0.01
    same, shared = sources.quadratic_with_optimum(clients=6, dim=4, seed=3, heterogeneity=0.0)
    assert np.abs(fedavg_fixed_point(same, 50, 0.4) - shared).max() < 1e-6


def test_quadratic_rows_belong_to_their_clients_and_stay_as_they_are() -> None:
    data, _ = sources.quadratic_with_optimum(clients=3, dim=2, examples=4)
    assert data.train.x.shape == (12, 4)
    assert data.train.group is not None
    assert data.train.group.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert (data.classes, set(data.mean), set(data.std)) == (0, {0.0}, {1.0})
    assert not data.train.y.any()
    assert (
        sources.quadratic_with_optimum(3, 2)[0].fingerprint()
        != sources.quadratic_with_optimum(3, 2, seed=1)[0].fingerprint()
    )


class Pictures(torch.utils.data.Dataset[Any]):
    """A torch data set of 40 pictures, of which one may be deeper than a byte."""

    def __init__(self, deep: bool) -> None:
        self._deep = deep

    def __len__(self) -> int:
        return 40

    def __getitem__(self, at: int) -> tuple[Any, float]:
        return np.full((4, 4, 1), at, np.uint16 if self._deep and at == 3 else np.uint8), at / 40


def test_one_deep_picture_makes_no_numbers_of_all_others() -> None:
    """As it was, the kind of the data, which stands in the agreement, was that of a table."""
    outcome = Numbers(0, 1)
    even, odd = (sources.rows_of(Pictures(deep)) for deep in (False, True))
    assert sources.load(even, "mine", "none", outcome=outcome).kind == "image"
    error = refused(lambda: sources.load(odd, "mine", "none", outcome=outcome))
    assert (error.code, "as bytes in some rows" in error.what) == ("own-rows-unfit", True)
