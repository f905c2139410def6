"""Candidates without a text-to-image model: public images of the task itself, or the handwritten digits of the package.

A share of them shows another class than its label, as images of a text-to-image model do at times, so that filtering
has something to remove; the manifest lists these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from sordino import keys
from sordino.data import digits
from sordino.data.dataset import Array, Candidates, ImageNeeds
from sordino.errors import BELOW_ONE, NOT_NEGATIVE, ConfigError, DataError
from sordino.synthesis.public_images import pixels
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
            seen = pixels.to_float(pixels.fit(wanted.pool.x[taken], wanted.shape))
            images.append(pixels.to_bytes(pixels.shifted(seen, self.shift, keys.word(keys.fold(key, "camera")))))
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
        both = digits.load()
        x, y = (np.concatenate(parts) for parts in zip(both.train[:2], both.test[:2], strict=True))
        rows = [np.flatnonzero(y == number) for number in meant]
        images, wrong = [], []
        for of in range(len(rows)):
            key = keys.fold(wanted.key, "digits", of)
            shown = shows(of, len(rows), wanted.per_class, self.bad_fraction, key)
            drawn = pixels.to_float(pixels.fit(x[_random_rows(rows, shown, key)], wanted.shape))
            images.append(pixels.to_bytes(pixels.moved(drawn, keys.word(keys.fold(key, "moved")))))
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
