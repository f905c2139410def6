"""Attacks that ask whether an example was trained on: the judge holds scores of members against scores of others.

What counts for privacy is how many members are found with few false alarms (Carlini et al., S&P 2022). With so few
others a rate of 0.1 % cannot be told from none, so the interval of Clopper and Pearson stands beside it. The curve
shows the most that a promise of (epsilon, delta) allows: found <= e^epsilon alarms + delta.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from sordino.accounting.claims import Adversary
from sordino.accounting.statement import Promised
from sordino.attacks.attack import BLIND, Attack
from sordino.attacks.attacked_run import AttackedRun, MemberView
from sordino.audits.lower_bounds import upper
from sordino.audits.separation import ALARMS, hits_at, separation
from sordino.results.attack_file import AttackFinding, BesideGuess, Roc, Verdict

POINTS = 60  # of a curve
LEVEL = 0.99  # of intervals
CHANCE = 0.5
PREPARED = "the run begins with a preparation, which shadow models would have to share"


class TwoSides(NamedTuple):
    members: Tensor  # scores
    others: Tensor


class MemberInference(Attack):
    """Scores examples by how much they look trained on."""

    sees: ClassVar[Adversary] = "public"

    @abstractmethod
    def score(self, view: MemberView) -> Tensor:
        """One number for each example asked about, larger for likelier members."""

    def unfit(self, run: AttackedRun) -> str:
        return run.without_classes or (PREPARED if run.setup.preparation else "")

    def play(self, run: AttackedRun) -> AttackFinding:
        view, inside = run.members(bare=False)
        seen = _sides(self.score(view), inside)
        control = None if run.protected else seen
        if run.protected and run.has_control:
            view, inside = run.members(bare=True)
            control = _sides(self.score(view), inside)
        by = run.by or type(self).sees
        bound = next((held for held in run.against(by) if held.unit == "example" and held.status != "none"), None)
        return told(self.untried(run, ""), seen, control, bound)


def _sides(scores: Tensor, inside: Tensor) -> TwoSides:
    scores = torch.nan_to_num(scores.double(), 0.0)
    return TwoSides(scores[inside], scores[~inside])


def told(finding: AttackFinding, seen: TwoSides, control: TwoSides | None, bound: Promised | None) -> AttackFinding:
    """The finding with hits at few false alarms beside the area under the curve, whose verdict it has."""
    found = by_area(finding, seen, control, "members", bound)
    return found.beside(measured=(*found.measured, *(_rate(seen, control, alarms) for alarms in ALARMS)))


def by_area(
    finding: AttackFinding, seen: TwoSides, control: TwoSides | None, whom: str, bound: Promised | None = None
) -> AttackFinding:
    """The finding with the area under the curve, the curve, and the verdict on the area. `whom`: the first side."""
    found = separation(*seen, 1 - LEVEL)
    free = None if control is None else separation(*control, 1 - LEVEL)
    area = BesideGuess(
        name="area under the ROC curve",
        value=found.auc,
        baseline=CHANCE,
        control=None if free is None else free.auc,
        low=found.low,
        high=found.high,
        level=LEVEL,
    )
    verdict, why = _verdict(found.low, None if free is None else free.low, whom)
    curve = Roc(points=roc(seen), control=() if control is None else roc(control), bound=bound)
    return finding.beside(verdict=verdict, why=why, measured=(area,), roc=curve)


def _verdict(low: float, control: float | None, whom: str) -> tuple[Verdict, str]:
    """Chance is refuted where the whole interval lies above it."""
    if control is not None and control <= CHANCE:
        return "no power", BLIND
    if low > CHANCE:
        return "reached", f"{whom} are told from others better than by chance"
    known = "while it succeeds on the run without protection"
    if control is None:
        known = "and what it does to the run without protection is not known"
    return "stopped", f"{whom} are not told from others, {known}"


def _rate(seen: TwoSides, control: TwoSides | None, alarms: float) -> BesideGuess:
    """Members found at so many false alarms, with the interval of Clopper and Pearson."""
    share, many = hits_at(*seen, alarms), len(seen.members)
    hits, tail = round(share * many), (1 - LEVEL) / 2
    return BesideGuess(
        name=f"members found at {100 * alarms:g} % false alarms",
        value=share,
        baseline=alarms,
        control=None if control is None else hits_at(*control, alarms),
        low=1 - upper(many - hits, many, tail),
        high=upper(hits, many, tail),
        level=LEVEL,
    )


def roc(sides: TwoSides) -> tuple[tuple[float, float], ...]:
    """(false alarms, found) at thresholds from high to low."""
    members, others = (side.sort().values for side in sides)
    tried = torch.unique(torch.cat([members, others]))
    picked = tried[torch.linspace(0, len(tried) - 1, min(POINTS, len(tried))).long()].flip(0)
    found = [(float((others >= at).double().mean()), float((members >= at).double().mean())) for at in picked]
    return ((0.0, 0.0), *found)
