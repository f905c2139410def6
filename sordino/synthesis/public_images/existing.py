"""Public images (candidates) that exist already: those of the task itself, the handwritten digits of the package, or a
folder `<path>/<class name or number>/*.png` or `.jpg`, read with pillow.

A share of the first two shows another class than its label, as images of a text-to-image model do at times, so that
filtering has something to remove; the manifest lists these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from sordino import keys
from sordino.data import sources
from sordino.data.dataset import Array, Candidates, ImageNeeds
from sordino.errors import BELOW_ONE, NOT_NEGATIVE, ConfigError, DataError, extra
from sordino.synthesis.public_images import store
from sordino.synthesis.public_images.store import PROXY, PUBLIC, gathered, spoken

POOL = 0.1
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@dataclass(frozen=True)
class PublicSplit:
    """A part of the training images, held back before the partition and altered as if taken by another camera."""

    shift: Annotated[float, NOT_NEGATIVE] = 1.0  # strength of the other camera; 0: the images as they are
    bad_fraction: Annotated[float, BELOW_ONE] = 0.15
    label: ClassVar[str] = PUBLIC
    pool: ClassVar[float] = POOL

    def build(self, wanted: ImageNeeds) -> Candidates:
        if wanted.pool is None:
            raise ConfigError(
                "the source public_split has no public images",
                why=f"it takes {self.pool:.0%} of the training images, held back before the clients get theirs; these "
                "data hold none back",
                fix="choose another source of candidates, or data of which a share can be held back",
                code="no-public-images",
            )
        rows = [np.flatnonzero(wanted.pool.y == of) for of in range(len(wanted.classes))]
        empty = [name for name, found in zip(wanted.classes, rows, strict=True) if not len(found)]
        if empty:
            raise DataError(
                f"no public image shows {', '.join(empty)}",
                fix="hold back more public images, or drop the class",
                code="class-without-candidates",
            )
        images, wrong = [], []
        for of, own in enumerate(rows):
            key = keys.fold(wanted.key, "public", of)
            own = own[keys.permutation(keys.fold(key, "own"), len(own)).numpy()][: wanted.per_class]
            shown = shows(of, len(rows), len(own), self.bad_fraction, key)
            taken = np.where(shown == of, own, _random_rows(rows, shown, key))
            seen = store.to_float(store.fit(wanted.pool.x[taken], wanted.shape))
            images.append(store.to_bytes(store.shifted(seen, self.shift, keys.word(keys.fold(key, "camera")))))
            wrong.append(shown != of)
        return proxies("public_split", wanted, images, wrong, label=self.label)


@dataclass(frozen=True)
class SklearnDigits:
    """The 1,797 digits of Alpaydin and Kaynak (1998), as in scikit-learn, turned and shifted."""

    bad_fraction: Annotated[float, BELOW_ONE] = 0.15
    label: ClassVar[str] = PROXY
    pool: ClassVar[float] = 0.0

    def build(self, wanted: ImageNeeds) -> Candidates:
        meant = [digit(name) for name in wanted.classes]
        if None in meant:
            raise ConfigError(
                f"sklearn_digits cannot draw {wanted.classes[meant.index(None)]}",
                why="it knows only the classes 0 to 9",
                fix="choose another source for these classes",
                code="class-without-candidates",
            )
        both = sources.digits()
        x, y = (np.concatenate(parts) for parts in zip(both.train[:2], both.test[:2], strict=True))
        rows = [np.flatnonzero(y == number) for number in meant]
        images, wrong = [], []
        for of in range(len(rows)):
            key = keys.fold(wanted.key, "digits", of)
            shown = shows(of, len(rows), wanted.per_class, self.bad_fraction, key)
            drawn = store.to_float(store.fit(x[_random_rows(rows, shown, key)], wanted.shape))
            images.append(store.to_bytes(store.moved(drawn, keys.word(keys.fold(key, "moved")))))
            wrong.append(shown != of)
        return proxies("sklearn_digits", wanted, images, wrong, model="Alpaydin and Kaynak, UCI 1998")


def digit(name: str) -> int | None:
    """Digit, 0 to 9, of a class: `7`, `seven`, `digit 7` or `digit_seven`."""
    word = (spoken(name).casefold().split() or [""])[-1]
    return int(word) if word in "0123456789" and len(word) == 1 else NAMES.index(word) if word in NAMES else None


def shows(of: int, classes: int, count: int, bad: float, key: keys.Key) -> Array:
    """Class that each of `count` images with the label `of` really shows: for a share `bad` of them another class."""
    shown = np.full(count, of, np.int64)
    wrong = keys.permutation(keys.fold(key, "wrong"), count).numpy()[: round(bad * count)]
    if classes > 1:
        other = keys.integers(keys.fold(key, "other"), len(wrong), classes - 1).numpy()
        shown[wrong] = other + (other >= of)
    return shown


def _random_rows(rows: Sequence[Array], shown: Array, key: keys.Key) -> Array:
    """A random row for each image, of the class that the image really shows; every row of a class is used once before
    any repeats."""
    taken = np.zeros(len(shown), np.int64)
    for of, own in enumerate(rows):
        at = np.flatnonzero(shown == of)
        turns = range(-(-len(at) // len(own)))
        order = [keys.permutation(keys.fold(key, "row", of, turn), len(own)).numpy() for turn in turns]
        if order:
            taken[at] = own[np.concatenate(order)[: len(at)]]
    return taken


def proxies(
    source: str,
    wanted: ImageNeeds,
    images: Sequence[Array],
    wrong: Sequence[Array],
    label: str = PROXY,
    **more: object,
) -> Candidates:
    return gathered(source, label, wanted, images, wrong=np.flatnonzero(np.concatenate(wrong)).tolist(), **more)


SUFFIXES = (".png", ".jpg", ".jpeg")


@dataclass(frozen=True)
class Folder:
    """Candidates (public images) read from a folder."""

    path: str
    label: ClassVar[str] = "candidates from a folder - where they come from is not known here"
    pool: ClassVar[float] = 0.0

    def build(self, wanted: ImageNeeds) -> Candidates:
        root = Path(self.path).expanduser()
        found = [_files(root, of, name) for of, name in enumerate(wanted.classes)]
        chosen = [_some(files, wanted, name) for files, name in zip(found, wanted.classes, strict=True)]
        images = [np.concatenate([_read(file, wanted) for file in files]) for files in chosen]
        return gathered("folder", self.label, wanted, images, model=root.name)


def _files(root: Path, of: int, name: str) -> list[Path]:
    if not root.is_dir():
        raise DataError(
            f"folder {root} does not exist",
            fix="give a folder with one folder of images per class",
            code="missing-candidate-folder",
        )
    place = next((root / part for part in (name, str(of)) if (root / part).is_dir()), None)
    if place is None:
        raise DataError(
            f"{root} has no folder for {name!r}",
            why="the candidates of a class are in a folder with its name or number",
            fix=f"put images into {root / name}, or drop the class",
            code="class-without-candidates",
        )
    files = sorted(file for file in place.iterdir() if file.suffix.lower() in SUFFIXES)
    if not files:
        raise DataError(
            f"{place} holds no image",
            why="each class needs at least one image",
            fix=f"put images there: {', '.join(SUFFIXES)}",
            code="class-without-candidates",
        )
    return files


def _some(files: list[Path], wanted: ImageNeeds, name: str) -> list[Path]:
    """A random selection of as many files as are wanted; all if there are fewer."""
    order = keys.permutation(keys.fold(wanted.key, "folder", name), len(files))[: wanted.per_class]
    return [files[at] for at in sorted(order.tolist())]


def _read(file: Path, wanted: ImageNeeds) -> Array:
    with extra("data", "these candidates", "missing-data-extra"):
        from sordino.data.folders import content
        from sordino.data.image_files import channels_last, opened
    with opened(content(file), str(file)) as (image, _):
        return store.fit(channels_last(image, "RGB")[None], wanted.shape)
