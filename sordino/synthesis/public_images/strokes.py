"""Figures made of strokes in the unit square: the ten digits, and a shape for every other class."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np

from sordino.data.dataset import Array

Line = list[tuple[float, float]]  # a polyline, x to the right and y down
INNER = 0.42  # the size of a figure within another


def _arc(x: float, y: float, wide: float, tall: float, start: float, end: float) -> Line:
    """Degrees: 0 is right, 90 down."""
    turns = np.radians(np.linspace(start, end, max(3, round(abs(end - start) / 24) + 1)))
    return [(x + wide * float(np.cos(t)), y + tall * float(np.sin(t))) for t in turns]


def _corners(count: int, radius: float = 0.4, inner: float = 1.0, turn: float = -90) -> Line:
    """A regular polygon, or with `inner` below 1 a star; closed."""
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
    (_corners(4, 0.45, turn=-45),),
    (_corners(3, 0.45),),
    (_corners(5, 0.45, inner=0.4),),
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
    """The figure of a class without a picture of its own: float64 [segments, 2, 2]."""
    around, within = index % len(SHAPES), index // len(SHAPES) - 1
    outer = _segments(SHAPES[around])
    if within < 0:
        return outer
    return np.concatenate([outer, 0.5 + (_segments(SHAPES[within]) - 0.5) * INNER])


def _segments(lines: tuple[Line, ...]) -> Array:
    return np.array([pair for line in lines for pair in pairwise(line)])


def distance(pixels: Array, segments: Array) -> Array:
    """The distance from each of [p, 2] points to the nearest of [n, s, 2, 2] segments: [n, p]."""
    start, along = segments[:, None, :, 0], segments[:, None, :, 1] - segments[:, None, :, 0]
    from_start = pixels[None, :, None] - start
    length = (along**2).sum(-1)
    part = ((from_start * along).sum(-1) / np.maximum(length, 1e-12)).clip(0, 1)
    found: Array = np.sqrt(((from_start - part[..., None] * along) ** 2).sum(-1).min(-1))
    return found
