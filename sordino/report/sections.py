"""Sections of a run's page: its preparation before round 1 (which devices were asked, which images were kept, what was
sent), and what an audit and attacks found, from audit.json and attack.json.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence

import numpy as np

from sordino.accounting.facts import at_least_text, epsilon_text
from sordino.accounting.words import WHO, in_short
from sordino.metrics import bytes_text
from sordino.metrics.measures import Cost, Target, TargetReached
from sordino.report.charts import Axis, Line, LinePoint, Lines, bars, lines, number, percent
from sordino.results.findings import (
    COLUMNS,
    AttackFinding,
    AttackResults,
    AuditedPromise,
    PictureRow,
    Roc,
    TrainedAudit,
    figures,
    sheet,
)
from sordino.results.markup import Html, joined, listed, note, png, scrolled, section, tag
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


def preparation(found: Preparation) -> Html:
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
    return section("Before round 1", *parts)


def _summary(found: Preparation) -> list[str]:
    cost, asked = found.cost, [device for one in found.classes for device in one.asked]
    sentences = [
        f"It sent {bytes_text(cost.bytes)}: as much as {cost.rounds:.1f} rounds of plain training with {cost.chosen} "
        "clients each."
    ]
    if cost.formula_rounds is not None:
        sentences.append(
            f"By the count in SlaugFL's paper it is {cost.formula_rounds:.1f}; that count leaves out the first model "
            "that is sent to the clients, and the headers of messages."
        )
    if asked:
        declined = sum(not device.answered for device in asked)
        sentences.append(f"{len(asked)} requests for prototypes, {declined} declined.")
    if found.unread:
        sentences.append(f"This page cannot say which clients were asked and what was kept: {found.unread}.")
    return sentences


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
    share = "" if cost.formula_ratio is None else SHARE.format(over=cost.formula_over, ratio=cost.formula_ratio)
    caption = "Traffic beyond plain training, by kind of message"
    return joined([scrolled(caption, columns, rows, ("message",), whole=True), note(share)])


def _targets(cost: Cost) -> Html:
    counted = cost.formula_rounds is not None
    formula = ("by the paper's count",) if counted else ()
    columns = "accuracy", "rounds", "with the preparation", *formula, "sent", "with the preparation"
    rows = [(percent(one.target), *_reached(one, counted, len(columns) - 1)) for one in cost.targets]
    caption = "What it takes to reach an accuracy, in rounds of plain training and in bytes"
    return joined([scrolled(caption, columns, rows, whole=True), note(TARGETS)])


def _reached(one: TargetReached | Target, counted: bool, columns: int) -> list[str]:
    if not isinstance(one, TargetReached):
        return ["not reached"] * columns
    formula = [f"{one.formula_charged or 0.0:.1f}"] if counted else []
    return [str(one.rounds), f"{one.charged:.1f}", *formula, bytes_text(one.bytes), bytes_text(one.bytes_with)]


def _classes(found: Preparation) -> Html:
    classes, unknown = found.classes, found.unknown
    asks, keeps = any(one.asked for one in classes), any(one.kept for one in classes)
    known = keeps and any(one.valid is not None for one in classes)
    parts = [*(["who was asked, best first"] if asks else []), *(["what was kept"] if keeps else [])]
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
    table = scrolled(f"Class by class: {', and '.join(parts)}", columns, rows, ("asked",), whole=True)
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
    text = f"{some}A few of each kind, at equal distances in their order; none was chosen by hand.{framed}"
    shown = scrolled("Pictures", ["class", *(title for _, title in kinds)], rows, whole=True)
    return joined([tag("div", shown, class_="gallery"), note(text)])


LEAST = 1e-3  # of the false alarms that a curve shows
IMAGES = "This part of the page shows images of the training data."
AUDIT = (
    "The whole run was played again with canaries in it: rows or clients that do what an attacker chose, or nothing, "
    "as a coin decides. The attacker then guesses each coin from all that was released. How far its scores scatter, "
    "and how often it is right, give the least that the run must have lost, to be held against what is claimed. Broken "
    "twins, with too little noise behind the same claim, show what the audit would have noticed."
)
ATTACKS = (
    "Beside each figure stand that of a guess without any knowledge, and that of the same attack on the same run "
    "without its protection."
)


def audited(found: TrainedAudit) -> Html:
    """Section on an audit: lower bounds on epsilon, beside the claims."""
    rows = [(*one.in_figures, one.verdict) for one in found.promises]
    texts = [f"{one.unit}, {one.neighbours}: {one.why}. {one.noticed}".rstrip() for one in found.promises]
    bare = [f"Infinity is claimed of: {'; '.join(found.unprotected)}."] if found.unprotected else []
    return section(
        "What an audit found",
        tag("p", tag("span", found.verdict, class_="badge"), f" {AUDIT}"),
        scrolled("Claimed, and lost at least", COLUMNS, rows, whole=True),
        tag("div", *(_claimed(one) for one in found.promises if one.played is not None), class_="grid"),
        listed([*texts, *bare], class_="plain"),
        note(found.meaning),
        note(f"Not looked at: {'; '.join(found.not_looked_at)}."),
        id="audit",
    )


def _claimed(one: AuditedPromise) -> Html:
    """The claim at one delta, with the lower bounds on epsilon there of the run and of its control: the
    same run with too little noise, which the audit must catch.
    """
    assert one.played is not None
    twin = one.power.twin
    lost = [("claimed", one.played.claimed_there), ("lost at least", one.played.at_least)]
    texts = [epsilon_text(one.played.claimed_there), at_least_text(one.played.at_least)]
    if twin is not None and twin.at_delta == one.played.at_delta:
        lost.append(("a broken twin, at least", twin.at_least))
        texts.append(at_least_text(twin.at_least))
    title = f"Epsilon of one {one.unit} ({one.neighbours}) against the {one.adversary}"
    about = f"At delta {one.played.at_delta:g}."
    numbers = ("", "epsilon"), [(name, text) for (name, _), text in zip(lost, texts, strict=True)]
    return bars(title, about, lost, Axis(""), numbers, marked=1)


def attacked(found: AttackResults) -> Html:
    """Section on attacks: the results of each, in figures and pictures."""
    untried = [f"{one.attack}: {one.why}" for one in found.found if not one.measured]
    return section(
        "What attackers reached",
        *([tag("p", IMAGES, class_="notice")] if any(one.pictures for one in found.found) else []),
        tag("p", f"{found.setting} {ATTACKS}"),
        *(_attack(one, found.simulated) for one in found.found if one.measured),
        *([tag("h3", "Not tried"), listed(untried, class_="plain")] if untried else []),
        note(f"Not looked at: {'; '.join(found.not_looked_at)}."),
        id="attackers",
    )


def _attack(one: AttackFinding, simulated: bool) -> Html:
    rows = [(figure.name, *figures(figure)) for figure in one.measured]
    promises = [f"Promised against it: {in_short(held, simulated)}." for held in one.promises]
    return tag(
        "div",
        tag("h3", f"{one.attack}: ", tag("span", one.verdict, class_="badge")),
        tag("p", f"The attacker is {WHO[one.sees]}. {one.what} Here: {one.why}."),
        listed(promises, class_="plain"),
        scrolled("What it reached", ("figure", "reached", *one.heads), rows, whole=True),
        _picture(one.pictures),
        Html("") if one.roc is None else lines(roc(one.roc, simulated)),
        class_="card",
    )


def _picture(rows: Sequence[PictureRow]) -> Html:
    if not rows:
        return Html("")
    caption = "From top to bottom: " + ", ".join(row.caption for row in rows) + "."
    source = f"data:image/png;base64,{base64.b64encode(png(sheet(rows))).decode()}"
    return joined([tag("img", src=source, alt=caption, class_="sheet"), note(caption)])


def roc(found: Roc, simulated: bool) -> Lines:
    """ROC curve of an attack on membership: true positive rate over false positive rate (logarithmic), with the bound
    that the guarantee implies."""
    alarms, bound = np.geomspace(LEAST, 1, 60).tolist(), found.bound
    # hits at fewer false alarms than the axis shows stand at its beginning
    curves = [("reached", [(max(at, LEAST), hits) for at, hits in found.points])]
    curves.append(("without protection", [(max(at, LEAST), hits) for at, hits in found.control]))
    curves.append(("a guess", [(at, at) for at in alarms]))
    if bound is not None and math.isfinite(bound.epsilon):
        most = math.exp(min(bound.epsilon, 700.0))
        allowed = [(at, min(1.0, most * at + bound.delta)) for at in alarms]
        curves.append((f"the most that is allowed by {in_short(bound, simulated)}", allowed))
    return Lines(
        "Members found, over false alarms",
        "False alarms on a logarithmic axis.",
        Axis("false alarms", number, log=True),
        Axis("members found", percent, zero=True, most=1.0),
        [Line(name, [LinePoint(*point) for point in points]) for name, points in curves],
    )
