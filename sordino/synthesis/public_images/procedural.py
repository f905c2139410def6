"""Public images (candidates) drawn with a few strokes, styled by the words of a prompt: digits for classes named by
digits, a shape of its own for every other class.

They need no model, and do not resemble photographs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import torch

from sordino import keys
from sordino.accounting.events import Json
from sordino.data.dataset import Array, Candidates, ImageNeeds, need
from sordino.errors import BELOW_ONE
from sordino.synthesis.public_images.existing import digit, proxies, shows
from sordino.synthesis.public_images.prompts import chosen, writers
from sordino.synthesis.public_images.store import PROXY

AT_ONCE = 4 << 20  # numbers in the largest array


class Look(NamedTuple):
    """Style of a drawn shape: size, stroke, contrast, position."""

    size: float = 1.0
    wide: float = 1.0
    tall: float = 1.0
    thick: float = 1.0
    soft: float = 1.0
    contrast: float = 1.0
    angle: float = 0.0  # radians
    slant: float = 0.0
    noise: float = 0.02
    hidden: float = 0.0  # share of the picture that a bar covers


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
GROUND = 0.6  # brightness, where the prompt names none


@dataclass(frozen=True)
class Procedural:
    """Digits and shapes drawn with a few strokes."""

    bad_fraction: Annotated[float, BELOW_ONE] = 0.15
    prompts: Json = field(default_factory=lambda: {"name": "template"})
    label: ClassVar[str] = PROXY
    pool: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        chosen(self.prompts)  # so that errors come before anything is drawn

    def build(self, wanted: ImageNeeds) -> Candidates:
        classes, figures = wanted.classes, FIGURES
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


def _drawn(texts: tuple[str, ...], shown: Array, wanted: ImageNeeds, key: keys.Key) -> Array:
    images = np.zeros((len(texts), *wanted.shape), np.uint8)
    for of in np.unique(shown).tolist():
        at = np.flatnonzero(shown == of)
        number = digit(wanted.classes[of])
        figure = of_class(of) if number is None else of_digit(number)
        paint = partial(_paint, of=of) if number is None else _chalk
        images[at] = render([texts[i] for i in at], figure, paint, wanted.shape, keys.word(keys.fold(key, "draw", of)))
    return images


def look(text: str) -> Look:
    """Style of a picture, chosen by the words of its prompt."""
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
    """Background and stroke colours of a digit: bright on dark, as in data sets of digits."""
    return np.full(3, 0.03), np.full(3, 0.97)


def _paint(text: str, of: int) -> tuple[Array, Array]:
    """Background and stroke colours of a shape: the colour named in the prompt, or that of its class; hues of classes
    are a golden section apart.
    """
    ground = next((level for phrase, level in GROUNDS.items() if _says(text, phrase)), GROUND)
    hue = 2 * np.pi * ((of * 0.618034) % 1 + np.array([0, 1 / 3, 2 / 3]))
    own = 0.5 + 0.45 * np.cos(hue)
    ink = next((np.array(colour) for word, colour in COLOURS.items() if _says(text, word)), own)
    if abs(ink @ [0.3, 0.6, 0.1] - ground) < 0.2:  # otherwise it could not be seen
        ground = ground - 0.4 if ground > 0.5 else ground + 0.4
    return np.full(3, ground), ink


def render(
    texts: list[str], figure: Array, paint: Callable[[str], tuple[Array, Array]], shape: tuple[int, int, int], key: int
) -> Array:
    """One picture of the figure for every prompt, each in another handwriting: uint8 [n, h, w, c]. `paint`: from a
    prompt to the colours of background and stroke.
    """
    height, width, channels = shape
    looks = np.array([look(text) for text in texts])
    of = {name: looks[:, at] for at, name in enumerate(Look._fields)}
    hand = keys.uniform(keys.fold(key, "hand"), 8 * len(texts)).numpy().reshape(8, -1) * 2 - 1
    lines = _bent(figure, of, hand, key)

    x, y = np.meshgrid((np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height)
    points, step = np.stack([x.ravel(), y.ravel()], 1), max(1, AT_ONCE // (x.size * len(figure) * 2))
    far = [distance(points, lines[at : at + step]) for at in range(0, len(texts), step)]
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
    """The figure rotated, slanted, stretched and moved, according to prompts and handwriting: [n, segments, 2, 2]."""
    turn, slant = of["angle"] + 0.15 * hand[0], of["slant"] + 0.2 * hand[1]
    wide = of["size"] * of["wide"] * (1 + 0.12 * hand[2])
    tall = of["size"] * of["tall"] * (1 + 0.12 * hand[6])
    cos, sin = np.cos(turn), np.sin(turn)
    # stretched, then slanted, then turned
    matrix = np.stack([cos * wide, (-cos * slant - sin) * tall, sin * wide, (cos - sin * slant) * tall], 1)
    moved = 0.5 + 0.06 * np.stack([hand[3], hand[4]], 1)
    joints, at = np.unique(figure.reshape(-1, 2), axis=0, return_inverse=True)  # lines that meet stay joined
    wobble = keys.normal(keys.fold(key, "wobble"), len(hand[0]) * joints.size).numpy().reshape(-1, *joints.shape)
    bent = np.einsum("nij,npj->npi", matrix.reshape(-1, 2, 2), joints - 0.5 + 0.012 * wobble) + moved[:, None]
    found: Array = bent[:, at.ravel()].reshape(-1, *figure.shape)
    return found


# figures: strokes in the unit square, for the ten digits and for every other class ---

Line = list[tuple[float, float]]  # a polyline, x to the right and y down
INNER = 0.42  # size of a figure within another


def _arc(x: float, y: float, wide: float, tall: float, start: float, end: float) -> Line:
    """Points on an arc of an ellipse around (x, y), as a polyline; in degrees, 0 is right, 90 down."""
    turns = np.radians(np.linspace(start, end, max(3, round(abs(end - start) / 24) + 1)))
    return [(x + wide * float(np.cos(t)), y + tall * float(np.sin(t))) for t in turns]


def _corners(count: int, radius: float = 0.45, inner: float = 1.0, turn: float = -90) -> Line:
    """The closed outline of a regular polygon, or with `inner` below 1 of a star."""
    points = count if inner == 1 else 2 * count
    radii = [radius * (inner if at % 2 else 1) for at in range(points)]
    turns = [np.radians(turn + 360 * at / points) for at in range(points)]
    line = [(0.5 + r * float(np.cos(t)), 0.5 + r * float(np.sin(t))) for r, t in zip(radii, turns, strict=True)]
    return [*line, line[0]]


DIGITS: tuple[tuple[Line, ...], ...] = (
    (_arc(0.5, 0.5, 0.24, 0.38, 0, 360),),
    ([(0.36, 0.27), (0.53, 0.12), (0.53, 0.88)],),
    ([*_arc(0.49, 0.33, 0.24, 0.21, 190, 390), (0.27, 0.87), (0.76, 0.87)],),
    (_arc(0.47, 0.31, 0.24, 0.19, 200, 450), _arc(0.47, 0.69, 0.27, 0.19, 270, 520)),
    ([(0.64, 0.88), (0.64, 0.12), (0.24, 0.62), (0.8, 0.62)],),
    ([(0.73, 0.12), (0.35, 0.12), (0.32, 0.45), *_arc(0.48, 0.65, 0.25, 0.23, 240, 510)],),
    ([(0.62, 0.12), (0.42, 0.3), (0.29, 0.55), (0.29, 0.67)], _arc(0.5, 0.68, 0.21, 0.2, 0, 360)),
    ([(0.25, 0.13), (0.75, 0.13), (0.43, 0.88)],),
    (_arc(0.5, 0.3, 0.19, 0.18, 0, 360), _arc(0.5, 0.68, 0.23, 0.2, 0, 360)),
    (_arc(0.49, 0.32, 0.21, 0.2, 0, 360), [(0.7, 0.32), (0.69, 0.52), (0.58, 0.88)]),
)
SHAPES: tuple[tuple[Line, ...], ...] = (
    (_arc(0.5, 0.5, 0.36, 0.36, 0, 360),),
    (_corners(4, turn=-45),),
    (_corners(3),),
    (_corners(5, inner=0.4),),
    ([(0.5, 0.1), (0.5, 0.9)], [(0.1, 0.5), (0.9, 0.5)]),
    ([(0.15, 0.15), (0.85, 0.85)], [(0.85, 0.15), (0.15, 0.85)]),
    ([(0.1, 0.3), (0.3, 0.7), (0.5, 0.3), (0.7, 0.7), (0.9, 0.3)],),
    ([(0.12, 0.5), (0.88, 0.5)], [(0.6, 0.22), (0.88, 0.5), (0.6, 0.78)]),
    (_arc(0.5, 0.55, 0.38, 0.38, 180, 360), [(0.12, 0.55), (0.88, 0.55)]),
    ([(0.1, 0.2), (0.9, 0.2)], [(0.1, 0.5), (0.9, 0.5)], [(0.1, 0.8), (0.9, 0.8)]),
)
FIGURES = len(SHAPES) * (1 + len(SHAPES))  # each alone, or with another in its middle


@cache
def of_digit(number: int) -> Array:
    return _segments(DIGITS[number])


@cache
def of_class(index: int) -> Array:
    """Figure of a class by its number: float64 [segments, 2, 2]."""
    around, within = index % len(SHAPES), index // len(SHAPES) - 1
    outer = _segments(SHAPES[around])
    if within < 0:
        return outer
    return np.concatenate([outer, 0.5 + (_segments(SHAPES[within]) - 0.5) * INNER])


def _segments(lines: tuple[Line, ...]) -> Array:
    return np.array([pair for line in lines for pair in pairwise(line)])


def distance(pixels: Array, segments: Array) -> Array:
    """Distance from each of [p, 2] points to the nearest of [n, s, 2, 2] segments: [n, p]."""
    start, along = segments[:, None, :, 0], segments[:, None, :, 1] - segments[:, None, :, 0]
    from_start = pixels[None, :, None] - start
    length = (along**2).sum(-1)
    part = ((from_start * along).sum(-1) / np.maximum(length, 1e-12)).clip(0, 1)
    found: Array = np.sqrt(((from_start - part[..., None] * along) ** 2).sum(-1).min(-1))
    return found
