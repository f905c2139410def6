"""Charts in plain SVG, drawn by the same code for every page: lines, bars, heat maps and points.

A chart stretches to the width that it gets without scaling its text: horizontal positions are percentages, vertical
ones pixels. The numbers of every chart stand in a table below it; a script only shows the one under the pointer.
Figures for papers draw the same `Lines`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from sordino.report.frame import look
from sordino.results.markup import Html, folded, joined, scrolled, tag

LEFT, WIDE = 11, 86  # percent of the width: where the plotting area begins, and its width
TOP, BOTTOM, HEIGHT = 14, 226, 270  # pixels
POINTS = 400  # of a line, and rows of a table: of more, so many at even distances
NAMED = 12  # bars or points that have room for a name each
SHADES = 12  # of a heat map
CELLS = 20_000  # of its table
T = TypeVar("T")
Write = Callable[[float], str]
Numbers = tuple[Sequence[str], Sequence[Sequence[str | int]]]  # columns and rows of a table


def number(value: float) -> str:
    return f"{value:.4g}"


def percent(value: float) -> str:
    return f"{value:.1%}"


class Axis(NamedTuple):
    """One axis of a chart. `paper` and `unit`: in a figure for a paper, its label and the divisor of its values."""

    label: str
    write: Write = number
    paper: str = ""
    unit: float = 1.0
    zero: bool = False  # it begins at 0
    log: bool = False
    most: float = math.inf  # no value is above


class LinePoint(NamedTuple):
    """One point of a line; `spread` is half the height of the band around it."""

    x: float
    y: float
    spread: float | None = None
    note: str = ""


class Line(NamedTuple):
    """A labelled line of a chart."""

    label: str
    points: Sequence[LinePoint]


class Lines(NamedTuple):
    """A line chart. `unproved`: no proof supports its values, and its lines are drawn in another style."""

    title: str
    about: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    unproved: bool = False


class ScatterPoint(NamedTuple):
    """A point with an error bar. `nominal`: where a published formula would put it, which proves nothing."""

    name: str
    colour: int
    x: float
    y: float
    spread: float | None = None
    nominal: float | None = None


def some(things: Sequence[T], most: int = POINTS) -> Sequence[T]:
    """Up to `most` of the items, at even distances, always with the last one."""
    if len(things) <= most:
        return things
    return [things[(i + 1) * len(things) // most - 1] for i in range(most)]


def lines(chart: Lines) -> Html:
    """A line chart with its legend and a table of its numbers; empty where no number is finite."""
    kept = [Line(one.label, some([p for p in one.points if math.isfinite(p.y)])) for one in chart.lines]
    spots = [spot for one in kept for spot in one.points]
    if not spots:
        return Html("")
    edges = [spot.y + sign * (spot.spread or 0.0) for spot in spots for sign in (-1, 1)]
    x, y = Scale(chart.x, [spot.x for spot in spots]), Scale(chart.y, edges, 0.1)
    looks = [look(None if chart.unproved else i) for i in range(len(kept))]
    drawn = [_line(one, how, x, y) for one, how in zip(kept, looks, strict=True) if one.points]
    keys = [_key(one.label, how) for one, how in zip(kept, looks, strict=True) if one.points]
    return figure(
        chart.title,
        chart.about,
        [*_grid(y), *_across(x), *drawn],
        joined([tag("ul", *keys, class_="legend"), tag("p", "", class_="reading", aria_live="polite")]),
        ([chart.x.label, *(one.label for one in kept)], list(_rows(chart, kept, x))),
        readable=True,
        unproved=chart.unproved,
    )


def _line(one: Line, how: dict[str, str], x: Scale, y: Scale) -> Html:
    """A line and its band, stretched to the chart's width; a line of few points has dots, which keep their shape."""
    places = [(1000 * x.part(spot.x), y.down(spot.y)) for spot in one.points]
    banded = [spot for spot in one.points if spot.spread is not None]
    upper = [(1000 * x.part(spot.x), y.down(spot.y + (spot.spread or 0.0))) for spot in banded]
    lower = [(1000 * x.part(spot.x), y.down(spot.y - (spot.spread or 0.0))) for spot in banded]
    band = tag("polygon", points=_path([*upper, *reversed(lower)]), fill=how["stroke"], fill_opacity="0.17")
    line = tag("polyline", points=_path(places), vector_effect="non-scaling-stroke", **how)
    stretched = tag("svg", band if banded else "", line, x=f"{LEFT}%", width=f"{WIDE}%", height=f"{HEIGHT}",
                    viewBox=f"0 0 1000 {HEIGHT}", preserveAspectRatio="none")  # fmt: skip
    alone = [_dot(x.across(s.x), y.down(s.y), how["stroke"], 3) for s in one.points] if len(one.points) < 4 else []
    return tag("g", stretched, *alone, class_="series")


def _rows(chart: Lines, kept: Sequence[Line], x: Scale) -> Iterator[tuple[str, ...]]:
    """Rows of the table of numbers, one for each position on the horizontal axis; the first cell is that position as a
    percentage.
    """
    cells = [{spot.x: _cell(spot, chart.y.write) for spot in one.points} for one in kept]
    for at in some(sorted({place for one in cells for place in one})):
        yield (f"{x.across(at):.2f}", chart.x.write(at), *(one.get(at, "") for one in cells))


def _cell(spot: LinePoint, write: Write) -> str:
    spread = "" if spot.spread is None else f" ± {write(spot.spread)}"
    return f"{write(spot.y)}{spread}{spot.note}"


def bars(
    title: str,
    about: str,
    named: Sequence[tuple[str, float]],
    y: Axis,
    numbers: Numbers,
    marked: int = 0,
    limit: str = "",
) -> Html:
    """Bar chart: one bar for each name, the first `marked` in another colour. `limit`: the name of a line drawn at
    1.
    """
    shown = some(named)
    high = y.most if math.isfinite(y.most) else max((v for _, v in shown if math.isfinite(v)), default=0.0) or 1.0
    scale, step = Scale(y._replace(zero=True, most=high), [high]), WIDE / max(len(shown), 1)
    drawn: list[Html] = []
    for i, (name, value) in enumerate(shown):
        top, middle = scale.down(min(value, high)), f"{LEFT + (i + 0.5) * step:.2f}%"
        colour = "var(--c1)" if i < marked * len(shown) / max(len(named), 1) else "var(--c0)"
        drawn.append(
            tag("rect", x=f"{LEFT + (i + 0.1) * step:.3f}%", width=f"{0.8 * step:.3f}%", y=f"{top:.1f}",
                height=f"{max(BOTTOM - top, 0.5):.1f}", fill=colour)
        )  # fmt: skip
        if len(shown) <= NAMED:
            drawn.append(
                tag("text", _short(name, 90 // len(shown)), x=middle, y=f"{BOTTOM + 16}", text_anchor="middle")
            )
    if limit:
        at = f"{scale.down(1.0):.1f}"
        drawn.append(_across_at(at, stroke="var(--ink)", stroke_width="2", stroke_dasharray="6 4"))
        drawn.append(
            tag("text", limit, x=f"{LEFT + WIDE}%", y=f"{float(at) - 4:.1f}", text_anchor="end", class_="name")
        )
    label = tag("text", y.label, x=f"{LEFT + WIDE / 2}%", y=f"{HEIGHT - 8}", text_anchor="middle")
    return figure(title, about, [*_grid(scale), *drawn, label], Html(""), numbers)


def heat(title: str, about: str, counts: Sequence[Sequence[int]], names: Sequence[str]) -> Html:
    """Heat map of counts by client and class: darker is more. Of many clients each row shows the mean of neighbours."""
    group = math.ceil(len(counts) / 120)
    parts = [counts[k : k + group] for k in range(0, len(counts), group)]
    rows = [[sum(column) / len(part) for column in zip(*part, strict=True)] for part in parts]
    classes, tall = len(counts[0]), max(4, min(18, 400 // len(rows)))
    height, top = tall * len(rows), max(1.0, *(value for row in rows for value in row))
    shades: dict[int, list[str]] = {}
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            if shade := math.ceil(SHADES * math.sqrt(value / top)):
                shades.setdefault(shade, []).append(f"M{j} {i}h.96v.9h-.96z")
    cells = [tag("path", d="".join(d), fill="var(--c0)", fill_opacity=f"{s / SHADES:.2f}") for s, d in shades.items()]
    stretched = tag("svg", *cells, x=f"{LEFT}%", width=f"{WIDE}%", y="4", height=str(height),
                    viewBox=f"0 0 {classes} {len(rows)}", preserveAspectRatio="none")  # fmt: skip
    every, between = math.ceil(16 / tall), math.ceil(classes / 24)
    words = [
        tag(
            "text",
            _short(names[i * group], 8),
            x=f"{LEFT - 1}%",
            y=f"{4 + tall * i + min(tall, 16)}",
            text_anchor="end",
        )
        for i in range(0, len(rows), every)
    ]
    words += [
        tag("text", j, x=f"{LEFT + WIDE * (j + 0.5) / classes:.2f}%", y=f"{height + 20}", text_anchor="middle")
        for j in range(0, classes, between)
    ]
    caption = f"clients down, classes across; none to {number(top)} examples"
    words.append(tag("text", caption, x=f"{LEFT + WIDE / 2}%", y=f"{height + 40}", text_anchor="middle"))
    listed = some(range(len(counts)), CELLS // classes)
    numbers: list[Sequence[str | int]] = [(names[k], *counts[k], sum(counts[k])) for k in listed]
    about += f" The table has {len(listed)} of them." if len(listed) < len(counts) else ""
    columns = ["client", *(f"class {j}" for j in range(classes)), "all"]
    return figure(title, about, [stretched, *words], Html(""), (columns, numbers), height=height + 48)


def points(title: str, about: str, x: Axis, y: Axis, marks: Sequence[ScatterPoint], numbers: Numbers) -> Html:
    """Scatter plot: a dot at each proved x, and a red cross joined to it where a published formula claims another."""
    xs = [value for mark in marks for value in (mark.x, mark.nominal) if value is not None]
    ys = [mark.y + sign * (mark.spread or 0.0) for mark in marks for sign in (-1, 1)]
    across, up = Scale(x._replace(log=max(xs) > 8 * min(xs)), xs, 0.12), Scale(y, ys, 0.18)
    drawn: list[Html] = []
    taken: list[tuple[float, float]] = []
    for mark in marks:
        colour, px, py = look(mark.colour)["stroke"], across.across(mark.x), up.down(mark.y)
        if mark.spread:
            ends = {"y1": f"{up.down(mark.y - mark.spread):.1f}", "y2": f"{up.down(mark.y + mark.spread):.1f}"}
            drawn.append(tag("line", x1=f"{px:.2f}%", x2=f"{px:.2f}%", **ends, stroke=colour, stroke_width="2"))
        if mark.nominal is not None:
            at = across.across(mark.nominal)
            drawn.append(tag("line", x1=f"{at:.2f}%", x2=f"{px:.2f}%", y1=f"{py:.1f}", y2=f"{py:.1f}",
                             stroke="var(--warn)", stroke_width="2", stroke_dasharray="2 5"))  # fmt: skip
            drawn.append(tag("text", "✕", x=f"{at:.2f}%", y=f"{py + 6:.1f}", text_anchor="middle", class_="cross"))
            drawn.append(
                tag("text", "nominal", x=f"{at:.2f}%", y=f"{py + 22:.1f}", text_anchor="middle", class_="warn")
            )
        drawn.append(_dot(px, py, colour, 6))
        free = [py + away for away in (-8, 12, -22, 26, -36, 40)]
        spot = next((s for s in free if all(abs(a - px) > 30 or abs(b - s) > 13 for a, b in taken)), free[0])
        taken.append((px, spot))
        side = {"text_anchor": "end", "dx": "-11"} if px > 60 else {"text_anchor": "start", "dx": "11"}
        drawn.append(tag("text", mark.name, x=f"{px:.2f}%", y=f"{spot:.1f}", class_="name", **side))
    return figure(title, about, [*_grid(up), *_across(across), *drawn], Html(""), numbers)


def figure(
    title: str,
    about: str,
    drawn: Sequence[Html],
    below: Html,
    numbers: Numbers,
    readable: bool = False,
    unproved: bool = False,
    height: int = HEIGHT,
) -> Html:
    """A picture with its title and a table of its numbers. `readable`: each row begins with its position in the
    picture, for a script that points at it; `unproved`: a badge says that the values are no guarantee.
    """
    badge = [tag("span", "nominal: not a guarantee", class_="badge unproved")] if unproved else []
    attributes = {"role": "img", "aria_label": f"{title}. {about} The numbers are in the table below."}
    picture = tag("svg", *drawn, width="100%", height=str(height))
    columns, rows = numbers
    return tag(
        "figure",
        tag("figcaption", title, *badge, tag("small", about)),
        tag("div", picture, class_="plot", **attributes, **({"tabindex": "0"} if readable else {})),
        below,
        folded("Numbers", scrolled(title, columns, rows, placed=readable)),
        **({"class_": "unproved"} if unproved else {}),
    )


class Scale:
    """Map from values to positions along one axis."""

    def __init__(self, axis: Axis, values: Sequence[float], room: float = 0.0) -> None:
        self.axis = axis
        low, high = min(values), max(values)
        low = min(low, 0.0) if axis.zero and not axis.log else low
        self.low, self.high = self._of(low), self._of(high)
        if self.high <= self.low:
            self.low, self.high = self.low - (0.0 if axis.zero else 1.0), self.high + 1.0
        room *= self.high - self.low
        self.low, self.high = (self.low if axis.zero else self.low - room), self.high + room
        if math.isfinite(axis.most):  # a share
            self.low, self.high = max(self.low, 0.0), min(self.high, axis.most)

    def _of(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.axis.log else value

    def part(self, value: float) -> float:
        return (self._of(value) - self.low) / (self.high - self.low)

    def across(self, value: float) -> float:
        """Horizontal position of a value, in per cent of the width."""
        return LEFT + WIDE * self.part(value)

    def down(self, value: float) -> float:
        """Vertical position of a value, in pixels from the upper edge."""
        return BOTTOM - (BOTTOM - TOP) * min(max(self.part(value), 0.0), 1.0)

    def ticks(self) -> list[float]:
        """Round values for the ticks of the axis, about five."""
        if self.axis.log:
            found = [m * 10.0**p for p in range(math.floor(self.low), math.ceil(self.high) + 1) for m in (1, 2, 5)]
            kept = [value for value in found if self.low - 1e-9 <= self._of(value) <= self.high + 1e-9]
            return kept if len(kept) < 9 else [value for value in kept if math.log10(value).is_integer()]
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = power * next(m for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
        return [k * step for k in range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)]


def _grid(y: Scale) -> list[Html]:
    """Horizontal grid lines, with their values in front of them."""
    found = []
    for value in y.ticks():
        at = y.down(value)
        found.append(_across_at(f"{at:.1f}", stroke="var(--line)"))
        found.append(tag("text", _tick(y, value), x=f"{LEFT - 1}%", y=f"{at + 4:.1f}", text_anchor="end"))
    return found


def _across(x: Scale) -> list[Html]:
    ticks = [value for value in x.ticks() if x.axis.label != "round" or value == int(value)]
    found = [tag("text", _tick(x, v), x=f"{x.across(v):.2f}%", y=f"{BOTTOM + 17}", text_anchor="middle") for v in ticks]
    label = x.axis.label + (", logarithmic" if x.axis.log else "")
    return [*found, tag("text", label, x=f"{LEFT + WIDE / 2}%", y=f"{HEIGHT - 8}", text_anchor="middle")]


def _across_at(y: str, **how: str) -> Html:
    return tag("line", x1=f"{LEFT}%", x2=f"{LEFT + WIDE}%", y1=y, y2=y, **how)


def _tick(scale: Scale, value: float) -> str:
    return scale.axis.write(value).replace(".0%", "%").replace(".0 ", " ")


def _key(label: str, how: dict[str, str]) -> Html:
    swatch = tag("svg", tag("path", d="M0,4H24", **how), width="24", height="8", aria_hidden="true")
    return tag("li", tag("button", swatch, label, type="button", aria_pressed="true", title="show or hide"))


def _dot(across: float, down: float, colour: str, size: int) -> Html:
    return tag("circle", cx=f"{across:.2f}%", cy=f"{down:.1f}", r=str(size), fill=colour)


def _path(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{across:.1f},{down:.1f}" for across, down in places)


def _short(name: str, room: int) -> str:
    return name if len(name) <= room else f"{name[: max(room - 1, 1)]}…"
