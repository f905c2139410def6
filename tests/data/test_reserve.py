"""Smaller data sets: pixels are exact area means, slices are disjoint, stratified, complete and the same for the same
seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from sordino.data import sources
from sordino.data.dataset import Dataset, Split, area, each_pixel_stats, pixel_stats
from sordino.errors import DataError
from sordino.runs.population import reserve, resized, smaller

Array = NDArray[Any]
held_by_class = st.lists(st.integers(1, 60), min_size=1, max_size=8)
seeds = st.integers(0, 2**64 - 1)


def numbered(held: list[int], test: int = 30, group: bool = True) -> Dataset:
    """So many training examples of each class, shuffled; every image and every group key says which row it is."""
    y = np.random.default_rng(len(held)).permutation(np.repeat(np.arange(len(held)), held))
    rows = np.arange(len(y))
    x = np.stack([rows // 256, rows % 256], -1).astype(np.uint8).reshape(-1, 1, 1, 2)
    other = Split(np.zeros((test, 1, 1, 2), np.uint8), np.arange(test) % len(held), np.arange(test))
    train = Split(x, y, rows if group else None)
    return Dataset(
        "numbered", "image", len(held), train, other, (0.1, 0.2), (0.3, 0.4), "a note", tuple("abcdefgh"[: len(held)])
    )


def rows(split: Split) -> Array:
    """Which rows of `numbered` these are; images, labels and groups must agree."""
    found = split.x[:, 0, 0, 0].astype(int) * 256 + split.x[:, 0, 0, 1]
    assert split.group is None or np.array_equal(found, split.group)
    return found


def refused(act: Callable[[], object]) -> DataError:
    with pytest.raises(DataError) as caught:
        act()
    assert caught.value.why or caught.value.fix
    return caught.value


# ---- pixels


def by_replication(images: Array, side: int) -> Array:
    """The same by another way: every pixel as side x side of itself, then the mean of whole blocks, rounded half up in
    whole numbers.
    """
    n, height, width, channels = images.shape
    fine = images.astype(np.int64).repeat(side, 1).repeat(side, 2)
    sums = fine.reshape(n, side, height, side, width, channels).sum((2, 4))
    return (2 * sums + height * width) // (2 * height * width)


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 20), st.sampled_from([1, 3]), st.integers(0, 99))
def test_a_new_pixel_is_the_mean_over_its_area(height: int, width: int, side: int, channels: int, seed: int) -> None:
    images = np.random.default_rng(seed).integers(0, 256, (3, height, width, channels), dtype=np.uint8)
    found = area(images, side)
    assert (found.dtype, found.shape) == (np.uint8, (3, side, side, channels))
    assert np.array_equal(found, by_replication(images, side))


def test_whole_factors_are_block_means_and_larger_sizes_repeat_pixels() -> None:
    images = np.random.default_rng(0).integers(0, 256, (1500, 8, 8, 1), dtype=np.uint8)  # more than one block
    means = images.reshape(-1, 4, 2, 4, 2, 1).astype(float).mean((2, 4))
    assert np.array_equal(area(images, 4), np.floor(means + 0.5))
    assert np.array_equal(area(images, 16), images.repeat(2, 1).repeat(2, 2))
    assert (area(np.full((1, 28, 28, 1), 255, np.uint8), 16) == 255).all()


def test_pillows_box_filter_agrees_where_it_takes_whole_pixels() -> None:
    images = np.random.default_rng(1).integers(0, 256, (20, 28, 28, 3), dtype=np.uint8)

    def pillow(side: int) -> Array:
        box = [Image.fromarray(image).resize((side, side), Image.Resampling.BOX) for image in images]
        return np.stack([np.asarray(image, np.int64) for image in box])

    for side in (4, 7, 14):
        assert np.abs(area(images, side) - pillow(side)).max() <= 1  # which rounds once per direction
    assert np.abs(area(images, 16) - pillow(16)).max() > 20  # where it does not, it is another filter


def test_a_resized_set_has_the_means_of_its_own_pixels() -> None:
    data = sources.digits()
    small = resized(data, 4)
    assert small.shape == (4, 4, 1)
    assert (small.mean, small.std) == pixel_stats(small.train.x) != (data.mean, data.std)
    assert np.array_equal(small.test.x, area(data.test.x, 4))
    assert np.array_equal(small.train.y, data.train.y)
    assert (small.classes, small.names, small.name) == (10, data.names, "digits")
    assert resized(data, 8) is data
    mean, std = each_pixel_stats(data.train.x)
    pixelwise = resized(replace(data, mean=mean, std=std), 4)
    assert (pixelwise.mean, pixelwise.std) == each_pixel_stats(small.train.x)
    merged = resized(replace(data, test=data.train), 4)
    assert merged.test is merged.train


def test_only_images() -> None:
    assert refused(lambda: resized(sources.quadratic(), 4)).code == "not-an-image-set"


# ---- fewer examples


@settings(deadline=None)
@given(held_by_class, st.floats(0, 1), seeds, st.booleans())
def test_a_smaller_set_keeps_proportions_and_every_class(held: list[int], part: float, seed: int, group: bool) -> None:
    data = numbered(held, group=group)
    count = len(held) + round(part * (sum(held) - len(held)))
    small = smaller(data, count, None, seed)
    taken = rows(small.train)
    assert np.array_equal(taken, np.unique(taken))  # none twice, in file order
    assert np.array_equal(small.train.y, data.train.y[taken])
    kept = np.bincount(small.train.y, minlength=len(held))
    assert kept.sum() == count
    ideal = np.array(held) * count / sum(held)
    assert (kept >= np.maximum(np.floor(ideal), 1) - (ideal.min() < 1) * len(held)).all()
    assert (kept >= 1).all()
    if ideal.min() >= 1:
        assert np.abs(kept - ideal).max() < 1
    assert small.test is data.test
    assert (small.mean, small.note, small.names) == (data.mean, data.note, data.names)
    assert smaller(data, count, None, seed).fingerprint() == small.fingerprint()


def test_the_seed_decides_and_each_split_is_drawn_on_its_own() -> None:
    data = numbered([40, 20], test=60)
    one, other = (smaller(data, 30, 30, seed) for seed in (0, 1))
    assert not np.array_equal(rows(one.train), rows(other.train))
    assert np.bincount(one.test.y).tolist() == [15, 15]
    assert np.array_equal(smaller(data, None, 30, 0).test.group, one.test.group)  # type: ignore[arg-type]
    twins = replace(data, test=Split(*(column.copy() for column in data.train if column is not None)))
    assert not np.array_equal(rows(smaller(twins, 30, 30, 0).train), rows(smaller(twins, 30, 30, 0).test))
    merged = smaller(replace(data, test=data.train), 30, None, 0)
    assert merged.test is merged.train
    assert np.array_equal(rows(merged.train), rows(one.train))
    assert smaller(data, None, None, 0).fingerprint() == data.fingerprint()


def test_too_much_and_too_little_are_refused() -> None:
    data = numbered([40, 20])
    for train, test in ((61, None), (1, None), (None, 31), (None, 0), (-5, None)):
        assert refused(lambda n=train, m=test: smaller(data, n, m, 0)).code == "bad-subset-size"  # type: ignore[misc]
    merged = replace(data, test=data.train)
    assert refused(lambda: smaller(merged, 30, 10, 0)).code == "no-test-set-of-its-own"


# ---- slices for the server


@settings(deadline=None)
@given(
    st.lists(st.integers(12, 60), min_size=1, max_size=8),
    st.none() | st.integers(1, 5),
    st.none() | st.floats(0.001, 0.5),
    seeds,
    st.booleans(),
)
def test_slices_are_disjoint_stratified_and_lose_nothing(
    held: list[int], probe: int | None, pool: float | None, seed: int, group: bool
) -> None:
    data = numbered(held, group=group)
    found = reserve(data, probe, pool, seed)
    parts = [part for part in (found.dataset.train, found.probe, found.pool) if part is not None]
    assert len(parts) == 1 + (probe is not None) + (pool is not None)
    together = np.concatenate([rows(part) for part in parts])
    assert np.array_equal(np.sort(together), np.arange(len(data.train.y)))  # each example once
    for part in parts:
        assert np.array_equal(part.y, data.train.y[rows(part)])
        assert (part.group is None) != group
    if found.probe is not None:
        assert np.bincount(found.probe.y).tolist() == [probe] * len(held)
        alone = reserve(data, probe, None, seed).probe
        assert alone is not None
        assert np.array_equal(rows(alone), rows(found.probe))  # whether or not there is a pool
    if found.pool is not None:
        assert pool is not None
        share = np.bincount(found.pool.y, minlength=len(held))
        assert (np.abs(share - np.maximum(pool * np.array(held), 1)) <= 0.5).all()
    again = reserve(data, probe, pool, seed)
    assert again.dataset.fingerprint() == found.dataset.fingerprint()
    assert found.dataset.test is data.test


@settings(deadline=None)
@given(held_by_class.map(lambda held: [n + 2 for n in held]), st.integers(1, 499), seeds)
def test_a_share_is_taken_of_every_class_and_rounded_up(held: list[int], thousandths: int, seed: int) -> None:
    data, share = numbered(held), thousandths / 1000
    found = reserve(data, share, None, seed)
    assert found.probe is not None
    wanted = [-(-n * thousandths // 1000) for n in held]  # in whole numbers
    assert np.bincount(found.probe.y, minlength=len(held)).tolist() == wanted
    assert min(wanted) >= 1
    together = np.concatenate([rows(found.probe), rows(found.dataset.train)])
    assert np.array_equal(np.sort(together), np.arange(len(data.train.y)))


def test_another_seed_reserves_others() -> None:
    data = numbered([100, 100])
    probes = [reserve(data, 50, 0.1, seed).probe for seed in (0, 1)]
    one, other = (rows(probe) for probe in probes if probe is not None)
    # Two draws of 50 of 100 share 25 on average per class, with a deviation of 2.5: more than 40 is six deviations
    # away.
    for label in (0, 1):
        assert len(set(one) & set(other) & set(np.flatnonzero(data.train.y == label))) < 40


def test_reserves_that_cannot_be_are_refused() -> None:
    data = numbered([40, 8])
    none: list[tuple[float | None, float | None]] = [(0, None), (-1, None), (0.0, None), (1.0, None), (-0.1, None)]
    none += [(2.0, None), (float("nan"), None), (None, 0.0), (None, 1.0), (None, -0.1), (5, float("nan"))]
    for probe, pool in none:
        assert refused(lambda n=probe, s=pool: reserve(data, n, s, 0)).code == "bad-reserve"  # type: ignore[misc]
    error = refused(lambda: reserve(data, 8, None, 0))
    assert (error.code, "class b" in str(error)) == ("class-too-small", True)
    assert refused(lambda: reserve(data, 7, 0.1, 0)).code == "class-too-small"
    assert refused(lambda: reserve(data, 0.9, None, 0)).code == "class-too-small"  # 8 of 8
    assert np.bincount(reserve(data, 7, None, 0).dataset.train.y).tolist() == [33, 1]  # just enough
    lacking = replace(data, classes=3)
    assert refused(lambda: reserve(lacking, 1, None, 0)).code == "class-too-small"
    assert refused(lambda: reserve(sources.quadratic(), 1, None, 0)).code == "no-classes"
    merged = reserve(replace(data, test=data.train), 2, None, 0).dataset
    assert merged.test is merged.train
    whole = reserve(data, None, None, 0)
    assert whole.dataset is data
    assert whole.probe is whole.pool is None
