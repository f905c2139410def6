"""Data sets that come from no table or image file: those of the package (handwritten digits, and two synthetic ones),
and a user's own class, arrays in memory, or a torch data set.

Declared facts (number of classes, range of values) are public. Facts that are not declared are inferred from the rows,
as for a table without a schema.

Quadratic clients have a known optimum: the test bed of client drift (Karimireddy et al., ICML 2020).

Client k holds f_k(w) = 1/2 sum_j a_kj (w_j - b_kj)^2. Its rows are [a_k, b_k] (width 2 dim), and the loss that a task
must use on a row is

    loss(w; row) = 0.5 * sum(a * (w - b)^2)

so that the mean over a client's rows is f_k, and the mean over all rows has its minimum, coordinate by coordinate, at
sum_k a_k b_k / sum_k a_k. The curvatures a_k differ between clients, so FedAvg's fixed point is another one: with many
local steps it tends to mean_k b_k.

synthetic(alpha, beta) has devices with a linear truth and inputs of their own (Li et al., MLSys 2020; after Shamir,
Srebro and Zhang, ICML 2014).

Device k: u_k ~ N(0, alpha), B_k ~ N(0, beta) (standard deviations, as in the authors' code); W_k and b_k ~ N(u_k, 1),
v_k ~ N(B_k, 1) entry by entry; x ~ N(v_k, diag(j^-1.2)), y = argmax(x W_k + b_k). alpha is how much local truths
differ, beta how much inputs differ; synthetic(0, 0) is still not IID. The IID set has one W, b ~ N(0, 1) for all and
v_k = 0. Sizes are 50 + floor(LogNormal(4, 2)).
"""

from __future__ import annotations

import gzip
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch

from sordino.data.dataset import (
    PLACES,
    STRATIFIED,
    Array,
    Dataset,
    DrawnRows,
    Split,
    apart,
    each_pixel_stats,
    pixel_stats,
    stratified,
)
from sordino.data.label_kinds import LabelKind, NextTokens
from sordino.errors import DataError

# digits ---------------------------------------------------------------------------------------------------------------

ROW = 8 * 8 + 1  # 64 grey levels from 0 to 16, and the label


def digits(test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Handwritten digits (Alpaydin and Kaynak, UCI 1998, CC BY 4.0): 1,797 real grey 8x8 images in the package."""
    rows = np.frombuffer(gzip.decompress(files("sordino.data").joinpath("digits.bin.gz").read_bytes()), np.uint8)
    rows = rows.reshape(-1, ROW)
    images = np.rint(rows[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)  # 17 levels, spread over a byte
    labels = rows[:, -1].astype(np.int64)
    train, test = (Split(images[part], labels[part]) for part in stratified(labels, test_fraction, seed))
    mean, std = pixel_stats(train.x)
    names = tuple("0123456789")
    return Dataset("digits", "image", 10, train, test, mean, std, names=names, taken_as_public=(STRATIFIED,))


# quadratic ------------------------------------------------------------------------------------------------------------


def quadratic_with_optimum(
    clients: int, dim: int, seed: int = 0, heterogeneity: float = 1.0, examples: int = 1
) -> tuple[Dataset, Array]:
    """Random quadratic losses, one for each client, and the optimum of their sum; with heterogeneity = 0 all have the
    same minimiser. The test examples repeat the training examples."""
    rng = np.random.default_rng(seed)
    curvature = rng.uniform(0.5, 2.0, (clients, dim))
    minimiser = rng.normal(size=dim) + heterogeneity * rng.normal(size=(clients, dim))
    rows = np.hstack([curvature, minimiser]).astype(np.float32).repeat(examples, axis=0)
    split = Split(rows, np.zeros(len(rows), np.int64), np.arange(clients, dtype=np.int64).repeat(examples))

    a, b = np.hsplit(rows.astype(np.float64), 2)  # from the stored float32, so that the optimum is that of the data
    untouched = ((0.0,) * (2 * dim), (1.0,) * (2 * dim))  # standardising would change the problem
    return Dataset("quadratic", "table", 0, split, split, *untouched), (a * b).sum(0) / a.sum(0)


def quadratic(
    clients: int = 10, dim: int = 10, seed: int = 0, heterogeneity: float = 1.0, examples: int = 1
) -> Dataset:
    """Random quadratic losses, one for each client, whose optimum is known in closed form: for tests of optimisers."""
    return quadratic_with_optimum(clients, dim, seed, heterogeneity, examples)[0]


# synthetic(alpha, beta) -----------------------------------------------------------------------------------------------

FEATURES, CLASSES = 60, 10
SPREAD = np.arange(1, FEATURES + 1) ** -0.6  # standard deviations
HELD = 1 << 30  # bytes of training inputs kept in memory; beyond it, a device's inputs are drawn anew at each access


class TrueModel(NamedTuple):
    """The model that labels the examples of one device."""

    w: Array  # [features, classes]
    b: Array
    v: Array  # the mean of its inputs


def truth(alpha: float, beta: float, rng: np.random.Generator) -> TrueModel:
    u, middle = rng.normal(0, alpha), rng.normal(0, beta)
    return TrueModel(rng.normal(u, 1, (FEATURES, CLASSES)), rng.normal(u, 1, CLASSES), rng.normal(middle, 1, FEATURES))


def device_examples(device: TrueModel, size: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """The examples of one device: inputs with variances j^-1.2, and the labels that its model gives them."""
    x = rng.normal(device.v, SPREAD, (size, FEATURES)).astype(np.float32)
    return x, (x @ device.w + device.b).argmax(1)


def synthetic(
    alpha: float = 1.0,
    beta: float = 1.0,
    clients: int = 30,
    iid: bool = False,
    largest: int | None = None,
    test_fraction: float = 0.1,
    seed: int = 0,
) -> Dataset:
    """Synthetic(alpha, beta) of FedProx: invented clients, each with a model of its own that labels its examples.
    `alpha`: how much these models differ between clients; `beta`: how much their inputs do; `iid`: the same for all.
    `largest` caps the sizes of clients, which are heavy-tailed; each client holds back test examples of its own."""
    rng = np.random.default_rng(seed)
    sizes = 50 + rng.lognormal(4, 2, clients).astype(np.int64)
    sizes = np.minimum(sizes, largest) if largest is not None else sizes
    shared = TrueModel(rng.normal(size=(FEATURES, CLASSES)), rng.normal(size=CLASSES), np.zeros(FEATURES))
    cuts = [max(1, int((1 - test_fraction) * size)) for size in sizes.tolist()]
    held = [np.array(cuts), sizes - np.array(cuts)]
    ends = [np.cumsum(many) for many in held]
    states = np.empty((clients, 2), np.uint64) if held[0].sum() * FEATURES * DrawnRows.dtype.itemsize > HELD else None

    def drawn(rng: np.random.Generator, k: int) -> tuple[Array, Array]:
        return device_examples(shared if iid else truth(alpha, beta, rng), int(sizes[k]), rng)

    def again(k: int) -> Array:
        assert states is not None
        repeated = np.random.default_rng(seed)
        generator_state: Any = repeated.bit_generator.state
        generator_state["state"]["state"] = int(states[k, 0]) << 64 | int(states[k, 1])
        repeated.bit_generator.state = generator_state
        return drawn(repeated, k)[0][: cuts[k]]

    # arrays are allocated before rows are drawn: two copies of many devices would not fit
    train, test = (
        Split(np.empty((rows, FEATURES), np.float32), np.empty(many.sum(), np.int64), np.repeat(range(clients), many))
        for many, rows in ((held[0], held[0].sum() if states is None else 0), (held[1], held[1].sum()))
    )
    for k, cut in enumerate(cuts):
        if states is not None:
            state: Any = rng.bit_generator.state
            states[k] = divmod(state["state"]["state"], 1 << 64)
        x, y = drawn(rng, k)
        for split, end, rows in ((train, ends[0][k], slice(cut)), (test, ends[1][k], slice(cut, None))):
            split.y[end - len(y[rows]) : end] = y[rows]
            if split is test or states is None:
                split.x[end - len(y[rows]) : end] = x[rows]
    if states is not None:
        inputs: Any = DrawnRows(again, ends[0], FEATURES)
        train = train._replace(x=inputs)
    untouched = (0.0,) * FEATURES, (1.0,) * FEATURES
    name = "synthetic(iid)" if iid else f"synthetic({alpha:g}, {beta:g})"
    return Dataset(name, "table", CLASSES, train, test, *untouched)


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
        each = [tuple(map(np.asarray, self._given[at])) for at in range(size)]
        if len({x.dtype == np.uint8 for x, *_ in each}) > 1:  # a single float image would turn all images into numbers
            raise _unfit("in memory", "gives x as bytes in some rows, and as other numbers in others")
        return SourceRows(*map(np.stack, zip(*each, strict=True)))


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
    if outcome is None and whole[1].max() >= classes:  # the label itself is shown to the owner of the rows alone
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
        taken_as_public=(PLACES,) if tested is None else (),
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
    values = np.concatenate([group.astype(str) for group in held if group is not None])
    names, codes = np.unique(values, return_inverse=True)
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
