"""Section of a run's page on its preparation before round 1: which devices were asked, which images were kept, and what
was sent."""

from __future__ import annotations

import math

from sordino.metrics.headlines import bytes_text
from sordino.metrics.preparation_cost import Cost, Reached, Target
from sordino.report.charts import percent
from sordino.results.markup import Html, joined, note, scrolled, tag
from sordino.results.markup import section as titled
from sordino.results.preparation_facts import Gallery, OfClass, Preparation

WAYS = {"down": "↓", "up": "↑"}
KINDS = ("kept", "candidates kept"), ("rejected", "candidates rejected"), ("drawn", "drawn by the generator")
LOOKED_UP = "Only a simulation may look that up."
SHARE = (
    "SlaugFL's paper calls this R_e, the share of the traffic of {over:,} rounds of plain training: {ratio:.2%}. This "
    "share gets smaller with more rounds; the number of rounds above does not."
)
TARGETS = (
    "Rounds: the first evaluated round with this accuracy. With the preparation: all that was sent until then, divided "
    "by what one round of plain training sends."
)


def section(found: Preparation) -> Html:
    parts = [tag("p", " ".join(_summary(found)))]
    if found.source:
        label = f" ({found.label})" if found.label else ""
        parts.append(tag("p", f"Candidates: {found.source}{label}."))
    parts.append(_messages(found))
    if found.cost.targets:
        parts.append(_targets(found.cost))
    if any(one.asked or one.kept for one in found.classes):
        parts.append(_classes(found))
    if found.gallery is not None:
        parts.append(_pictures(found.gallery, found.unknown))
    return titled("Before round 1", *parts)


def _summary(found: Preparation) -> list[str]:
    cost, asked = found.cost, [device for one in found.classes for device in one.asked]
    said = [
        f"It sent {bytes_text(cost.bytes)}: as much as {cost.rounds:.1f} rounds of plain training with {cost.chosen} "
        "clients each."
    ]
    if cost.formula_rounds is not None:
        said.append(
            f"By the count in SlaugFL's paper it is {cost.formula_rounds:.1f}; that count leaves out the first model "
            "that is sent to the clients, and the headers of messages."
        )
    if asked:
        declined = sum(not device.answered for device in asked)
        said.append(f"{len(asked)} requests for prototypes, {declined} declined.")
    if found.unread:
        said.append(f"This page cannot say which clients were asked and what was kept: {found.unread}.")
    return said


def _messages(found: Preparation) -> Html:
    cost, counted = found.cost, found.cost.formula_parameters is not None
    rows: list[tuple[str, ...]] = []
    for one in found.messages:
        formula = (
            "" if one.parameters is None else f"{one.parameters:,.0f}",
            "" if one.formula_bytes is None else bytes_text(one.formula_bytes),
        )
        rows.append((one.phase, WAYS[one.way], one.what, *(formula if counted else ()), bytes_text(one.bytes)))
    total = (
        f"{sum(one.parameters or 0 for one in found.messages):,.0f}",
        bytes_text(sum(one.formula_bytes or 0 for one in found.messages)),
    )
    rows.append(("all", "", "", *(total if counted else ()), bytes_text(sum(one.bytes for one in found.messages))))
    formula_columns = ("by the paper's count, parameters", "in bytes") if counted else ()
    columns = "phase", "", "message", *formula_columns, "sent"
    said = "" if cost.formula_ratio is None else SHARE.format(over=cost.formula_over, ratio=cost.formula_ratio)
    caption = "Traffic beyond plain training, by kind of message"
    return joined([scrolled(caption, columns, rows, ("message",), whole=True), note(said)])


def _targets(cost: Cost) -> Html:
    counted = cost.formula_rounds is not None
    formula = ("by the paper's count",) if counted else ()
    columns = "accuracy", "rounds", "with the preparation", *formula, "sent", "with the preparation"
    rows = [(percent(one.target), *_reached(one, counted, len(columns) - 1)) for one in cost.targets]
    caption = "What it takes to reach an accuracy, in rounds of plain training and in bytes"
    return joined([scrolled(caption, columns, rows, whole=True), note(TARGETS)])


def _reached(one: Reached | Target, counted: bool, columns: int) -> list[str]:
    if not isinstance(one, Reached):
        return ["not reached"] * columns
    formula = [f"{one.formula_charged or 0.0:.1f}"] if counted else []
    return [str(one.rounds), f"{one.charged:.1f}", *formula, bytes_text(one.bytes), bytes_text(one.bytes_with)]


def _classes(found: Preparation) -> Html:
    classes, unknown = found.classes, found.unknown
    asks, keeps = any(one.asked for one in classes), any(one.kept for one in classes)
    known = keeps and any(one.valid is not None for one in classes)
    said = [*(["who was asked, best first"] if asks else []), *(["what was kept"] if keeps else [])]
    columns = [
        "class",
        *(("asked", "whose prototype") if asks else ()),
        *(("candidates", "kept") if keeps else ()),
        *(("valid of all", "valid of kept") if known else ()),
    ]
    rows = [_class(one, asks, keeps, known) for one in classes]
    ranked = f"Clients are ranked by {'F1' if found.rank == 'f1' else found.rank} on labelled examples of the server. "
    valid = f"Valid: the image shows the class of its label. {LOOKED_UP}" if known else ""
    hidden = (
        f"This page cannot say which of them show another class: {unknown}." if unknown and keeps and not known else ""
    )
    table = scrolled(f"Class by class: {', and '.join(said)}", columns, rows, ("asked",), whole=True)
    return joined([table, note((ranked if asks else "") + valid + hidden)])


def _class(one: OfClass, asks: bool, keeps: bool, known: bool) -> list[str]:
    answer = next((device for device in one.asked if device.answered), None)
    asked = ", ".join(f"{d.device}{'' if d.answered else ' declined'}" for d in one.asked) or "none"
    prototype = (
        f"F1 {answer.f1:.2f}, recall {answer.recall:.2f}" if answer else "none: kept at random" if one.kept else "none"
    )
    valid = ["" if share is None else percent(share) for share in (one.valid, one.valid_kept)]
    return [
        one.name,
        *((asked, prototype) if asks else ()),
        *(("" if one.candidates is None else str(one.candidates), str(one.kept)) if keeps else ()),
        *(valid if known else ()),
    ]


def _pictures(gallery: Gallery, unknown: str) -> Html:
    kinds = [(kind, title) for kind, title in KINDS if any(getattr(row, kind) for row in gallery.rows)]
    tall = str(max(1, math.floor(36 / gallery.side)) * (gallery.side + (2 if gallery.side <= 16 else 4)))
    rows = []
    for row in gallery.rows:
        sources = [(getattr(row, kind), f"{title}, class {row.name}") for kind, title in kinds]
        rows.append([row.name, *(tag("img", src=src, alt=alt, height=tall) if src else "" for src, alt in sources)])
    some = f"{len(gallery.rows)} of {gallery.classes} classes. " if len(gallery.rows) < gallery.classes else ""
    framed = "" if unknown or all(kind != "kept" for kind, _ in kinds) else (
        f" A red frame: the image shows another class than its label says. {LOOKED_UP}"
    )  # fmt: skip
    said = f"{some}A few of each kind, at equal distances in their order; none was chosen by hand.{framed}"
    shown = scrolled("Pictures", ["class", *(title for _, title in kinds)], rows, whole=True)
    return joined([tag("div", shown, class_="gallery"), note(said)])
