"""The guarantee in words that a person without mathematics can hold someone to."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from sordino.accounting.belief import FORMALITY, believed, subject
from sordino.accounting.claims import Adversary, Neighbours, Unit, standing
from sordino.accounting.events import Json
from sordino.accounting.facts import delta_text
from sordino.accounting.statement import Guarantee, Promised


class PhasePromise(Protocol):
    """A phase, and what it promises."""

    @property
    def phase(self) -> str: ...
    @property
    def releases(self) -> int: ...
    @property
    def guarantees(self) -> Sequence[Guarantee]: ...


MODERATE = 4.0  # an epsilon above it is said to be weak

WHO: Mapping[Adversary, str] = {
    "server": "the server, which sees every message and who sent it",
    "participants": "the other participants, who see every model that is sent out",
    "public": "anyone who sees the published models",
}
ANYONE = "anyone: the server, the other participants, and whoever sees the published models"
WHAT: Mapping[Unit, str] = {
    "test example": "one example that a model is tested on, and not trained",
    "pixel": "one value of one image of one client",
    "image": "one image of one client, whose label is given",
    "example": "one example (one row, one image) of one client",
    "cell": "one cell, a fixed part of a client's examples",
    "person": "all examples of one person, as many as the schema allows",
    "client": "everything one client holds",
}
CHANGE: Mapping[Neighbours, str] = {
    "replace": "exchanging it for any other",
    "zero_out": "counting nothing in place of what it contributes (that it exists, and how many there are, is public)",
}


class Against(Protocol):
    """A fact that is told one adversary."""

    @property
    def adversary(self) -> Adversary: ...
    def to_json(self) -> Json: ...


Line = TypeVar("Line", bound=Against)


class Described(Promised):
    """Guarantee in words, as a page shows it."""

    by: str
    words: str
    strength: str
    grade: str = ""  # "weak" or "formality": proof and strength are two things, and have two colours
    standing: str  # the status, as it is shown
    belief: str  # how sure somebody can become


def merged(rows: Sequence[Line]) -> list[tuple[Line, list[Adversary]]]:
    """Rows that say the same to several adversaries, said once."""
    found: dict[str, tuple[Line, list[Adversary]]] = {}
    for row in rows:
        same = {name: value for name, value in row.to_json().items() if name not in ("adversary", "releases", "event")}
        found.setdefault(json.dumps(same, sort_keys=True), (row, []))[1].append(row.adversary)
    return list(found.values())


def described(rows: Sequence[Guarantee], simulated: bool) -> tuple[Described, ...]:
    return tuple(
        Described.of(
            row,
            accountant=row.accountant,
            releases=row.releases,
            by=subject(by),
            words=sentence(row, by),
            strength=strength(row.epsilon),
            grade=_grade(row.epsilon),
            standing=standing(row.status, simulated),
            belief=believed(row, by, simulated),
        )
        for row, by in merged(rows)
    )


def sentence(row: Guarantee, adversaries: Sequence[Adversary]) -> str:
    """One row of the statement, said out loud."""
    who = ANYONE if len(adversaries) == len(WHO) else ", and against ".join(WHO[a] for a in adversaries)
    what, reasons, printed = WHAT[row.unit], "; ".join(row.because), row.nominal_epsilon
    if not row.finite and printed is not None:
        composed = row.nominal_composed
        rounds = f" (for all rounds together it gives {composed:.3g})" if composed not in (None, printed) else ""
        return (
            f"Nothing is promised about {what}, against {who}. The published formula gives epsilon {printed:.3g}"
            f"{rounds}; it proves nothing: {reasons}."
        )
    if not row.finite:
        return f"Nothing is promised about {what}, against {who}: {reasons or 'no noise covers it'}."
    holds = (
        f"{CHANGE[row.neighbours]} makes nothing they see more than {_times(row.epsilon)} times as likely, "
        f"plus a chance of {delta_text(row.delta)}"
    )
    if row.status == "nominal" and printed is not None:
        return (
            f"About {what}, against {who}: the published formula gives epsilon {printed:.3g}. That number proves "
            f"nothing ({reasons}). What does hold: {holds} (epsilon {row.epsilon:.3g})."
        )
    because = f" This rests on: {reasons}." if reasons else ""
    return f"About {what}, against {who}: {holds}.{because}"


def by_phase(whole: Sequence[Guarantee], phases: Sequence[PhasePromise], simulated: bool) -> tuple[str, ...]:
    """What each phase of a run adds to the promise, and what that makes of the whole; nothing where there is one
    phase.
    """
    found: dict[str, list[str]] = {}  # what is said of which phases
    for phase in phases:
        promised = [
            f"epsilon {row.epsilon:.3g} at delta {delta_text(row.delta)} of one {row.unit} ({row.neighbours}) "
            f"against {subject(by)}, {standing(row.status, simulated)}"
            for row, by in merged([row for row in phase.guarantees if row.finite])
        ]
        reasons = dict.fromkeys(why for row in phase.guarantees if row.adversary == "server" for why in row.because)
        nothing = f"nothing is promised: {'; '.join(reasons) or 'no noise covers it'}"
        given = "given what was released before it, " if promised and phase is not phases[0] else ""
        text = given + ("; ".join(promised) or nothing) if phase.releases else "nothing was released"
        found.setdefault(text, []).append(phase.phase)
    said = [f"{' and '.join(names)}: {text}." for text, names in found.items()]
    kept = {row.unit for row in whole if row.finite}
    parts = {row.unit: None for phase in phases for row in phase.guarantees if row.finite}
    lost = [
        f"No guarantee about one {unit} for the run as a whole: one phase protects it with noise, "
        "another phase gives it away."
        for unit in parts
        if unit not in kept
    ]
    return (*said, *lost)


def strength(epsilon: float) -> str:
    """How a number reads, without pretending that there is a threshold."""
    if epsilon == math.inf:
        return "no protection"
    grades = ((1, "strong"), (MODERATE, "moderate"), (FORMALITY, "weak but real"))
    return next((word for limit, word in grades if epsilon <= limit), "little more than a formality")


def _grade(epsilon: float) -> str:
    """Colour of a box by strength, beyond its status: what is proved and weak must not look like safety."""
    if epsilon == math.inf or epsilon <= MODERATE:
        return ""
    return "weak" if epsilon <= FORMALITY else "formality"


def _times(epsilon: float) -> str:
    factor = math.exp(min(epsilon, 700))
    if factor < 10:
        return f"{factor:.2g}"
    return f"{float(f'{factor:.3g}'):,.0f}" if factor < 1e6 else f"10^{epsilon / math.log(10):.0f}"
