"""Picture of a partition: clients across, labels up, as one self-contained SVG file for light and dark screens.

Where there is room, bubbles: their area is the number of examples. Where bubbles would be dust, cells are shaded
instead; and where a client is thinner than a line, clients stand in the order of their most frequent label, so that
what they have in common can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from sordino.partition.row_numbers import Array

LARGEST = 9  # the radius that the largest bubble needs
NAMED = 150  # clients that can still be told apart
LEVELS = 8  # shades of a cell
LEFT, RIGHT, WIDTH = 70, 150, 1000  # legend on the right; the left at least
LETTER, LONGEST = 7, 28  # width of one, and how many of a class name are shown
TOP, BARS, GAP = 78, 64, 26  # title, sizes of clients, space
STYLE = """
svg { color-scheme: light dark; --ink: #1c2127; --soft: #5b6570; --paper: #fbfaf7; --line: #dedad1; --main: #0b66a3; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e9e6df; --soft: #a7adb5; --paper: #14171b; --line: #343a42; --main: #6cb2ea; }
}
text { font: 13px system-ui, sans-serif; fill: var(--soft); }
.title { font-size: 18px; font-weight: 600; fill: var(--ink); }
.paper { fill: var(--paper); } .mark { fill: var(--main); } .grid { stroke: var(--line); fill: none; }
.end { text-anchor: end; } .mid { text-anchor: middle; }
"""


@dataclass(frozen=True)
class Frame:
    """Coordinates of the parts of the picture."""

    clients: int
    classes: int
    left: int = LEFT  # room for the names of the classes

    @property
    def column(self) -> float:
        return (WIDTH - self.left - RIGHT) / self.clients

    @property
    def row(self) -> float:
        return min(34.0, max(9.0, 330 / self.classes))

    @property
    def radius(self) -> float:
        """The radius of the largest bubble. Small bubbles may touch, they are clear."""
        return min(self.row / 2 - 1, self.column * 0.8)

    @property
    def top(self) -> float:
        """The height at which the rows of labels begin."""
        return TOP + BARS + GAP

    @property
    def bottom(self) -> float:
        return self.top + self.row * self.classes

    @property
    def height(self) -> float:
        return max(self.bottom + 56, 300)

    def x(self, place: float) -> float:
        return self.left + (place + 0.5) * self.column

    def y(self, label: int) -> float:
        return self.bottom - (label + 0.5) * self.row  # label 0 lies lowest


def svg(counts: Array, title: str, names: Sequence[str] | None = None, clients_are: Sequence[str] = ()) -> str:
    """The counts [clients, classes] as an SVG text; `names` are those of the classes, `clients_are` of the clients."""
    clients, classes = counts.shape
    sizes, names = counts.sum(1), names or [str(c) for c in range(classes)]
    frame = Frame(clients, classes, max(LEFT, 40 + LETTER * max(len(_short(name)) for name in names)))
    shaded, named = frame.radius < LARGEST, clients <= NAMED or classes == 1
    order = np.arange(clients) if named else np.lexsort((-counts.max(1), counts.argmax(1)))
    said = (
        f"{sizes.sum():,} examples, {clients:,} clients; {sizes.min():,} to {sizes.max():,} per client, median "
        f"{np.median(sizes):,.0f}"
    )
    axis = "client" if named else "clients, in the order of their most frequent label"
    called = [*(clients_are or map(str, range(clients)))]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {frame.height:.0f}" width="{WIDTH}" '
        f'height="{frame.height:.0f}" role="img" aria-labelledby="title said">',
        f'<title id="title">{escape(title)}</title><desc id="said">{escape(said)}</desc><style>{STYLE}</style>',
        '<rect class="paper" width="100%" height="100%"/>',
        f'<text class="title" x="{frame.left}" y="30">{escape(title)}</text><text x="{frame.left}" '
        f'y="52">{said}</text>',
        *_sizes(frame, sizes[order]),
        *_axes(frame, names, axis, called, ticks=named, lines=not shaded),
        *(_cells(frame, counts[order], names) if shaded else _bubbles(frame, counts[order], names, called)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _sizes(frame: Frame, sizes: Array) -> Iterator[str]:
    base, most = TOP + BARS, max(int(sizes.max()), 1)
    width = max(frame.column * 0.8, min(frame.column, 0.7))
    bars = "".join(
        f"M{frame.x(k) - width / 2:.2f} {base}v{-BARS * size / most:.2f}h{width:.2f}V{base}z"
        for k, size in enumerate(sizes)
    )
    yield f'<path class="mark" d="{bars}"/><path class="grid" d="M{frame.left} {base}H{WIDTH - RIGHT}"/>'
    yield (
        f'<text class="end" x="{frame.left - 10}" y="{TOP + 10}">{most:,}</text><text class="end" '
        f'x="{frame.left - 10}" y="{base + 4}">0</text>'
    )
    yield (
        f'<text x="{WIDTH - RIGHT + 14}" y="{TOP + BARS / 2}">examples</text><text x="{WIDTH - RIGHT + 14}" '
        f'y="{TOP + BARS / 2 + 16}">of each client</text>'
    )


def _axes(
    frame: Frame, names: Sequence[str], axis: str, clients: Sequence[str], ticks: bool, lines: bool
) -> Iterator[str]:
    if lines:
        drawn = "".join(f"M{frame.left} {frame.y(c):.1f}H{WIDTH - RIGHT}" for c in range(frame.classes))
        yield f'<path class="grid" d="{drawn}"/>'
    every = max(1, math.ceil(15 / frame.row))
    for c in range(0, frame.classes, every):
        yield f'<text class="end" x="{frame.left - 10}" y="{frame.y(c) + 4.5:.1f}">{escape(_short(names[c]))}</text>'
    middle = (frame.top + frame.bottom) / 2
    yield f'<text class="mid" transform="translate(18 {middle:.1f}) rotate(-90)">label</text>'
    step = _nice(frame.clients / 10)
    for k in range(0, frame.clients, step) if ticks else ():
        name = escape(_short(clients[k]))
        yield f'<text class="mid" x="{frame.x(k):.1f}" y="{frame.bottom + 18:.1f}">{name}</text>'
    yield f'<text class="mid" x="{(frame.left + WIDTH - RIGHT) / 2}" y="{frame.bottom + 40:.1f}">{axis}</text>'


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _nice(least: float) -> int:
    """1, 2 or 5 times a power of ten, at least `least`."""
    power = 10 ** math.floor(math.log10(max(least, 1)))
    return next(int(n * power) for n in (1, 2, 5, 10) if n * power >= least)


def _bubbles(frame: Frame, counts: Array, names: Sequence[str], clients: Sequence[str]) -> Iterator[str]:
    most = max(int(counts.max()), 1)
    yield '<g class="mark" fill-opacity="0.7">'
    for k, c in np.argwhere(counts):
        text = f"client {clients[k]}, label {names[c]}: {counts[k, c]:,}"
        radius = frame.radius * math.sqrt(counts[k, c] / most)
        yield (
            f'<circle cx="{frame.x(k):.1f}" cy="{frame.y(c):.1f}" '
            f'r="{radius:.2f}"><title>{escape(text)}</title></circle>'
        )
    yield "</g>"

    def bubble(count: int, x: float, y: float) -> str:
        return (
            f'<circle class="mark" fill-opacity="0.7" cx="{x}" cy="{y}" '
            f'r="{frame.radius * math.sqrt(count / most):.2f}"/>'
        )

    yield from _legend(frame, sorted({1, _near(most / 4), most}), bubble)


def _cells(frame: Frame, counts: Array, names: Sequence[str]) -> Iterator[str]:
    most = max(int(counts.max()), 1)
    shade = np.ceil(LEVELS * np.sqrt(counts / most)).astype(int)  # 0 only where there is nothing
    width, height = frame.column - (frame.column > 4), frame.row - 1
    for level in range(1, LEVELS + 1):
        cells = "".join(
            f"M{frame.left + k * frame.column:.2f} {frame.y(c) - height / 2:.1f}h{width:.2f}v{height:.1f}h{-width:.2f}z"
            for k, c in np.argwhere(shade == level)
        )
        if cells:
            yield f'<path class="mark" fill-opacity="{level / LEVELS:.3f}" d="{cells}"/>'

    def swatch(count: int, x: float, y: float) -> str:
        opacity = math.ceil(LEVELS * math.sqrt(count / most)) / LEVELS
        return f'<rect class="mark" fill-opacity="{opacity:.3f}" x="{x - 9}" y="{y - 9}" width="18" height="18"/>'

    yield from _legend(frame, sorted({1, _near(most / 4), most}), swatch)


def _near(value: float) -> int:
    """A round number to show in a legend."""
    if value < 10:
        return max(1, round(value))
    return int(float(f"{value:.1g}"))


def _legend(frame: Frame, values: list[int], mark: Callable[[int, float, float], str]) -> Iterator[str]:
    x, y = WIDTH - RIGHT + 32, frame.top + 34
    yield f'<text x="{x - 18}" y="{frame.top + 8:.1f}">examples of a label</text>'
    for i, value in enumerate(values):
        yield mark(value, x, y + 34 * i) + f'<text x="{x + 24}" y="{y + 34 * i + 4.5:.1f}">{value:,}</text>'
