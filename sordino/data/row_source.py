"""Examples that come from no file: from a user's own class, arrays in memory, or a torch data set.

Declared facts (number of classes, range of values) are public. Facts that are not declared are inferred from the rows,
as for a table without a schema.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch

from sordino.data.dataset import Array, Dataset, Split, apart, each_pixel_stats, pixel_stats
from sordino.data.label_kinds import LabelKind, NextTokens
from sordino.errors import DataError

BYTES = (0.0, 255.0)  # between which the values of images lie


class SourceRows(NamedTuple):
    """Examples with their labels; `group` names the client of each."""

    x: Array  # images as uint8 [n, height, width, channels]; anything else as numbers [n, ...]
    y: Array  # whole numbers from 0; where [task] predicts no class numbers, or 0 and 1 in a column for each label
    group: Array | None = None


class RowSource(ABC):
    """Base class of a user's own source of examples. A subclass is named in data.source; its arguments are in
    data.options.
    """

    classes: ClassVar[int | None] = None  # how many there are; None: counted from the labels of all rows
    reach: ClassVar[tuple[float, float] | None] = None  # of every value; None: scaled by mean and deviation of the rows

    @abstractmethod
    def rows(self, seed: int) -> SourceRows:
        """All rows. All random draws must come from the seed."""

    def tests(self, seed: int) -> SourceRows | None:
        """Test rows; None if some of `rows` are to be held back instead."""
        return None


def rows_of(given: object) -> RowSource:
    """Data in memory as a source: a dictionary of arrays, or a torch data set."""
    if isinstance(given, Mapping):
        return Arrays(given)
    if isinstance(given, torch.utils.data.Dataset):
        return TorchRows(given)
    if isinstance(given, RowSource):
        return given
    raise DataError(
        f"data of type {type(given).__name__} cannot be read",
        why="rows come as a data frame, as arrays, or as a data set of torch",
        fix='give a data frame, {"x": array, "y": array}, or a torch.utils.data.Dataset',
        code="unreadable-rows",
    )


class Arrays(RowSource):
    """Data in memory: arrays `x` and `y`, optionally `group`, the declarations `classes` and `reach` (range of values),
    and a `test` set of the same form.
    """

    KEYS = ("x", "y", "group", "classes", "reach", "test")

    def __init__(self, given: Mapping[str, object]) -> None:
        if missing := [key for key in ("x", "y") if key not in given] + [key for key in given if key not in self.KEYS]:
            raise DataError(
                f"data in memory with {missing[0]!r}" if missing[0] in given else f"data in memory lack {missing[0]!r}",
                why=f"the keys are {', '.join(self.KEYS)}; x and y must be there",
                fix='give {"x": array, "y": array}',
                code="unreadable-rows",
            )
        self._given = given
        self.classes, self.reach = given.get("classes"), given.get("reach")  # type: ignore[misc,assignment]

    def rows(self, seed: int) -> SourceRows:
        return _arrays(self._given)

    def tests(self, seed: int) -> SourceRows | None:
        test = self._given.get("test")
        return None if test is None else _arrays(test)


def _arrays(given: object) -> SourceRows:
    assert isinstance(given, Mapping)
    group = given.get("group")
    return SourceRows(np.asarray(given["x"]), np.asarray(given["y"]), None if group is None else np.asarray(group))


class TorchRows(RowSource):
    """A torch data set that returns (x, y) or (x, y, group) for an index."""

    def __init__(self, given: torch.utils.data.Dataset[Any]) -> None:
        self._given = given

    def rows(self, seed: int) -> SourceRows:
        size = len(self._given)  # type: ignore[arg-type]
        columns = zip(*(self._given[at] for at in range(size)), strict=True)
        return SourceRows(*(np.stack([np.asarray(cell) for cell in column]) for column in columns))


def load(
    source: RowSource,
    name: str,
    standardise: Literal["fixed", "channel", "pixel", "none"],
    test_fraction: float | None = None,
    seed: int = 0,
    coins: int = 1,
    outcome: LabelKind | None = None,
) -> Dataset:
    """A data set from a row source. `standardise`: "fixed" by the declared range of values, "channel" or "pixel" by
    statistics of the training rows, or "none". `seed` is for the source's own draws, `coins` for holding back test
    rows, so that the two are independent.
    """
    given, tested = source.rows(seed), source.tests(seed)
    parts = [_checked(part, name, outcome) for part in (given, tested) if part is not None]
    classes = 0 if outcome is not None else source.classes or int(max(part.y.max() for part in parts)) + 1
    whole = tuple(np.concatenate(column) for column in zip(*((part.x, part.y) for part in parts), strict=True))
    if outcome is None and whole[1].max() >= classes:  # which label it is stays with the owner of the rows
        raise _unfit(name, f"has a label beyond the {classes} classes that it declares")
    groups, codes = _groups(parts)
    x, y = _between(whole[0], source.reach), whole[1]
    if tested is None:
        train, test = apart([len(y)], None, 0.2 if test_fraction is None else test_fraction, coins)
    else:
        train, test = np.arange(len(given.y)), np.arange(len(given.y), len(y))
    splits = [*map(Split(x, y, codes).at, (train, test))]
    mean, std = _scale(splits[0].x, source.reach, standardise)
    return Dataset(
        name,
        "image" if x.dtype == np.uint8 else "table",
        classes,
        splits[0],
        splits[1],
        mean,
        std,
        declared=f"{source.classes};{source.reach}" + ("" if outcome is None else repr(outcome)),
        groups=groups,
        remarks=_moved(whole[0], source.reach),
    )


def is_image(x: Array) -> bool:
    return x.dtype == np.uint8 and x.ndim == 4


def _checked(given: SourceRows, name: str, outcome: LabelKind | None) -> SourceRows:
    x, y = np.asarray(given.x), _labels(np.asarray(given.y), name, outcome)
    group = None if given.group is None else np.asarray(given.group)
    if len(x) != len(y) or y.ndim != 1 or x.ndim < 2 or (group is not None and group.shape != y.shape):
        shapes = f"x {x.shape[1:]} of {len(x)} rows, y {y.shape}" + ("" if group is None else f", group {group.shape}")
        raise _unfit(name, f"gives {shapes}: one row of x, one label and one group belong together")
    if not len(y):
        raise _unfit(name, "gives no rows")
    if x.dtype.kind not in "iufb":
        raise _unfit(name, f"gives x of type {x.dtype}, and not numbers")
    x = np.ascontiguousarray(x if is_image(x) else x.astype(np.float32))
    if x.dtype != np.uint8 and not np.isfinite(x).all():
        raise _unfit(name, "gives numbers in x that are not finite")
    if isinstance(outcome, NextTokens) and not outcome.are_texts(x):
        raise _unfit(name, f"gives x that are no texts [n, length] of tokens 1 to {outcome.vocabulary}, and 0 for none")
    return SourceRows(x, y, group)


def _labels(y: Array, name: str, outcome: LabelKind | None) -> Array:
    if outcome is not None:
        if (found := outcome.taken(y)) is None:
            raise _unfit(name, f"gives labels that are not what [task] says, {outcome}")
        return found
    if y.dtype.kind not in "iub" or (y < 0).any():
        raise _unfit(name, "gives labels that are not whole numbers from 0 on, and [task] declares no other kind")
    return y.astype(np.int64)


def _groups(parts: list[SourceRows]) -> tuple[tuple[str, ...], Array | None]:
    held = [part.group for part in parts]
    if any(group is None for group in held):
        return (), None
    told = np.concatenate([group.astype(str) for group in held if group is not None])
    names, codes = np.unique(told, return_inverse=True)
    return tuple(map(str, names)), codes.astype(np.int64)


def _between(x: Array, reach: tuple[float, float] | None) -> Array:
    """Values clipped to the declared range."""
    return x if reach is None or x.dtype == np.uint8 else np.clip(x, *reach)


def _moved(x: Array, reach: tuple[float, float] | None) -> tuple[str, ...]:
    if reach is None or x.dtype == np.uint8 or not (count := int(((x < reach[0]) | (x > reach[1])).sum())):
        return ()
    ends = f"[{reach[0]:g}, {reach[1]:g}]"
    return (f"x: {count:,} of {x.size:,} values lie outside {ends}, the declared reach: each is moved to its end",)


def _scale(
    x: Array, reach: tuple[float, float] | None, standardise: str
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    width = x.shape[-1]
    if standardise == "none":
        return (0.0,) * width, (1.0,) * width
    if x.dtype == np.uint8:
        return each_pixel_stats(x) if standardise == "pixel" else pixel_stats(x)  # "fixed" is set by the caller
    if standardise == "fixed" and reach is not None:
        low, high = reach
        return ((low + high) / 2,) * width, ((high - low) / 2 or 1.0,) * width
    flat = x.reshape(-1, width).astype(np.float64)
    std = flat.std(0)
    return tuple(flat.mean(0).tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


def _unfit(name: str, why: str) -> DataError:
    return DataError(
        f"the data source {name} {why}",
        why="examples are arrays: x with one row each, y with their labels, which are whole numbers from 0 or what "
        "[task] says, and maybe a group",
        fix="correct the returned value; `sordino check FILE` tests it",
        code="own-rows-unfit",
    )
