"""What a promise means to somebody with a suspicion: how sure they can become.

Somebody knows all data but one unit, and is sure of something about that unit with probability p. What they see
multiplies their odds p / (1 - p) by a factor, which an (epsilon, delta) promise bounds:

    P(factor > e^x) <= delta / (1 - e^(epsilon - x))    for every x > epsilon,

because the sights S with a larger factor have P(S) <= e^epsilon Q(S) + delta and Q(S) < e^-x P(S). Here x is where the
right side is ten times delta: the odds grow by e^epsilon / 0.9 at most, except for that chance. Without a delta they
never grow by more than e^epsilon. ("By e^epsilon, except for a chance of delta" is often said, and is not true.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sordino.accounting.claims import Adversary, Neighbours, Unit
from sordino.accounting.statement import Guarantee, strongest

PRIOR = 0.01
SLACK = 10  # the chance that is spoken of, in deltas
FORMALITY = 10.0  # an epsilon above it is said to be one

ONE: Mapping[Unit, str] = {
    "test example": "one test example",
    "pixel": "one value of one image",
    "image": "one image",
    "example": "one example",
    "cell": "one cell of examples",
    "person": "one person with several examples",
    "client": "one client",
}
SURE: Mapping[Neighbours, str] = {
    "replace": "of something about {}",
    "zero_out": "that the contribution of {} was counted (that it exists is public)",
}
BY: Mapping[Adversary, str] = {"server": "the server", "participants": "participants", "public": "the public"}


class Belief(NamedTuple):
    """How sure somebody can become at most, except for a chance."""

    prior: float
    posterior: float
    chance: float


def belief(epsilon: float, delta: float, prior: float = PRIOR) -> Belief:
    """What follows from the promise alone, whichever mechanism keeps it."""
    chance = SLACK * delta
    if epsilon == math.inf or chance >= 1:
        return Belief(prior, 1.0, 0.0)
    most = epsilon - math.log1p(-1 / SLACK) if delta else epsilon
    return Belief(prior, 1 / (1 + (1 - prior) / prior * math.exp(-most)), chance)


def _floor(many: float) -> int:
    """Two digits of it, and never more than it is."""
    whole = math.floor(many * (1 + 1e-9))
    step: int = 10 ** max(0, len(str(whole)) - 2)
    return whole // step * step


def subject(adversaries: Sequence[Adversary]) -> str:
    """Against whom, in a few words."""
    return "anyone" if len(adversaries) == len(BY) else " and ".join(BY[a] for a in adversaries)


def believed(row: Guarantee, adversaries: Sequence[Adversary], simulated: bool) -> str:
    """One row of the statement, for somebody who decides about it."""
    found = belief(row.epsilon, row.delta)
    who, what = subject(adversaries).capitalize(), SURE[row.neighbours].format(ONE[row.unit])
    known = f"{who}, knowing all other data and {percent(found.prior)} sure {what}, can become"
    rare = f", except for a chance of 1 in {_floor(1 / found.chance):,}" if found.chance else ""
    sure = f"at most {percent(found.posterior)} sure" if found.posterior < 1.0 else "certain"
    said = f"{known} {sure} of it{rare}."
    if not row.finite:
        return said
    if row.epsilon > FORMALITY:
        said += " With an epsilon this large the promise is little more than a formality."
    if row.status == "conditional":
        said += f" It is {row.status}: {'; '.join(row.because)}."
    return f"With real noise: {said} This simulation protects nobody." if simulated else said


def headline(rows: Sequence[Guarantee], simulated: bool) -> str:
    """The strongest promise of a statement, for somebody who decides about it; nothing where nothing is promised."""
    if (best := strongest(rows)) is None:
        return ""
    alike = (best.unit, best.neighbours, best.epsilon, best.delta, best.status)
    by = [row.adversary for row in rows if (row.unit, row.neighbours, row.epsilon, row.delta, row.status) == alike]
    return believed(best, by, simulated)


def percent(share: float) -> str:
    """A share that is never shown as less than it is."""
    if share > 0.99:
        left = _cut(100 * (1 - share), 1, math.floor)
        return f"{100 - left:.10g} %" if left > 1e-6 else "100 %"
    return f"{_cut(100 * share, 2, math.ceil):g} %"


def epsilon_text(value: float) -> str:
    """An epsilon as tables show it."""
    return "∞" if value == math.inf else f"{value:.3g}"


def rounded_up(epsilon: float) -> float:
    """Six digits of it, which are never less than all of them."""
    return float(f"{_cut(epsilon, 6, math.ceil):.6g}")


def _cut(value: float, digits: int, way: Callable[[float], int]) -> float:
    """To so many digits, up or down."""
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return way(round(value / unit, 6)) * unit
