"""Guarantees in plain words, and belief: how certain an observer with a suspicion can become.

An observer knows all data but one unit, and believes something about that unit with probability p. What it sees
multiplies its odds p / (1 - p) by a factor, which an (epsilon, delta) guarantee bounds:

    P(factor > e^x) <= delta / (1 - e^(epsilon - x))    for every x > epsilon,

because the set S of observations with a larger factor has P(S) <= e^epsilon Q(S) + delta and Q(S) < e^-x P(S). Here x
is where the right side is ten times delta: the odds grow by e^epsilon / 0.9 at most, except for that chance. Without a
delta they never grow by more than e^epsilon. ("By e^epsilon, except for a chance of delta" is often said, and is not
true.)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from sordino.accounting.claims import Adversary, Neighbours, Subject, Unit, standing
from sordino.accounting.facts import delta_text, epsilon_text
from sordino.accounting.statement import Guarantee, OfPhase, Promised, strongest

MODERATE = 4.0  # an epsilon above it is called weak

WHO: Mapping[Adversary, str] = {
    "server": "the server, which sees every message and who sent it",
    "participants": "the other participants, who see every model that is sent out",
    "public": "anyone who sees the published models",
}
ANYONE = "anyone: the server, the other participants, and anyone who sees the published models"
WHAT: Mapping[Unit, str] = {
    "test example": "one example that a model is tested on, and not trained",
    "pixel": "one value of one image of one client",
    "image": "one image of one client, whose label is given",
    "example": "one example (one row, one image) of one client",
    "cell": "one cell, a fixed part of a client's examples",
    "person": "all examples of one person, as many as the schema allows",
    "client": "the whole data of one client",
}
CHANGE: Mapping[Neighbours, str] = {
    "replace": "exchanging it for any other",
    "zero_out": "counting nothing in place of what it contributes (that it exists, and how many there are, is public)",
}


Line = TypeVar("Line", bound=Subject)


class Described(Promised):
    """A guarantee with its description in words, as pages show it."""

    by: str
    words: str
    strength: str
    grade: str = ""  # "weak" or "formality", by epsilon: a proved guarantee may still be weak
    standing: str  # the status, as it is shown
    belief: str  # how certain an attacker can become


def merged(rows: Sequence[Line]) -> list[tuple[Line, list[Adversary]]]:
    """Groups rows that differ only in their adversary: each group's first row, and the adversaries of the group."""
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
    """One guarantee of the statement as a sentence."""
    who = ANYONE if len(adversaries) == len(WHO) else ", and against ".join(WHO[a] for a in adversaries)
    what, reasons, printed = WHAT[row.unit], "; ".join(row.because), row.nominal_epsilon
    if not row.finite and printed is not None:
        composed = row.nominal_composed or printed
        rounds = "" if composed == printed else f" (for all rounds together it gives {epsilon_text(composed)})"
        return (
            f"Nothing is promised about {what}, against {who}. The published formula gives epsilon "
            f"{epsilon_text(printed)}{rounds}; it proves nothing: {reasons}."
        )
    if not row.finite:
        return f"Nothing is promised about {what}, against {who}: {reasons or 'no noise covers it'}."
    holds = (
        f"{CHANGE[row.neighbours]} makes nothing they see more than {_times(row.epsilon)} times as likely, "
        f"plus a probability of {delta_text(row.delta)}"
    )
    if row.status == "nominal" and printed is not None:
        return (
            f"About {what}, against {who}: the published formula gives epsilon {epsilon_text(printed)}. That number "
            f"proves nothing ({reasons}). What does hold: {holds} (epsilon {epsilon_text(row.epsilon)})."
        )
    because = f" This rests on: {reasons}." if reasons else ""
    return f"About {what}, against {who}: {holds}.{because}"


def in_short(row: Guarantee, simulated: bool, by: Sequence[Adversary] = ()) -> str:
    """The guarantee in one line: epsilon, unit, neighbours, adversaries, delta and status."""
    who = f"per {row.unit} ({row.neighbours}), against {subject(by or [row.adversary])}"
    text = f"ε {epsilon_text(row.epsilon)} {who}, δ {delta_text(row.delta)}, "
    if row.nominal_epsilon is None:
        return text + standing(row.status, simulated)
    return text + f"{standing('holds', simulated)}; nominal {epsilon_text(row.nominal_epsilon)} proves nothing"


def by_phase(whole: Sequence[Guarantee], phases: Sequence[OfPhase], simulated: bool) -> tuple[str, ...]:
    """Sentences on the guarantee that each phase of a run gives by itself, and on units that one phase protects but
    another reveals; none if the run has one phase.
    """
    found: dict[str, list[str]] = {}  # sentence -> the phases that it is about
    for phase in phases:
        promised = [in_short(row, simulated, by) for row, by in merged([row for row in phase.guarantees if row.finite])]
        reasons = dict.fromkeys(why for row in phase.guarantees if row.adversary == "server" for why in row.because)
        nothing = f"nothing is promised: {'; '.join(reasons) or 'no noise covers it'}"
        given = "given what was released before it, " if promised and phase is not phases[0] else ""
        text = given + ("; ".join(promised) or nothing) if phase.releases else "nothing was released"
        found.setdefault(text, []).append(phase.phase)
    sentences = [f"{' and '.join(names)}: {text}." for text, names in found.items()]
    kept = {row.unit for row in whole if row.finite}
    parts = {row.unit: None for phase in phases for row in phase.guarantees if row.finite}
    lost = [
        f"No guarantee about one {unit} for the run as a whole: one phase protects it with noise, "
        "another phase gives it away."
        for unit in parts
        if unit not in kept
    ]
    return (*sentences, *lost)


def strength(epsilon: float) -> str:
    """Rough grade of an epsilon in one word."""
    if epsilon == math.inf:
        return "no protection"
    grades = ((1, "strong"), (MODERATE, "moderate"), (FORMALITY, "weak but real"))
    return next((word for limit, word in grades if epsilon <= limit), "little more than a formality")


def _grade(epsilon: float) -> str:
    """Colour of a box by the size of epsilon, shown beside the status: a proved but weak guarantee must not look
    safe."""
    if epsilon == math.inf or epsilon <= MODERATE:
        return ""
    return "weak" if epsilon <= FORMALITY else "formality"


def _times(epsilon: float) -> str:
    """The factor e^epsilon as text, rounded up: the largest ratio of an outcome's probabilities under two neighbours
    (but for delta).
    """
    if epsilon > math.log(1e6):
        return f"10^{math.ceil(epsilon / math.log(10))}"
    factor = math.exp(epsilon)
    return f"{_cut(factor, 2 if factor < 10 else 3, math.ceil):,.10g}"


PRIOR = 0.01
SLACK = 10  # probability with which the stated bound may fail, in deltas
FORMALITY = 10.0  # an epsilon above it is called a formality

ONE: Mapping[Unit, str] = {
    "test example": "one test example",
    "pixel": "one value of one image",
    "image": "one image",
    "example": "one example",
    "cell": "one cell of examples",
    "person": "one person with several examples",
    "client": "one client",
}
GUESS: Mapping[Neighbours, str] = {
    "replace": "holds a guess about {one} to be {prior} likely",
    "zero_out": "holds it to be {prior} likely that the contribution of {one} was counted (that it exists is public)",
}
BY: Mapping[Adversary, str] = {"server": "the server", "participants": "participants", "public": "the public"}


class PosteriorBound(NamedTuple):
    """Bound on an observer's posterior probability that a suspicion is true, given its `prior` one. It holds except
    with probability `chance`.
    """

    prior: float
    posterior: float
    chance: float


def belief(epsilon: float, delta: float, prior: float = PRIOR) -> PosteriorBound:
    """Bound on the posterior probability that follows from (epsilon, delta) alone, for every mechanism with that
    guarantee.
    """
    chance = SLACK * delta
    if epsilon == math.inf or chance >= 1:
        return PosteriorBound(prior, 1.0, 0.0)
    most = epsilon - math.log1p(-1 / SLACK) if delta else epsilon
    return PosteriorBound(prior, 1 / (1 + (1 - prior) / prior * math.exp(-most)), chance)


def _floor(many: float) -> int:
    """A number rounded down to two digits."""
    whole = math.floor(many * (1 + 1e-9))
    step: int = 10 ** max(0, len(str(whole)) - 2)
    return whole // step * step


def subject(adversaries: Sequence[Adversary]) -> str:
    """The adversaries in a few words, as the subject of a sentence."""
    return "anyone" if len(adversaries) == len(BY) else " and ".join(BY[a] for a in adversaries)


def believed(row: Guarantee, adversaries: Sequence[Adversary], simulated: bool) -> str:
    """Sentence on what the guarantee lets an attacker come to believe: a bound on the posterior probability of a guess,
    for a person who decides about a release.
    """
    found = belief(row.epsilon, row.delta)
    guess = GUESS[row.neighbours].format(one=ONE[row.unit], prior=percent(found.prior))
    rare = f", except with probability 1 in {_floor(1 / found.chance):,} ({SLACK:g} deltas)" if found.chance else ""
    most = f"{percent(found.posterior)} at most" if found.posterior < 1.0 else "certainty"
    against = f"against {subject(adversaries)}: take an attacker who knows all other data and {guess}. "
    text = f"{against}What the run reveals can raise that to {most}{rare}."
    if not row.finite:
        return text[0].upper() + text[1:]
    if row.epsilon > FORMALITY:
        text += " With an epsilon this large the promise is little more than a formality."
    if row.status == "conditional":
        text += f" It is {row.status}: {'; '.join(row.because)}."
    return f"This simulation protects nobody. With real noise, {text}" if simulated else text[0].upper() + text[1:]


def headline(rows: Sequence[Guarantee], simulated: bool) -> str:
    """The strongest guarantee of a statement as a bound on an attacker's posterior probability (see `believed`); empty
    where nothing is guaranteed.
    """
    if (best := strongest(rows)) is None:
        return ""
    alike = (best.unit, best.neighbours, best.epsilon, best.delta, best.status)
    by = [row.adversary for row in rows if (row.unit, row.neighbours, row.epsilon, row.delta, row.status) == alike]
    return believed(best, by, simulated)


def percent(share: float) -> str:
    """A share in percent, never shown as less than it is."""
    if share > 0.99:
        left = _cut(100 * (1 - share), 1, math.floor)
        return f"{100 - left:.10g}%" if left > 1e-6 else "100%"
    return f"{_cut(100 * share, 2, math.ceil):g}%"


def rounded_up(epsilon: float) -> float:
    """An epsilon to six digits, rounded up."""
    return float(f"{_cut(epsilon, 6, math.ceil):.6g}")


def _cut(value: float, digits: int, way: Callable[[float], int]) -> float:
    """A value rounded to this number of digits, by floor or ceiling."""
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return way(round(value / unit, 6)) * unit
