"""Data sets in memory: a train and a test split, with name, scale, fingerprint and classes; and candidates, labelled
images from a public source, which hold no data of any client.

Images are uint8, channels last, decoded once; tables are raw float32. Nothing is normalised here: `mean` and `std`
travel with the data and the task applies them.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sordino.accounting.events import Json
from sordino.data.schema import Column
from sordino.errors import ConfigError, DataError

Array = NDArray[Any]
Stats = tuple[tuple[float, ...], tuple[float, ...]]
AT_ONCE = 1 << 16  # rows that are hashed in one go
BLOCK = 2**23  # numbers of images that are averaged at a time
WHOLE = re.compile(r"^([+-]?[0-9]+)\.0*$")


class DrawnRows:
    """Inputs of a great many simulated clients, none kept in memory: a client's inputs are drawn anew, with the same
    bytes, whenever they are read. `draw`: draws those of one client; `ends`: the row number at which each client's rows
    end."""

    dtype = np.dtype(np.float32)

    def __init__(self, draw: Callable[[int], Array], ends: Array, width: int) -> None:
        self._draw, self._ends = draw, ends
        self.shape = int(ends[-1]), width

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | Array) -> Array:
        asked = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else np.asarray(rows)
        if asked.dtype == bool or (len(asked) and not 0 <= asked.min() <= asked.max() < len(self)):
            raise IndexError(f"rows are asked for by their numbers, from 0 to {len(self) - 1}")
        clients = np.searchsorted(self._ends, asked, side="right")
        order = np.argsort(clients, kind="stable")
        each, begins = np.unique(clients[order], return_index=True)
        found = np.empty((len(asked), self.shape[1]), self.dtype)
        for k, places in zip(each.tolist(), np.split(order, begins[1:]), strict=False):
            drawn = self._draw(k)
            found[places] = drawn[asked[places] - (self._ends[k] - len(drawn))]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:].astype(dtype or self.dtype, copy=False)


class Split(NamedTuple):
    """Examples, their labels, and the client of each."""

    x: Array  # images: uint8 [n, h, w, c]; tables: float32 [n, features]
    y: Array  # int64 [n]
    group: Array | None = None  # natural client key per row as int64 codes, None if the data has none

    def at(self, rows: Array) -> Split:
        return Split(self.x[rows], self.y[rows], None if self.group is None else self.group[rows])


def check_spellings(data: str, what: str, names: Iterable[str]) -> None:
    """Refuses two names that look alike, such as "A17" and "A17 ", or "17" and "17.0", as a column with gaps is often
    written: they are one person or client, which a guarantee would count as two.
    """
    seen: dict[str, str] = {}
    for name in names:
        visible = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
        alike = seen.setdefault(WHOLE.sub(r"\1", " ".join(visible.split())), name)
        if alike != name:
            raise DataError(
                f"{data}: {alike!r} and {name!r} look like one {what}",
                why="they differ in spaces and invisible characters alone, in how Unicode writes a character, or in "
                "the .0 of a whole number; a guarantee for each would not hold for the two together",
                fix="write one name in one way in all rows and files, or give two that look different",
                code="name-in-two-spellings",
            )


@dataclass(frozen=True, eq=False)
class Dataset:
    """A train and a test split, with public facts about them."""

    name: str
    kind: Literal["image", "table"]
    classes: int  # 0 for regression
    train: Split
    test: Split
    mean: tuple[float, ...]  # per channel or per pixel on the 0..1 scale for images, per feature for tables
    std: tuple[float, ...]  # never 0: a constant channel or feature has 1
    note: str = ""  # shown beside every result, for instance that the images are a JPEG copy
    names: tuple[str, ...] = ()  # of the classes, where they are known
    taken_as_public: tuple[str, ...] = ()  # sentences on choices made with all examples in view
    learned: tuple[str, ...] = ()  # sentences on parts of a model's shape that were read off the rows
    declared: str = ""  # a digest of what was declared before any row was read
    columns: Mapping[str, Column] = field(default_factory=dict)  # of a table: the features, in the order of x
    groups: tuple[str, ...] = ()  # names of the natural clients, by their codes, where they are known
    groups_declared: bool = False  # False: the names were read off the rows
    remarks: tuple[str, ...] = ()  # for the owner of the rows alone: they reveal contents
    misfit: DataError | None = None  # the reason why no training may begin on them

    def __post_init__(self) -> None:
        check_spellings(self.name, "client", self.groups)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.train.x.shape[1:])

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name for each class; its number if `names` has none."""
        return self.names if len(self.names) == self.classes else tuple(map(str, range(self.classes)))

    def fingerprint(self, key: bytes = b"") -> str:
        """An HMAC-SHA256 over shapes, dtypes and bytes of both splits, and over declarations. It does not depend on
        names and path.

        Without a secret key, an attacker can test guesses of rows against it.
        """
        digest = hmac.new(key, digestmod=hashlib.sha256)
        for array in (*self.train, *self.test):
            if array is None:
                digest.update(b"none;")
                continue
            little = array.dtype.newbyteorder("<")
            digest.update(f"{little.str}{array.shape};".encode())
            for begin in range(0, len(array), AT_ONCE):
                block = np.ascontiguousarray(array[begin : begin + AT_ONCE], dtype=little)
                digest.update(block.reshape(-1).view(np.uint8).data)
        digest.update(self.declared.encode())
        return digest.hexdigest()


def pixel_stats(pixels: Array) -> Stats:
    """Mean and standard deviation per channel on the 0..1 scale; computed from histograms to save memory."""
    channels = pixels.shape[-1]
    counts = np.zeros((channels, 256))
    for start in range(0, len(pixels), 1024):
        block = pixels[start : start + 1024]
        counts += [np.bincount(block[..., c].ravel(), minlength=256) for c in range(channels)]
    share = counts / counts.sum(1, keepdims=True)
    level = np.arange(256) / 255
    mean = share @ level
    std = np.sqrt((share * (level - mean[:, None]) ** 2).sum(1))
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())


def each_pixel_stats(pixels: Array) -> Stats:
    """Mean and standard deviation of every pixel. A thousandth of a grey level is added, so that constant pixels do not
    divide by 0 (Li et al., MLSys 2020).
    """
    mean, square = np.zeros(pixels.shape[1:]), np.zeros(pixels.shape[1:])
    for start in range(0, len(pixels), 1024):
        block = pixels[start : start + 1024].astype(np.float64)
        mean += block.sum(0) / len(pixels)
        square += (block**2).sum(0) / len(pixels)
    std = np.sqrt(np.maximum(square - mean**2, 0)) + 0.001
    return tuple((mean / 255).reshape(-1).tolist()), tuple((std / 255).reshape(-1).tolist())


CLASSES = "the classes were learned from the labels of all rows: one that a single row has changes the model's shape"
COLOURS = "the number of colours was learned from the images: a single one can change the model's shape"
DRAWN = "the images that are used were drawn by the size of every class: the choice is treated as public"
PLACES = "the rows held back for tests follow from their positions in the file, which are treated as public"
STRATIFIED = "the examples held back for tests were drawn from all labels: the split is treated as public"


def stratified(labels: Array, test_fraction: float, seed: int) -> tuple[Array, Array]:
    """Row numbers of train and test, each class divided in the same proportion, both in file order.

    One changed label changes the whole split. So private data are split by `apart`, without their labels, or the split
    is taken as public, and the receipt says so.
    """
    rng = np.random.default_rng(seed)
    in_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        in_test[rows[: round(len(rows) * test_fraction)]] = True
    return _parted(in_test, test_fraction, "each class is divided on its own, rounded to whole rows")


def apart(rows: Sequence[int], keys: Sequence[str] | None, test_fraction: float, seed: int) -> tuple[Array, Array]:
    """Row numbers of train and test, both in file order; `rows`: the number of rows of each file. Every row has a
    random number, which follows from its position in its file, or from its key.

    The split does not depend on the contents of rows, and no row changes the side of another: with keys, even if rows
    are added or removed; without keys, even if a row is replaced or one is added at the end.
    """
    if keys is None:
        # the i-th number does not depend on how many are drawn
        coins = np.concatenate([np.random.default_rng([seed, i] if i else seed).random(n) for i, n in enumerate(rows)])
    else:
        coins = np.array([_coin(key, seed) for key in keys])
    return _parted(coins < test_fraction, test_fraction, BY_A_COIN)


def _coin(key: str, seed: int) -> float:
    """Pseudo-random number in [0, 1) computed from a key."""
    drawn = hashlib.blake2b(key.encode(), digest_size=6, key=seed.to_bytes(8, "little"))
    return int.from_bytes(drawn.digest(), "little") / 2**48


def _parted(in_test: Array, test_fraction: float, how: str) -> tuple[Array, Array]:
    train, test = np.flatnonzero(~in_test), np.flatnonzero(in_test)
    check_split(len(train), len(test), test_fraction, how)
    return train, test


BY_A_COIN = "every row is held back by a coin of its own"


def check_classes(classes: Sequence[str]) -> None:
    """Refuses declared class names that are not all different."""
    if twice := next((name for name in classes if classes.count(name) > 1), ""):
        raise DataError(
            f"data.classes lists {twice!r} twice",
            why="a class has one number",
            fix="list every class once",
            code="class-listed-twice",
        )


def check_split(train: int, test: int, test_fraction: float, how: str = BY_A_COIN) -> None:
    if not train or not test:
        raise DataError(
            f"test_fraction = {test_fraction} leaves the train or the test split of {train + test} rows empty",
            why=how,
            fix="use another test_fraction or more data",
            code="empty-split",
        )


DISCLOSED = "class_names_disclosed_to"  # in a manifest: hosts of the chat servers that were sent the class names


class Candidates(NamedTuple):
    """Labelled images of a public source, and the manifest of their origin."""

    x: Array  # uint8 [n, h, w, c]
    y: Array  # int64 [n]: the class that was asked for, which is not always the one that came
    manifest: Json


@dataclass(frozen=True)
class ImageNeeds:
    """Request for candidates: classes, shape and number of the images, and what a source may use for them."""

    classes: tuple[str, ...]
    per_class: int
    shape: tuple[int, int, int]  # height, width, channels
    key: int
    pool: Split | None = None  # labelled public images, held back from the training set before it was divided
    cache: Path | None = None  # folder that caches images which are expensive to draw
    network: bool = False  # whether other machines may be contacted

    def __post_init__(self) -> None:
        need(len(set(self.classes)) == len(self.classes) > 0, "classes", "have names, each of its own")
        need(self.shape[2] in (1, 3) and min(self.shape) >= 1, "shape", "be height, width and 1 or 3 channels")


class CandidateSource(Protocol):
    """Interface of sources of candidates (public images)."""

    @property
    def label(self) -> str:
        """Warning to print beside every result if these images do not, or may not, come from a text-to-image model;
        else empty.
        """
        ...

    @property
    def pool(self) -> float:
        """The share of the training set that becomes public images for the server to choose from, instead of going to
        clients (see `ImageNeeds.pool`).
        """
        ...

    def build(self, wanted: ImageNeeds) -> Candidates: ...


def need(kept: bool, field: str, must: str) -> None:
    """Raises an error unless the condition `kept` holds; its message says that the setting `field` of [candidates] must
    be as the text `must` says.
    """
    if not kept:
        raise ConfigError(f"[candidates] {field} must {must}", code="out-of-range")


def cache_folder(given: str | Path | None, inside: str = "") -> Path:
    """The given folder, else one in SORDINO_CACHE, else one in the user's cache folder."""
    if given is not None:
        return Path(given).expanduser()
    own = os.environ.get("SORDINO_CACHE")
    return Path(own or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sordino") / inside


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
