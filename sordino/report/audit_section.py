"""What an audit of the trained run found, as a section of its page, made of audit.json."""

from __future__ import annotations

import math

from sordino.report.markup import Html, joined, listed, table, tag
from sordino.results.audit_file import COLUMNS, AuditedPromise, TrainedAudit

PLACE = "audit"  # of the section in a page; what draws the page takes it over as it is
LEAD = (
    "The whole run was played again with canaries in it: rows or clients that do what an attacker chose, or nothing, "
    "as a coin decides. The attacker then guesses each coin from all that was released. How often it is right gives "
    "the least that the run must have lost, to be held against what is claimed. Broken twins, with too little noise "
    "behind the same claim, show what the audit would have noticed."
)
WIDTH, LEFT, LINE = 520, 150, 26


def section(found: TrainedAudit) -> Html:
    rows = [(*one.in_figures, one.verdict) for one in found.promises]
    lines = [f"{one.unit}, {one.neighbours}: {one.why}. {one.noticed}".rstrip() for one in found.promises]
    bare = [f"Infinity is claimed of: {'; '.join(found.unprotected)}."] if found.unprotected else []
    return tag(
        "section",
        tag("h2", "What an audit found"),
        tag("p", tag("span", found.verdict, class_="badge"), f" {LEAD}"),
        tag("div", table("Claimed, and lost at least", COLUMNS, rows, class_="wide"), class_="scroll whole"),
        *(bars(one) for one in found.promises if one.played is not None),
        listed([*lines, *bare], class_="plain"),
        tag("p", found.meaning, class_="note"),
        tag("p", f"Not looked at: {'; '.join(found.not_looked_at)}.", class_="note"),
        id=PLACE,
    )


def bars(one: AuditedPromise) -> Html:
    """What is claimed at one delta, and what the run and its last broken twin lost there at least."""
    assert one.played is not None
    twin = one.power.twin
    lines = [("c0", "claimed", one.played.claimed_there), ("c1", "lost at least", one.played.at_least)]
    if twin is not None and twin.at_delta == one.played.at_delta:
        lines.append(("c2", "a broken twin, at least", twin.at_least))
    finite = [value for _, _, value in lines if math.isfinite(value)]
    most = max([*finite, 1e-9])
    drawn = []
    for number, (colour, name, value) in enumerate(lines):
        top = 8 + number * LINE
        long = (WIDTH - LEFT - 60) * min(value, most) / most
        drawn += [
            tag("text", name, x=f"{LEFT - 8}", y=f"{top + 12}", text_anchor="end"),
            tag("path", d=f"M{LEFT},{top + 8}h{max(long, 1):.1f}", stroke=f"var(--{colour})", stroke_width="12"),
            tag("text", f"{value:.3g}", x=f"{LEFT + long + 8:.1f}", y=f"{top + 12}"),
        ]
    title = (
        f"Epsilon of one {one.unit} ({one.neighbours}) against the {one.adversary}, at delta {one.played.at_delta:g}"
    )
    box = f"0 0 {WIDTH} {8 + LINE * len(lines)}"
    picture = tag("svg", *drawn, viewBox=box, style=f"max-width:{WIDTH}px")
    plot = tag("div", picture, class_="plot", role="img", aria_label=title)
    return joined([tag("h3", title), plot])
