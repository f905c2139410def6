"""Sections of a run's page on what an audit and attacks found, from audit.json and attack.json."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence

import numpy as np

from sordino.accounting.words import WHO
from sordino.report.charts import Axis, Line, Lines, Spot, bars, lines, number, percent
from sordino.results.attack_file import Assault, AttackFinding, PictureRow, Roc, figures, promised, sheet
from sordino.results.audit_file import COLUMNS, AuditedPromise, TrainedAudit
from sordino.results.markup import Html, joined, listed, note, scrolled, section, tag
from sordino.results.pictures import png

LEAST = 1e-3  # of the false alarms that a curve shows
IMAGES = "This part of the page shows images of the training data."
AUDIT = (
    "The whole run was played again with canaries in it: rows or clients that do what an attacker chose, or nothing, "
    "as a coin decides. The attacker then guesses each coin from all that was released. How often it is right gives "
    "the least that the run must have lost, to be held against what is claimed. Broken twins, with too little noise "
    "behind the same claim, show what the audit would have noticed."
)
ATTACKS = (
    "Beside each figure stand that of a guess without any knowledge, and that of the same attack on the same run "
    "without its protection."
)


def audited(found: TrainedAudit) -> Html:
    """Section on an audit: lower bounds on epsilon, beside the claims."""
    rows = [(*one.in_figures, one.verdict) for one in found.promises]
    said = [f"{one.unit}, {one.neighbours}: {one.why}. {one.noticed}".rstrip() for one in found.promises]
    bare = [f"Infinity is claimed of: {'; '.join(found.unprotected)}."] if found.unprotected else []
    return section(
        "What an audit found",
        tag("p", tag("span", found.verdict, class_="badge"), f" {AUDIT}"),
        scrolled("Claimed, and lost at least", COLUMNS, rows, whole=True),
        tag("div", *(_claimed(one) for one in found.promises if one.played is not None), class_="grid"),
        listed([*said, *bare], class_="plain"),
        note(found.meaning),
        note(f"Not looked at: {'; '.join(found.not_looked_at)}."),
        id="audit",
    )


def _claimed(one: AuditedPromise) -> Html:
    """The claim at one delta, with the lower bounds on epsilon there of the run and of its last broken twin."""
    assert one.played is not None
    twin = one.power.twin
    lost = [("claimed", one.played.claimed_there), ("lost at least", one.played.at_least)]
    if twin is not None and twin.at_delta == one.played.at_delta:
        lost.append(("a broken twin, at least", twin.at_least))
    title = f"Epsilon of one {one.unit} ({one.neighbours}) against the {one.adversary}"
    about = f"At delta {one.played.at_delta:g}."
    numbers = ("", "epsilon"), [(name, f"{value:.3g}") for name, value in lost]
    return bars(title, about, lost, Axis(""), numbers, marked=1)


def attacked(found: Assault) -> Html:
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
    promises = [f"Promised against it: {promised(held, simulated)}." for held in one.promises]
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
    said = "From top to bottom: " + ", ".join(row.told for row in rows) + "."
    source = f"data:image/png;base64,{base64.b64encode(png(sheet(rows))).decode()}"
    return joined([tag("img", src=source, alt=said, class_="sheet"), note(said)])


def roc(found: Roc, simulated: bool) -> Lines:
    """ROC curve of an attack on membership: members found over false alarms, the latter on a logarithmic axis, with the
    most that the guarantee allows.
    """
    alarms, bound = np.geomspace(LEAST, 1, 60).tolist(), found.bound
    # hits at fewer false alarms than the axis shows stand at its beginning
    curves = [("reached", [(max(at, LEAST), hits) for at, hits in found.points])]
    curves.append(("without protection", [(max(at, LEAST), hits) for at, hits in found.control]))
    curves.append(("a guess", [(at, at) for at in alarms]))
    if bound is not None and math.isfinite(bound.epsilon):
        most = math.exp(min(bound.epsilon, 700.0))
        allowed = [(at, min(1.0, most * at + bound.delta)) for at in alarms]
        curves.append((f"the most that is allowed by {promised(bound, simulated)}", allowed))
    return Lines(
        "Members found, over false alarms",
        "False alarms on a logarithmic axis.",
        Axis("false alarms", number, log=True),
        Axis("members found", percent, zero=True, most=1.0),
        [Line(name, [Spot(*point) for point in points]) for name, points in curves],
    )
