"""Picture of a partition: clients across, labels up, as one self-contained SVG file for light and dark screens.

Where there is room, bubbles whose area is the number of examples. Where bubbles would be too small, shaded cells; and
where a client is thinner than a line, clients are ordered by their most frequent label, so that what they have in
common can be seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sordino.partition.row_numbers import Array
from sordino.report.frame import DARK, LIGHT
from sordino.results.markup import Html, joined, tag

LARGEST = 9  # the radius that the largest bubble needs
NAMED = 150  # clients that can still be told apart
LEVELS = 8  # shades of a cell
LEFT, RIGHT, WIDTH = 70, 150, 1000  # legend on the right; the left at least
LETTER, LONGEST = 7, 28  # width of one, and how many of a class name are shown
TOP, BARS, GAP = 78, 64, 26  # title, sizes of clients, space
INKS = {"ink": "ink", "soft": "soft", "paper": "paper", "line": "line", "main": "c0"}


def _colours(theme: dict[str, str]) -> str:
    return " ".join(f"--{name}: {theme[colour]};" for name, colour in INKS.items())


STYLE = f"""
svg {{ color-scheme: light dark; {_colours(LIGHT)} }}
@media (prefers-color-scheme: dark) {{ svg {{ {_colours(DARK)} }} }}
text {{ font: 13px system-ui, sans-serif; fill: var(--soft); }}
.title {{ font-size: 18px; font-weight: 600; fill: var(--ink); }}
.paper {{ fill: var(--paper); }} .mark {{ fill: var(--main); }} .grid {{ stroke: var(--line); fill: none; }}
.end {{ text-anchor: end; }} .mid {{ text-anchor: middle; }}
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
        """The radius of the largest bubble. Neighbouring bubbles may touch, because they are translucent."""
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
    caption = (
        f"{sizes.sum():,} examples, {clients:,} clients; {sizes.min():,} to {sizes.max():,} per client, median "
        f"{np.median(sizes):,.0f}"
    )
    axis = "client" if named else "clients, in the order of their most frequent label"
    called = [*(clients_are or map(str, range(clients)))]
    parts = (
        tag("title", title, id="title"),
        tag("desc", caption, id="said"),
        tag("style", Html(STYLE)),
        tag("rect", class_="paper", width="100%", height="100%"),
        _text(title, frame.left, 30, "title"),
        _text(caption, frame.left, 52),
        *_sizes(frame, sizes[order]),
        *_axes(frame, names, axis, called, ticks=named, lines=not shaded),
        *(_cells(frame, counts[order], names) if shaded else _bubbles(frame, counts[order], names, called)),
    )
    size = {"viewBox": f"0 0 {WIDTH} {frame.height:.0f}", "width": f"{WIDTH}", "height": f"{frame.height:.0f}"}
    return tag("svg", *parts, xmlns="http://www.w3.org/2000/svg", role="img", aria_labelledby="title said", **size)


def _text(words: str, x: float, y: float, kind: str = "") -> Html:
    return tag("text", words, x=f"{x:g}", y=f"{y:.1f}", **({"class_": kind} if kind else {}))


def _circle(x: float, y: float, radius: float, *inside: Html, **how: str) -> Html:
    return tag("circle", *inside, cx=f"{x:.1f}", cy=f"{y:.1f}", r=f"{radius:.2f}", **how)


def _sizes(frame: Frame, sizes: Array) -> Iterator[Html]:
    base, most = TOP + BARS, max(int(sizes.max()), 1)
    width = max(frame.column * 0.8, min(frame.column, 0.7))
    bars = "".join(
        f"M{frame.x(k) - width / 2:.2f} {base}v{-BARS * size / most:.2f}h{width:.2f}V{base}z"
        for k, size in enumerate(sizes)
    )
    yield tag("path", class_="mark", d=bars)
    yield tag("path", class_="grid", d=f"M{frame.left} {base}H{WIDTH - RIGHT}")
    yield _text(f"{most:,}", frame.left - 10, TOP + 10, "end")
    yield _text("0", frame.left - 10, base + 4, "end")
    yield _text("examples", WIDTH - RIGHT + 14, TOP + BARS / 2)
    yield _text("of each client", WIDTH - RIGHT + 14, TOP + BARS / 2 + 16)


def _axes(
    frame: Frame, names: Sequence[str], axis: str, clients: Sequence[str], ticks: bool, lines: bool
) -> Iterator[Html]:
    if lines:
        drawn = "".join(f"M{frame.left} {frame.y(c):.1f}H{WIDTH - RIGHT}" for c in range(frame.classes))
        yield tag("path", class_="grid", d=drawn)
    every = max(1, math.ceil(15 / frame.row))
    for c in range(0, frame.classes, every):
        yield _text(_short(names[c]), frame.left - 10, frame.y(c) + 4.5, "end")
    middle = (frame.top + frame.bottom) / 2
    yield tag("text", "label", class_="mid", transform=f"translate(18 {middle:.1f}) rotate(-90)")
    step = _nice(frame.clients / 10)
    for k in range(0, frame.clients, step) if ticks else ():
        yield _text(_short(clients[k]), frame.x(k), frame.bottom + 18, "mid")
    yield _text(axis, (frame.left + WIDTH - RIGHT) / 2, frame.bottom + 40, "mid")


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _nice(least: float) -> int:
    """The least number of the form 1, 2 or 5 times a power of ten that is at least `least`."""
    power = 10 ** math.floor(math.log10(max(least, 1)))
    return next(int(n * power) for n in (1, 2, 5, 10) if n * power >= least)


def _bubbles(frame: Frame, counts: Array, names: Sequence[str], clients: Sequence[str]) -> Iterator[Html]:
    most = max(int(counts.max()), 1)
    yield tag(
        "g",
        *(
            _circle(
                frame.x(k),
                frame.y(c),
                frame.radius * math.sqrt(counts[k, c] / most),
                tag("title", f"client {clients[k]}, label {names[c]}: {counts[k, c]:,}"),
            )
            for k, c in np.argwhere(counts)
        ),
        class_="mark",
        fill_opacity="0.7",
    )

    def bubble(count: int, x: float, y: float) -> Html:
        return _circle(x, y, frame.radius * math.sqrt(count / most), class_="mark", fill_opacity="0.7")

    yield from _legend(frame, sorted({1, _near(most / 4), most}), bubble)


def _cells(frame: Frame, counts: Array, names: Sequence[str]) -> Iterator[Html]:
    most = max(int(counts.max()), 1)
    shade = np.ceil(LEVELS * np.sqrt(counts / most)).astype(int)  # 0 only where there is nothing
    width, height = frame.column - (frame.column > 4), frame.row - 1
    for level in range(1, LEVELS + 1):
        cells = "".join(
            f"M{frame.left + k * frame.column:.2f} {frame.y(c) - height / 2:.1f}h{width:.2f}v{height:.1f}h{-width:.2f}z"
            for k, c in np.argwhere(shade == level)
        )
        if cells:
            yield tag("path", class_="mark", fill_opacity=f"{level / LEVELS:.3f}", d=cells)

    def swatch(count: int, x: float, y: float) -> Html:
        opacity = math.ceil(LEVELS * math.sqrt(count / most)) / LEVELS
        place = {"x": f"{x - 9:g}", "y": f"{y - 9:g}", "width": "18", "height": "18"}
        return tag("rect", class_="mark", fill_opacity=f"{opacity:.3f}", **place)

    yield from _legend(frame, sorted({1, _near(most / 4), most}), swatch)


def _near(value: float) -> int:
    """A value rounded for a legend: to a whole number below 10, to one digit above."""
    if value < 10:
        return max(1, round(value))
    return int(float(f"{value:.1g}"))


def _legend(frame: Frame, values: list[int], mark: Callable[[int, float, float], Html]) -> Iterator[Html]:
    x, y = WIDTH - RIGHT + 32, frame.top + 34
    yield _text("examples of a label", x - 18, frame.top + 8)
    for i, value in enumerate(values):
        yield joined((mark(value, x, y + 34 * i), _text(f"{value:,}", x + 24, y + 34 * i + 4.5)))
