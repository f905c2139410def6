"""The frame of every page: head, content security policy, style, script, the parts that all pages share, and the
colours and dashes of lines. Colour-blind readers can tell them apart, on light paper and on dark, and no line
differs by its colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from sordino.accounting.facts import epsilon_text
from sordino.accounting.words import Described
from sordino.results.markup import Html, joined, tag

SELF_CONTAINED = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def document(title: str, head: Sequence[Html], body: Sequence[str], *scripts: Html, **main: str) -> str:
    """One whole HTML document. `main`: attributes of its <main> element."""
    top = (
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        *head,
        tag("title", title),
        tag("link", rel="icon", href="data:,"),
    )
    whole = tag("html", tag("head", *top), tag("body", tag("main", *body, id="main", **main), *scripts), lang="en")
    return f"<!doctype html>\n{whole}\n"


def self_contained(title: str, *body: str) -> str:
    """A page that is opened from disk and loads nothing: style and script are part of it."""
    policy = tag("meta", http_equiv="Content-Security-Policy", content=SELF_CONTAINED)
    head = (policy, tag("meta", name="color-scheme", content="light dark"), tag("style", style()))
    return document(title, head, body, tag("script", source("page.js")))


def style() -> Html:
    return Html(f"{css()}\n{source('page.css')}")


def source(*names: str) -> Html:
    """The text of these files of `report/web`, one after another."""
    place = files("sordino.report").joinpath("web")
    return Html("\n".join(place.joinpath(name).read_text(encoding="utf-8") for name in names))


def top(title: str, lead: str, *notices: str) -> Html:
    """Title, summary, and the notices that must not be overlooked."""
    notes = [tag("p", notice, class_="notice") for notice in notices if notice]
    return joined([tag("h1", title), tag("p", lead, class_="lead"), *notes])


def promises(rows: Sequence[Described]) -> Html:
    """Privacy guarantees, each in a box: badges, words, and what an attacker who is 1% sure can come to believe."""
    boxes = (
        tag(
            "li",
            *_badges(row),
            row.words,
            tag("p", row.belief, class_="belief"),
            class_=f"{row.status} {row.grade}".strip(),
        )
        for row in rows
    )
    return tag("ul", *boxes, class_="promises")


def _badges(row: Described) -> Sequence[Html]:
    text = f"ε {epsilon_text(row.epsilon)}"
    if row.nominal_epsilon is not None:
        printed = f"nominal ε {epsilon_text(row.nominal_epsilon)}: proves nothing"
        first = tag("span", printed, class_="badge unproved")
        return first, tag("span", f"holds: {text}, {row.strength}", class_="badge")
    strength = row.strength if row.status == "none" else f"{row.standing}, {row.strength}"
    return tag("span", text, class_="badge"), tag("span", strength, class_="badge")


LIGHT = {
    "paper": "#fbfaf7", "card": "#ffffff", "ink": "#1c2127", "soft": "#5b6570", "line": "#dedad1",
    "good": "#1f7a4d", "mild": "#8a5a00", "warn": "#b3261e",
    "c0": "#0b66a3", "c1": "#c9550a", "c2": "#2f9480", "c3": "#4f2bc8", "c4": "#5e2a1a", "c5": "#59636e",
}  # fmt: skip
DARK = {
    "paper": "#14171b", "card": "#1c2025", "ink": "#e9e6df", "soft": "#a7adb5", "line": "#343a42",
    "good": "#7fd1a0", "mild": "#f0b35a", "warn": "#ff8a80",
    "c0": "#6cb2ea", "c1": "#f0854a", "c2": "#81ead5", "c3": "#9a72ff", "c4": "#ffd326", "c5": "#7c8793",
}  # fmt: skip
SERIES = ("c0", "c1", "c2", "c3", "c4", "c5")
DASHES: tuple[tuple[int, ...], ...] = ((), (7, 4), (2, 3), (10, 3, 2, 3), (14, 4), (5, 2))


def dashes(i: int) -> tuple[int, ...]:
    """Dash pattern of the i-th line: no pair of colour and dashes is repeated before all pairs have been used."""
    return DASHES[(i + i // len(SERIES)) % len(DASHES)]


def look(i: int | None) -> dict[str, str]:
    """SVG attributes (colour, dashes) of the i-th line of a chart; i is None for values that no proof supports, whose
    lines have a style of their own.
    """
    colour = "warn" if i is None else SERIES[i % len(SERIES)]
    dash = " ".join(map(str, (2, 6) if i is None else dashes(i))) or "none"
    return {"stroke": f"var(--{colour})", "stroke_dasharray": dash, "stroke_width": "2", "fill": "none"}


def css() -> str:
    """CSS custom properties of the light and the dark theme; the system of whoever looks chooses one."""
    light, dark = ("".join(f"--{name}: {value}; " for name, value in theme.items()) for theme in (LIGHT, DARK))
    return f":root {{ color-scheme: light dark; {light}}}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}"
