"""Candidates that a few strokes draw, as the words of a prompt say: digits for classes named by digits, a shape of its
own for every other class.

It needs nothing at all, and its pictures are far from any photograph.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from sordino import keys
from sordino.accounting.events import Json
from sordino.data.candidates import Candidates, Wanted, need
from sordino.data.dataset import Array
from sordino.errors import BELOW_ONE, check_range
from sordino.synthesis.public_images import strokes
from sordino.synthesis.public_images.embedded import digit, proxies, shows
from sordino.synthesis.public_images.manifest import PROXY
from sordino.synthesis.public_images.prompts import chosen, writers

AT_ONCE = 4 << 20  # numbers in the largest array


class Look(NamedTuple):
    size: float = 1.0
    wide: float = 1.0
    tall: float = 1.0
    thick: float = 1.0
    soft: float = 1.0
    contrast: float = 1.0
    angle: float = 0.0  # radians
    slant: float = 0.0
    noise: float = 0.02
    hidden: float = 0.0  # the part of the picture that a bar covers


TIMES = {
    "small": ("size", 0.8), "large": ("size", 1.15), "close-up": ("size", 1.2), "far away": ("size", 0.7),
    "from above": ("tall", 0.8), "from below": ("tall", 1.12), "from the side": ("wide", 0.75),
    "from behind": ("wide", 0.9), "bold": ("thick", 1.5), "sketch": ("thick", 0.6), "drawing": ("thick", 0.75),
    "painting": ("thick", 1.25), "old": ("thick", 0.85), "blurry": ("soft", 3.0), "low resolution": ("soft", 2.0),
    "in motion": ("soft", 2.0), "in fog": ("contrast", 0.55), "at night": ("contrast", 0.7),
    "dark": ("contrast", 0.7), "sunset": ("contrast", 0.85),
}  # fmt: skip
PLUS = {
    "tilted to the left": ("angle", -0.25), "tilted to the right": ("angle", 0.25), "leaning forward": ("slant", 0.3),
    "cluttered": ("noise", 0.08), "rain": ("noise", 0.05), "city": ("noise", 0.03), "partly hidden": ("hidden", 0.15),
}  # fmt: skip
COLOURS = {
    "red": (0.9, 0.2, 0.15), "green": (0.2, 0.75, 0.25), "blue": (0.2, 0.35, 0.9), "yellow": (0.95, 0.85, 0.2),
    "white": (0.97, 0.97, 0.97),
}  # fmt: skip
GROUNDS = {"at night": 0.08, "sunset": 0.45, "in fog": 0.7, "artificial light": 0.35, "daylight": 0.8, "sunshine": 0.9}
GROUND, INK = 0.6, 0.05  # where no word says otherwise


@dataclass(frozen=True)
class Procedural:
    """Digits and shapes that a few strokes draw."""

    bad_fraction: float = 0.15
    prompts: Json = field(default_factory=lambda: {"name": "template"})
    label: ClassVar[str] = PROXY
    pool: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        check_range("candidates.bad_fraction", self.bad_fraction, BELOW_ONE, "out-of-range")
        chosen(self.prompts)  # what is wrong with them is said before anything is drawn

    def build(self, wanted: Wanted) -> Candidates:
        classes, figures = wanted.classes, strokes.FIGURES
        need(len(classes) <= figures, "classes", f"be at most {figures} for procedural, which has no more figures")
        source = chosen(self.prompts)
        asked = [source.prompts(name, wanted.per_class, wanted) for name in classes]
        images, wrong = [], []
        for of, one in enumerate(asked):
            key = keys.fold(wanted.key, "procedural", of)
            shown = shows(of, len(classes), wanted.per_class, self.bad_fraction, key)
            images.append(_drawn(one.texts, shown, wanted, key))
            wrong.append(shown != of)
        return proxies("procedural", wanted, images, wrong, **writers(asked))


def _drawn(texts: tuple[str, ...], shown: Array, wanted: Wanted, key: keys.Key) -> Array:
    images = np.zeros((len(texts), *wanted.shape), np.uint8)
    for of in np.unique(shown).tolist():
        at = np.flatnonzero(shown == of)
        number = digit(wanted.classes[of])
        figure = strokes.of_class(of) if number is None else strokes.of_digit(number)
        paint = partial(_paint, of=of) if number is None else _chalk
        images[at] = render([texts[i] for i in at], figure, paint, wanted.shape, keys.word(keys.fold(key, "draw", of)))
    return images


def look(text: str) -> Look:
    """The settings of the picture that the words of a prompt ask for."""
    found = Look()._asdict()
    for phrase, (name, factor) in TIMES.items():
        if _says(text, phrase):
            found[name] *= factor
    for phrase, (name, more) in PLUS.items():
        if _says(text, phrase):
            found[name] += more
    return Look(**found)


def _says(text: str, phrase: str) -> bool:
    return phrase in text and re.search(rf"\b{phrase}\b", text) is not None


def _chalk(text: str) -> tuple[Array, Array]:
    """Ground and ink of a digit: bright on dark, as digits are kept."""
    return np.full(3, 0.03), np.full(3, 0.97)


def _paint(text: str, of: int) -> tuple[Array, Array]:
    """A colour that the prompt names, or one of the class's own: hues a golden section apart."""
    ground = next((level for phrase, level in GROUNDS.items() if _says(text, phrase)), GROUND)
    hue = 2 * np.pi * ((of * 0.618034) % 1 + np.array([0, 1 / 3, 2 / 3]))
    own = 0.5 + 0.45 * np.cos(hue)
    ink = next((np.array(colour) for word, colour in COLOURS.items() if _says(text, word)), own)
    if abs(ink @ [0.3, 0.6, 0.1] - ground) < 0.2:  # else it could not be seen, least of all without colours
        ground = ground - 0.4 if ground > 0.5 else ground + 0.4
    return np.full(3, ground), ink


def render(
    texts: list[str], figure: Array, paint: Callable[[str], tuple[Array, Array]], shape: tuple[int, int, int], key: int
) -> Array:
    """The figure once for every prompt, each time by another hand: uint8 [n, h, w, c]."""
    height, width, channels = shape
    looks = np.array([look(text) for text in texts])
    of = {name: looks[:, at] for at, name in enumerate(Look._fields)}
    hand = keys.uniform(keys.fold(key, "hand"), 8 * len(texts)).numpy().reshape(8, -1) * 2 - 1
    lines = _bent(figure, of, hand, key)

    x, y = np.meshgrid((np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height)
    points, step = np.stack([x.ravel(), y.ravel()], 1), max(1, AT_ONCE // (x.size * len(figure) * 2))
    far = [strokes.distance(points, lines[at : at + step]) for at in range(0, len(texts), step)]
    half = 0.055 * of["thick"] * (1 + 0.25 * hand[5])
    edge = of["soft"] / max(min(height, width), 12)
    ink = ((half[:, None] - np.concatenate(far)) / edge[:, None] + 0.5).clip(0, 1) * of["contrast"][:, None]
    side = np.where(hand[7] > 0, x.ravel()[:, None], 1 - x.ravel()[:, None]).T
    ink = np.where(side < of["hidden"][:, None], 0, ink)

    colours = [paint(text) for text in texts]
    ground, pen = (np.stack(part)[:, None] for part in zip(*colours, strict=True))
    images = ground + (pen - ground) * ink[..., None]
    if channels == 1:
        images = images @ np.array([[0.299], [0.587], [0.114]])
    drawn = torch.randn(images.shape, generator=keys.generator(keys.fold(key, "noise")), dtype=torch.float64).numpy()
    images = (images + drawn * of["noise"][:, None, None]).clip(0, 1)
    levels: Array = np.rint(images * 255).astype(np.uint8)
    return levels.reshape(-1, height, width, channels)


def _bent(figure: Array, of: dict[str, Array], hand: Array, key: int) -> Array:
    """Turned, slanted, stretched and moved as the words say and as hands differ: [n, segments, 2, 2]."""
    turn, slant = of["angle"] + 0.15 * hand[0], of["slant"] + 0.2 * hand[1]
    wide = of["size"] * of["wide"] * (1 + 0.12 * hand[2])
    tall = of["size"] * of["tall"] * (1 + 0.12 * hand[6])
    cos, sin = np.cos(turn), np.sin(turn)
    # stretched, then slanted, then turned
    matrix = np.stack([cos * wide, (-cos * slant - sin) * tall, sin * wide, (cos - sin * slant) * tall], 1)
    moved = 0.5 + 0.06 * np.stack([hand[3], hand[4]], 1)
    joints, at = np.unique(figure.reshape(-1, 2), axis=0, return_inverse=True)  # lines that meet go on meeting
    wobble = keys.normal(keys.fold(key, "wobble"), len(hand[0]) * joints.size).numpy().reshape(-1, *joints.shape)
    bent = np.einsum("nij,npj->npi", matrix.reshape(-1, 2, 2), joints - 0.5 + 0.012 * wobble) + moved[:, None]
    found: Array = bent[:, at.ravel()].reshape(-1, *figure.shape)
    return found
