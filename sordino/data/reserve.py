"""Reductions of a data set before the partition: smaller images, fewer examples, and examples that the server keeps.

Examples are drawn class by class from a seed, so that each class contributes its share and the same seed selects the
same examples.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sordino.data.dataset import Array, Dataset, Split, each_pixel_stats, pixel_stats
from sordino.errors import INSIDE, DataError, check_range

BLOCK = 2**23  # numbers at a time


class Reserved(NamedTuple):
    """The clients' data set, and the parts taken out of it for the server; None for a part that was not requested."""

    dataset: Dataset
    probe: Split | None  # labelled examples the server ranks models with
    pool: Split | None  # public examples


def resized(dataset: Dataset, side: int) -> Dataset:
    """Every image averaged down to side x side pixels; mean and std are those of the new training images."""
    if dataset.kind != "image":
        raise DataError(
            f"{dataset.name} cannot be resized to {side}x{side}",
            why="its examples are rows of a table, not images",
            fix="leave data.side out, or use images",
            code="not-an-image-set",
        )
    if dataset.shape[:2] == (side, side):
        return dataset
    train = dataset.train._replace(x=area(dataset.train.x, side))
    merged = dataset.test is dataset.train
    test = train if merged else dataset.test._replace(x=area(dataset.test.x, side))
    stats = (pixel_stats if len(dataset.mean) == dataset.shape[-1] else each_pixel_stats)(train.x)
    return replace(dataset, train=train, test=test, mean=stats[0], std=stats[1])


def area(images: Array, side: int) -> Array:
    """Images uint8 [n, height, width, channels] averaged to [n, side, side, channels], to the nearest level. A new
    pixel is the mean over the area it covers, in which a pixel at its edge counts in part; box filters and average
    pools take whole pixels only. Exact: integers until one final division.
    """
    _, height, width, channels = images.shape
    down, across = _overlap(height, side), _overlap(width, side)
    out = np.empty((len(images), side, side, channels), np.uint8)
    step = max(1, BLOCK // (height * width * channels))
    for start in range(0, len(images), step):
        block = images[start : start + step].astype(np.float64)
        rows = (down @ block.reshape(len(block), height, -1)).reshape(len(block), side, width, channels)
        cells = rows.swapaxes(2, 3) @ across.T  # [n, side, channels, side]
        out[start : start + step] = np.floor(cells.swapaxes(2, 3) / (height * width) + 0.5)
    return out


def _overlap(pixels: int, side: int) -> Array:
    """Overlap of each new pixel with each old one, [side, pixels], in units of 1/side of an old pixel; every row sums
    to `pixels`.
    """
    new, old = np.arange(side)[:, None] * pixels, np.arange(pixels) * side
    inside = np.minimum(new + pixels, old + side) - np.maximum(new, old)
    return np.asarray(np.maximum(inside, 0), np.float64)


def smaller(dataset: Dataset, train: int | None, test: int | None, seed: int) -> Dataset:
    """A random subset of a data set with the same proportions of classes: `train` and `test` examples; None leaves a
    split as it is. Means and deviations stay those of the whole.
    """
    if dataset.test is not dataset.train:
        return replace(dataset, train=_part(dataset, "train", train, seed), test=_part(dataset, "test", test, seed))
    if test is not None:
        raise DataError(
            f"data.test = {test} for {dataset.name}",
            why="with data.merge there is no separate test set: each client holds back some of its own examples",
            fix="leave data.test out",
            code="no-test-set-of-its-own",
        )
    both = _part(dataset, "train", train, seed)
    return replace(dataset, train=both, test=both)


def _part(dataset: Dataset, name: str, count: int | None, seed: int) -> Split:
    split: Split = getattr(dataset, name)
    if count is None:
        return split
    classes, held = np.unique(split.y, return_counts=True)
    if not len(classes) <= count <= len(split.y):
        raise DataError(
            f"data.{name} = {count} for {dataset.name}",
            why=f"it has {len(split.y):,} such examples, and each of its {len(classes)} classes must keep at least one",
            fix=f"set a number from {len(classes)} to {len(split.y):,}",
            code="bad-subset-size",
        )
    rng = np.random.default_rng([seed, name == "test"])
    rows = [
        rng.permutation(np.flatnonzero(split.y == label))[:share]
        for label, share in zip(classes, _shares(held, count), strict=True)
    ]
    return split.at(np.sort(np.concatenate(rows)))


def _shares(held: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Whole numbers, at least 1 each, that sum to `count` and are as near as possible to the proportions of `held`."""
    given: NDArray[np.int64] = np.maximum(held * count // held.sum(), 1)
    while left := count - int(given.sum()):
        lacks = held * count - given * held.sum()
        if left > 0:
            given[lacks.argmax()] += 1
        else:  # small classes were given more than their share: the one with the most beyond its own gives back
            given[np.where(given > 1, lacks, lacks.max() + 1).argmin()] -= 1
    return given


def reserve(dataset: Dataset, probe: int | float | None, pool: float | None, seed: int) -> Reserved:
    """Takes examples out of the training set for the server. `probe`: labelled examples on which it ranks models, a
    number of each class, or a fraction of each class, rounded up. `pool`: public images to choose from, this fraction
    of each class, at least one.
    """
    if probe is not None and not (0 < probe < 1 if isinstance(probe, float) else probe >= 1):
        raise DataError(
            f"data.probe = {probe}",
            why="it must be a whole number of examples of each class, at least 1, or a share of each class, above "
            "0 and below 1",
            fix="set data.probe = 50 or data.probe = 0.02, or leave it out if no algorithm needs it",
            code="bad-reserve",
        )
    if pool is not None:
        why = "it is a share of each class"
        check_range("pool", pool, INSIDE, "bad-reserve", error=DataError, why=why, fix="set for example 0.1")
    if dataset.classes == 0:
        raise DataError(
            f"examples of each class cannot be held back from {dataset.name}",
            why="this data has no classes",
            fix="use labelled data",
            code="no-classes",
        )
    if probe is None and pool is None:
        return Reserved(dataset, None, None)
    train, rng = dataset.train, np.random.default_rng(seed)
    taken: dict[str, list[Array]] = {"rest": [], "probe": [], "pool": []}
    for label in range(dataset.classes):
        rows = rng.permutation(np.flatnonzero(train.y == label))
        # 0.02 of 150 is 3: not so for floats
        first = math.ceil(Fraction(str(probe)) * len(rows)) if isinstance(probe, float) else probe or 0
        second = first + (max(1, round(pool * len(rows))) if pool else 0)
        if second >= len(rows):
            raise DataError(
                f"class {dataset.class_names[label]} of {dataset.name} has only {len(rows)} training examples",
                why=f"{first} of them would be the probe, {second - first} would be public, and the clients need at "
                "least one",
                fix="set a smaller data.probe or a smaller public share, or use more data",
                code="class-too-small",
            )
        for name, slice_ in (("probe", rows[:first]), ("pool", rows[first:second]), ("rest", rows[second:])):
            taken[name].append(slice_)
    found = {name: train.at(np.sort(np.concatenate(rows))) for name, rows in taken.items()}
    rest = found["rest"]
    left = replace(dataset, train=rest, test=rest if dataset.test is train else dataset.test)
    return Reserved(left, found["probe"] if probe else None, found["pool"] if pool else None)
