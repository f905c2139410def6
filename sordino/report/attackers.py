"""What attackers reached of a run: pictures as files, and a section of its page, made of attack.json."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence

import numpy as np

from sordino.accounting.words import WHO
from sordino.report.markup import Html, joined, listed, table, tag
from sordino.results.attack_file import (
    Assault,
    AttackFinding,
    PictureRow,
    Roc,
    figures,
    promised,
    sheet,
)
from sordino.results.pictures import png

PLACE = "attackers"  # of the section in a page; what draws the page takes it over as it is
LEAST = 1e-3  # of the false alarms that a curve shows
WIDTH, HEIGHT, LEFT, BOTTOM = 520, 240, 60, 200
IMAGES = "This part of the page shows images of the training data."


# a section of a page --------------------------------------------------------------------------------------------------


def section(found: Assault) -> Html:
    """What attackers reached, in words and pictures."""
    lead = (
        f"{found.setting} Beside each figure stand that of a guess, by somebody who saw nothing, and that of the same "
        "attack on the same run without its protection."
    )
    return tag(
        "section",
        tag("h2", "What attackers reached"),
        *([tag("p", IMAGES, class_="notice")] if any(one.pictures for one in found.found) else []),
        tag("p", lead),
        tag("div", *(_figure(one, found.simulated) for one in found.found if one.measured), class_="grid"),
        *_untried([one for one in found.found if not one.measured]),
        tag("p", f"Not looked at: {'; '.join(found.not_looked_at)}.", class_="note"),
        id=PLACE,
    )


def _figure(one: AttackFinding, simulated: bool) -> Html:
    rows = [(figure.name, *figures(figure)) for figure in one.measured]
    promises = [f"Promised against it: {promised(held, simulated)}." for held in one.promises]
    return tag(
        "figure",
        tag("figcaption", f"{one.attack}: ", tag("span", one.verdict, class_="badge")),
        tag("p", f"The attacker is {WHO[one.sees]}. {one.what} Here: {one.why}."),
        listed(promises, class_="plain"),
        tag(
            "div",
            table("What it reached", ("figure", "reached", *one.heads), rows, class_="wide"),
            class_="scroll whole",
        ),
        _picture(one.pictures),
        Html("") if one.roc is None else curve(one.roc, simulated),
        class_="row",
    )


def _untried(left: Sequence[AttackFinding]) -> list[Html]:
    lines = [f"{one.attack}: {one.why}" for one in left]
    return [tag("h3", "Not tried"), listed(lines, class_="plain")] if lines else []


def _picture(rows: Sequence[PictureRow]) -> Html:
    if not rows:
        return Html("")
    said = "From top to bottom: " + ", ".join(row.told for row in rows) + "."
    source = f"data:image/png;base64,{base64.b64encode(png(sheet(rows))).decode()}"
    image = Html(tag("img", src=source, alt=said, style="max-width:100%").removesuffix("</img>"))
    return joined([image, tag("p", said, class_="note")])


def curve(found: Roc, simulated: bool) -> Html:
    """Members found over false alarms, the latter on a logarithmic axis, with the most that the promise allows."""
    alarms = np.geomspace(LEAST, 1, 60).tolist()
    bound = found.bound
    lines: list[tuple[str, str, Sequence[tuple[float, float]]]] = [
        ("c0", "reached", found.points),
        ("c1", "without protection", found.control),
        ("c2", "a guess", [(at, at) for at in alarms]),
    ]
    if bound is not None and math.isfinite(bound.epsilon):
        said = f"the most that is allowed by {promised(bound, simulated)}"
        most = math.exp(min(bound.epsilon, 700.0))
        lines.append(("c3", said, [(at, min(1.0, most * at + bound.delta)) for at in alarms]))
    kept = [line for line in lines if line[2]]
    drawn = [tag("polyline", points=_path(points), **_look(colour)) for colour, _, points in kept]
    keys = []
    for colour, name, _ in kept:
        line = tag("svg", tag("path", d="M0,4H24", **_look(colour)), width="24", height="8", aria_hidden="true")
        keys.append(tag("li", line, f" {name}"))
    across = f"H{WIDTH - 10}"
    rules = [_rule(f"M{LEFT},{_up(y):g}{across}", f"{y:.0%}", LEFT - 6, _up(y) + 4, "end") for y in (0.0, 0.5, 1.0)]
    rules += [_rule("", f"{x:g}", _across(x), BOTTOM + 18, "middle") for x in (0.001, 0.01, 0.1, 1.0)]
    title = "Members found, over false alarms"
    box = f"0 0 {WIDTH} {HEIGHT}"
    picture = tag("svg", *rules, *drawn, viewBox=box, style=f"max-width:{WIDTH}px")
    plot = tag("div", picture, class_="plot", role="img", aria_label=title)
    return joined([tag("h3", title), plot, tag("ul", *keys, class_="legend")])


def _look(colour: str) -> dict[str, str]:
    return {"stroke": f"var(--{colour})", "stroke_width": "2", "fill": "none"}


def _across(alarms: float) -> float:
    part = 1 - math.log(max(alarms, LEAST)) / math.log(LEAST)
    return LEFT + part * (WIDTH - LEFT - 10)


def _up(found: float) -> float:
    return BOTTOM - found * (BOTTOM - 10)


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Hits at fewer false alarms than the axis shows stand at its beginning."""
    return " ".join(f"{_across(alarms):.1f},{_up(hits):.1f}" for alarms, hits in points)


def _rule(line: str, text: str, x: float, y: float, anchor: str) -> Html:
    words = tag("text", text, x=f"{x:g}", y=f"{y:g}", text_anchor=anchor)
    return joined([tag("path", d=line, stroke="var(--line)"), words]) if line else words
