"""Membership inference: attacks that score how likely an example was trained on, and their judge.

The judge compares scores of members with scores of others: the area under the ROC curve with its interval (DeLong,
DeLong and Clarke-Pearson, Biometrics 1988; of trials whose scores share a release, Obuchowski, Biometrics 1997), and
the true positive rate at a low false positive rate, which matters for privacy (Carlini et al., S&P 2022). With few
non-members a rate of 0.1% is indistinguishable from 0, so the interval of Clopper and Pearson is given too. The plot
includes the bound that (epsilon, delta) implies: true positive rate <= e^epsilon false positive rate + delta.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from sordino.accounting.claims import Adversary
from sordino.accounting.statement import Promised
from sordino.attacks.attack import BLIND, Attack
from sordino.attacks.attacked_run import AttackedRun, MemberView
from sordino.audits.lower_bounds import upper
from sordino.results.findings import AttackFinding, BesideGuess, Roc, Verdict
from sordino.types import Examples, Params, Task

ALARMS = (0.01, 0.001)  # shares of others that may be taken for members
POINTS = 60  # of a curve
LEVEL = 0.99  # of intervals
CHANCE = 0.5
PREPARED = "the run begins with a preparation, which shadow models would have to share"


class MemberScores(NamedTuple):
    members: Tensor  # scores
    others: Tensor


class MemberInference(Attack):
    """Base class of attacks that score how likely an example was trained on."""

    sees: ClassVar[Adversary] = "public"

    @abstractmethod
    def score(self, view: MemberView) -> Tensor:
        """One score for each of the view's examples, larger for likelier members."""

    def unfit(self, run: AttackedRun) -> str:
        if "loss" not in run.setup.task.metrics:
            return "the run has no loss of each example"
        return PREPARED if run.setup.preparation else ""

    def play(self, run: AttackedRun) -> AttackFinding:
        seen, control = run.beside_control(lambda bare: self._scored(*run.members(bare)))
        by = run.by or type(self).sees
        bound = next((held for held in run.against(by) if held.unit == "example" and held.status != "none"), None)
        return with_verdict(self.untried(run, ""), seen, control, bound)

    def _scored(self, view: MemberView, inside: Tensor) -> MemberScores:
        scores = torch.nan_to_num(self.score(view).double(), 0.0)
        return MemberScores(scores[inside], scores[~inside])


def losses(task: Task, params: Params, examples: Examples) -> Tensor:
    """The loss of each example under a model."""
    return task.score(params, examples)["loss"]


def with_verdict(
    finding: AttackFinding, seen: MemberScores, control: MemberScores | None, bound: Promised | None
) -> AttackFinding:
    """The finding with its results filled in: area under the ROC curve, verdict, and the share of members found at low
    false positive rates."""
    found = by_area(finding, seen, control, "members", bound)
    return found.beside(measured=(*found.measured, *(_rate(seen, control, alarms) for alarms in ALARMS)))


def by_area(
    finding: AttackFinding, seen: MemberScores, control: MemberScores | None, whom: str, bound: Promised | None = None
) -> AttackFinding:
    """The finding with the area under the ROC curve, the curve and a verdict filled in. `whom`: what to call the
    members in the verdict.
    """
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
    """The verdict: the attack succeeds if the whole interval of the area lies above chance."""
    if control is not None and control <= CHANCE:
        return "no power", BLIND
    if low > CHANCE:
        return "reached", f"{whom} are told from others better than by chance"
    known = "while it succeeds on the run without protection"
    if control is None:
        known = "and its success on the run without protection is not known"
    return "stopped", f"{whom} are not told from others, {known}"


def _rate(seen: MemberScores, control: MemberScores | None, alarms: float) -> BesideGuess:
    """The true positive rate at this false positive rate (`alarms`), with its Clopper-Pearson interval."""
    share, many = hits_at(*seen, alarms), len(seen.members)
    hits, tail = round(share * many), (1 - LEVEL) / 2
    return BesideGuess(
        name=f"members found at {100 * alarms:g}% false alarms",
        value=share,
        baseline=alarms,
        control=None if control is None else hits_at(*control, alarms),
        low=1 - upper(many - hits, many, tail),
        high=upper(hits, many, tail),
        level=LEVEL,
    )


def roc(sides: MemberScores) -> tuple[tuple[float, float], ...]:
    """Points of the ROC curve (false positive rate, true positive rate), at thresholds from high to low."""
    members, others = (side.sort().values for side in sides)
    tried = torch.unique(torch.cat([members, others]))
    picked = tried[torch.linspace(0, len(tried) - 1, min(POINTS, len(tried))).long()].flip(0)
    found = [(float((others >= at).double().mean()), float((members >= at).double().mean())) for at in picked]
    return ((0.0, 0.0), *found)


class Separation(NamedTuple):
    """Separation of members from others by their scores: the area under the ROC curve, with its interval."""

    auc: float
    low: float
    high: float
    hits: tuple[float, ...]  # share of members found, for each of ALARMS


def separation(members: Tensor, others: Tensor, alpha: float = 0.05) -> Separation:
    """Area under the ROC curve with its interval, and true positive rates, of the scores of [members] and [others] of
    independent trials, or of [trials, members] and [trials, others] under one common threshold. `alpha`: error
    probability of the two-sided interval.
    """
    from scipy.special import ndtri

    above, below = _above(members, others), 1 - _above(others, members)
    auc, trials = float(above.mean()), min(len(members), len(others))
    if members.dim() == 1:
        variance = above.var() / len(members) + below.var() / len(others)
    else:
        variance = (above.mean(1) + below.mean(1)).var() / trials
    reach = float(-ndtri(alpha / 2)) * math.sqrt(float(variance))
    if not reach > 0:  # no pair is out of order: so far none was seen in so many trials
        reach = 1 - (alpha / 2) ** (1 / trials)
    hits = tuple(hits_at(members, others, share) for share in ALARMS)
    return Separation(auc, max(0.0, auc - reach), min(1.0, auc + reach), hits)


def hits_at(members: Tensor, others: Tensor, alarms: float) -> float:
    """The true positive rate at the false positive rate `alarms`: the share of members that score above the lowest
    threshold exceeded by at most this share of the others.
    """
    ordered = others.flatten().sort(descending=True).values
    return float((members > ordered[min(int(alarms * len(ordered)), len(ordered) - 1)]).double().mean())


def _above(scores: Tensor, others: Tensor) -> Tensor:
    """For each score the share of others below it; ties count one half."""
    ordered, asked = others.flatten().double().sort().values, scores.double().contiguous()
    left, right = (torch.searchsorted(ordered, asked, right=side) for side in (False, True))
    return (left + right).double() / (2 * len(ordered))
