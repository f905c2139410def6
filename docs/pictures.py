"""The pictures of the guarantee: python docs/pictures.py writes docs/images/*.svg. Each has its own ground, light or
dark as the reader's system is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

STYLE = """
svg { --ground: #fbfaf7; --ink: #22262b; --soft: #6b7280; --line: #9aa3ad; --box: #ffffff; --one: #b4412e; --two: #2f6f9f; --good: #3d7a4a }
@media (prefers-color-scheme: dark) {
  svg { --ground: #17191c; --ink: #e8e6e1; --soft: #a2a9b3; --line: #6b7280; --box: #22262b; --one: #f0836e; --two: #7cb8e6; --good: #86c795 }
}
text { font: 14px system-ui, sans-serif; fill: var(--ink) } .soft { fill: var(--soft) } .head { font-weight: 600 }
.one { fill: var(--one) } .two { fill: var(--two) } .good { fill: var(--good) }
.ground { fill: var(--ground) } .box { fill: var(--box); stroke: var(--line) } .dashed { stroke-dasharray: 5 4 }
.ring { fill: none; stroke: var(--one); stroke-width: 2 } .arrow, .axis { fill: none; stroke: var(--line); stroke-width: 1.5 }
.curve-one { fill: none; stroke: var(--one); stroke-width: 2 } .curve-two { fill: none; stroke: var(--two); stroke-width: 2; stroke-dasharray: 7 4 }
.tail { fill: var(--one); opacity: .35 } .dot { fill: var(--line) } .gate { fill: var(--box); stroke: var(--good); stroke-width: 2 }
"""
Shapes = Iterable[str]


def picture(title: str, width: int, height: int, shapes: Shapes) -> str:
    """`title` is for screen readers."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0 8 4 0 8z" fill="var(--line)"/></marker></defs>',
            f'<rect class="ground" width="{width}" height="{height}" rx="10"/>',
            *shapes,
            "</svg>\n",
        ]
    )


def say(x: float, y: float, words: str, style: str = "", anchor: str = "middle") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{style}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, style: str = "box") -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" class="{style}"/>'


def dot(x: float, y: float, style: str = "dot", radius: float = 6) -> str:
    return f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" class="{style}"/>'


def arrow(x1: float, y1: float, x2: float, y2: float, style: str = "arrow") -> str:
    return f'<path d="M{x1:g} {y1:g} {x2:g} {y2:g}" class="{style}" marker-end="url(#tip)"/>'


def labelled(x: float, y: float, width: float, height: float, head: str, *lines: str, style: str = "box") -> Shapes:
    yield box(x, y, width, height, style)
    top = y + height / 2 - 9 * len(lines) + 5
    yield say(x + width / 2, top, head, "head")
    for i, line in enumerate(lines, 1):
        yield say(x + width / 2, top + 19 * i, line, "soft")


def holding(x: float, y: float, changed: Callable[[int], str], border: str = "box") -> Shapes:
    """A client with its twelve examples; `changed` gives the style of each."""
    yield box(x, y, 120, 96, border)
    for i in range(12):
        style = changed(i)
        if style:
            yield dot(x + 24 + i % 4 * 24, y + 24 + i // 4 * 24, style)


# the pictures ---------------------------------------------------------------------------------------------------------


def units() -> str:
    def shapes() -> Shapes:
        for left, head, note in (
            (30, "unit: example", "one row, one image of one client"),
            (390, "unit: client", "everything one client holds"),
        ):
            yield say(left + 150, 34, head, "head")
            yield say(left + 150, 184, note, "soft")
        yield from holding(30, 60, lambda i: "one" if i == 6 else "dot")
        yield from holding(180, 60, lambda i: "dot")
        yield from holding(390, 60, lambda i: "one")
        yield box(384, 54, 132, 108, "ring")
        yield from holding(540, 60, lambda i: "dot")
        yield dot(102, 108, "ring", 11)

    return picture("Two units: one example of a client, or all of a client", 690, 205, shapes())


def neighbours() -> str:
    def shapes() -> Shapes:
        panels = (
            (30, "replace", "another value in its place", "two"),
            (260, "zero_out", "its contribution is zero", "ring"),
        )
        for left, head, note, other in panels:
            yield say(left + 85, 34, head, "head")
            yield say(left + 85, 220, note, "soft")
            for row, style in ((55, "one"), (135, other)):
                yield box(left, row, 170, 56)
                for i in range(5):
                    yield dot(left + 25 + i * 30, row + 28, style if i == 2 else "dot", 8)
            yield say(left + 85, 128, "or", "soft")

    return picture("Neighbours: one unit is replaced, or its contribution is zero", 460, 240, shapes())


def adversaries() -> str:
    def shapes() -> Shapes:
        for i in range(3):
            yield from labelled(24, 30 + i * 66, 108, 50, f"client {i + 1}")
            yield arrow(134, 55 + i * 66, 228, 108 + i * 13)
        yield from labelled(230, 84, 130, 74, "server", "sum, update")
        yield arrow(362, 110, 448, 66)
        yield arrow(362, 132, 448, 172)
        yield from labelled(450, 26, 216, 74, "participants", "see every model sent out")
        yield from labelled(450, 140, 216, 74, "public", "sees what is published")
        yield say(295, 180, "sees each upload", "soft")
        yield say(295, 199, "and who sent it", "soft")

    return picture(
        "Three adversaries: the server sees each upload, participants every model, the public what is published",
        690,
        240,
        shapes(),
    )


def epsilon_delta() -> str:
    """Two normal laws one step apart: where one is more than e^epsilon times the other lies delta."""
    apart, noise, epsilon = 1.0, 0.8, 1.8

    def law(x: float, centre: float) -> float:
        return math.exp(-((x - centre) ** 2) / (2 * noise**2))

    edge = apart / 2 + noise**2 * epsilon / apart  # the log ratio of the laws is linear: here it is epsilon
    place: Callable[[float, float], tuple[float, float]] = lambda x, y: (250 + 110 * x, 200 - 140 * y)  # noqa: E731

    def curve(centre: float, start: float, end: float) -> str:
        steps = [start + (end - start) * i / 80 for i in range(81)]
        return " ".join("{:.1f} {:.1f}".format(*place(x, law(x, centre))) for x in steps)

    def shapes() -> Shapes:
        yield say(345, 30, "everything the adversary sees, with and without one unit", "head")
        yield '<path d="M40 200 650 200" class="axis"/>'
        yield f'<path d="M{place(edge, 0)[0]:.1f} 200 {curve(apart, edge, 3.4)} {place(3.4, 0)[0]:.1f} 200z" class="tail"/>'
        yield f'<path d="M{curve(0.0, -1.8, 3.4)}" class="curve-two"/>'
        yield f'<path d="M{curve(apart, -1.8, 3.4)}" class="curve-one"/>'
        yield say(232, 52, "without", "two")
        yield say(378, 52, "with", "one")
        yield arrow(530, 118, 480, 186)
        yield say(548, 82, "delta covers the rare outcomes", "soft")
        yield say(548, 101, "where the ratio is larger", "soft")
        yield say(345, 232, "everywhere else one curve is at most e^epsilon times the other", "soft")

    return picture(
        "Epsilon bounds the ratio of two curves, delta the mass of the tail where the bound fails", 690, 250, shapes()
    )


def what_a_sum_hides() -> str:
    def shapes() -> Shapes:
        heights = (34, 12, 58, 21, 45)
        yield say(112, 34, "five uploads", "head")
        for i, h in enumerate(heights):
            yield f'<rect x="{36 + i * 32}" y="{130 - h}" width="20" height="{h}" class="{"one" if i == 2 else "dot"}"/>'
        yield say(112, 158, "the server sees each", "one")
        yield arrow(216, 95, 262, 95)
        yield say(330, 34, "their sum", "head")
        yield f'<rect x="318" y="{130 - sum(heights) / 2:g}" width="24" height="{sum(heights) / 2:g}" class="dot"/>'
        yield say(330, 158, "others see this: who knows", "soft")
        yield say(330, 177, "the other four uploads", "soft")
        yield say(330, 196, "can compute the fifth", "one")
        yield arrow(404, 95, 450, 95)
        yield say(550, 34, "sum and noise", "head")
        for i, alpha in enumerate((0.15, 0.3, 0.5, 0.3, 0.15)):
            top = sum(heights) / 2 + (i - 2) * 9 - 14
            place = f'x="{490 + i * 24}" y="{130 - top:g}" width="24" height="{top:g}"'
            yield f'<rect {place} class="good" opacity="{alpha}"/>'
        yield say(550, 158, "hides any one upload up to", "soft")
        yield say(550, 177, "the clip: epsilon is finite", "good")

    return picture(
        "A sum alone hides no upload from somebody who knows all others; noise in proportion to the clip does",
        690,
        215,
        shapes(),
    )


def two_gates() -> str:
    def shapes() -> Shapes:
        yield box(16, 44, 420, 150, "box dashed")
        yield say(30, 36, "at the client", "soft", "start")
        yield box(452, 44, 352, 150, "box dashed")
        yield say(466, 36, "at the server", "soft", "start")
        row = (
            (28, 84, "examples", "box"),
            (128, 90, "Reader", "gate"),
            (234, 84, "local()", "box"),
            (334, 90, "Uplink", "gate"),
            (468, 64, "sum", "box"),
            (546, 76, "noise", "gate"),
            (636, 74, "divide", "box"),
            (722, 72, "update", "box"),
        )
        for (x, width, name, style), after in zip(row, (*row[1:], None), strict=True):
            yield from labelled(x, 80, width, 56, name, style=style)
            if after:
                yield arrow(x + width + 2, 108, after[0] - 2, 108)
        yield say(173, 158, "gate: bounds", "good")
        yield say(173, 176, "one example", "good")
        yield say(379, 158, "gate: bounds", "good")
        yield say(379, 176, "one client", "good")
        yield from labelled(150, 214, 520, 40, "ledger: budget is reserved before, recorded after, never refunded")

    return picture(
        "The two gates: the Reader bounds an example, the Uplink bounds a client, and the ledger records both",
        820,
        270,
        shapes(),
    )


def reserve_before_release() -> str:
    def shapes() -> Shapes:
        steps = (
            ("reserve", "cost is on disk"),
            ("read", "data, add noise"),
            ("store", "digest is on disk"),
            ("publish", "model is updated"),
        )
        for i, (name, note) in enumerate(steps):
            yield from labelled(24 + i * 170, 30, 132, 62, name, note)
            if i < 3:
                yield arrow(158 + i * 170, 61, 192 + i * 170, 61)
        after = (
            (90, "crash before:", "nothing spent or read"),
            (260, "crash here: spent,", "nothing released"),
            (430, "crash here: the same", "release again, free"),
            (600, "crash after:", "published and paid"),
        )
        for x, *lines in after:
            yield dot(x, 116, "one", 5)
            for i, line in enumerate(lines):
                yield say(x, 142 + 18 * i, line, "soft")

    return picture("Reserve, read, store, publish: what a crash costs at each step", 690, 180, shapes())


PICTURES: dict[str, Callable[[], str]] = {
    "units": units,
    "neighbours": neighbours,
    "adversaries": adversaries,
    "epsilon-delta": epsilon_delta,
    "what-a-sum-hides": what_a_sum_hides,
    "two-gates": two_gates,
    "reserve-before-release": reserve_before_release,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (Path(__file__).parent / "images" / f"{name}.svg").write_text(draw(), encoding="utf-8")
