"""Membership inference: attacks that score how likely an example was trained on, and their judge. One class for each
paper.

The judge compares scores of members with scores of others: the area under the ROC curve with its interval (DeLong,
DeLong and Clarke-Pearson, Biometrics 1988; of trials whose scores share a release, Obuchowski, Biometrics 1997), and
the true positive rate at a low false positive rate, which matters for privacy (Carlini et al., S&P 2022). With few
non-members a rate of 0.1% is indistinguishable from 0, so an interval is given too, which holds for few. The plot
includes the bound that (epsilon, delta) implies: true positive rate <= e^epsilon false positive rate + delta.

The canary is a white-box distinguishing game on one client's upload, which is released many times: Nasr et al., S&P
2021 and USENIX Security 2023. Deviations: the canary is noise with a label at random, one of a client's few images; the
other side holds another image in its place, or none where the guarantee is about removing an example (zero_out).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino import keys, tree
from sordino.accounting.claims import Adversary
from sordino.accounting.facts import epsilon_text
from sordino.accounting.statement import Promised
from sordino.attacks.attack import BLIND, Attack
from sordino.attacks.attacked_run import AttackedRun, MemberView, pictures
from sordino.attacks.reconstruction import gradient
from sordino.audits.lower_bounds import Outputs, tuned, upper
from sordino.audits.replay import RecordedRound, Rounds, answering
from sordino.privacy.readers import taken
from sordino.results.findings import AttackFinding, BesideGuess, Roc, Verdict
from sordino.types import Examples, Params, Task

ALARMS = (0.01, 0.001)  # false positive rates
POINTS = 60  # of a curve
LEVEL = 0.99  # of intervals
CHANCE = 0.5
PREPARED = "the run begins with a preparation, which shadow models would have to share"


class MemberScores(NamedTuple):
    """Scores of examples that were trained on, and of others."""

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
    """The verdict: the attack succeeds if the lower end `low` of the area's interval lies above chance. `control`: the
    area without protection; `whom`: what to call the members.
    """
    if control is not None and control <= CHANCE:
        return "no power", BLIND
    if low > CHANCE:
        return "reached", f"{whom} are told from others better than by chance"
    known = "while it succeeds on the run without protection"
    if control is None:
        known = "and its success on the run without protection is not known"
    return "stopped", f"{whom} are not told from others, {known}"


def _rate(seen: MemberScores, control: MemberScores | None, alarms: float) -> BesideGuess:
    """The true positive rate at this false positive rate (`alarms`), with its interval."""
    low, high = limits_at(*seen, alarms, 1 - LEVEL)
    return BesideGuess(
        name=f"members found at {100 * alarms:g}% false alarms",
        value=hits_at(*seen, alarms),
        baseline=alarms,
        control=None if control is None else hits_at(*control, alarms),
        low=low,
        high=high,
        level=LEVEL,
    )


def limits_at(members: Tensor, others: Tensor, alarms: float, alpha: float) -> tuple[float, float]:
    """Confidence limits for the true positive rate at the false positive rate `alarms`: with probability at
    most `alpha`, one of them is wrong. A quarter of it goes to each error of each limit: in its threshold, which is
    estimated from `others` (binomial), and in the rate of members above that threshold (Clopper and Pearson).
    """
    from scipy.special import bdtr, bdtrc

    ordered, rank = others.sort(descending=True).values, torch.arange(len(others))
    sure = int((torch.from_numpy(bdtr(rank.numpy(), len(others), alarms)) <= alpha / 4).sum())
    enough = int((torch.from_numpy(bdtrc(rank.numpy(), len(others), alarms)) > alpha / 4).sum())
    few = int((members > ordered[sure - 1]).sum()) if sure else 0
    most = int((members >= ordered[enough]).sum()) if enough < len(others) else len(members)
    return 1 - upper(len(members) - few, len(members), alpha / 4), upper(most, len(members), alpha / 4)


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
    from scipy.special import stdtrit

    above, below = _above(members, others), 1 - _above(others, members)
    auc, trials = float(above.mean()), min(len(members), len(others))
    if members.dim() == 1:
        variance = above.var() / len(members) + below.var() / len(others)
    else:
        variance = (above.mean(1) + below.mean(1)).var() / trials
    reach = float(-stdtrit(trials - 1, alpha / 2)) * math.sqrt(float(variance))  # of few trials wider than ndtri
    if not reach > 0:  # no pair is out of order, so the variance gives no interval
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


@dataclass(frozen=True)
class LossThreshold(MemberInference, name="loss_threshold"):
    """Classifies an example as a member if the released model has a low loss on it.

    Yeom, Giacomelli, Fredrikson and Jha, CSF 2018.

    Deviations: none.
    """

    def score(self, view: MemberView) -> Tensor:
        return -losses(view.task, view.model, view.asked)


@dataclass(frozen=True)
class LikelihoodRatio(MemberInference, name="lira"):
    """Compares an example's loss with its losses under shadow models that were trained without it (LiRA).

    Carlini, Chien, Nasr, Song, Terzis and Tramèr, S&P 2022, the offline attack.

    Deviations: few shadow models, so that one deviation serves all examples; shadows are whole federated runs.
    """

    costly = True

    def unfit(self, run: AttackedRun) -> str:
        return run.without_classes or super().unfit(run)

    def score(self, view: MemberView) -> Tensor:
        reference, inside = [], []
        for i in range(view.shadows):
            model, had = view.shadow(i)
            reference.append(losses(view.task, model, view.asked))
            inside.append(had)
        return above(losses(view.task, view.model, view.asked), torch.stack(reference), torch.stack(inside))


def above(target: Tensor, shadows: Tensor, inside: Tensor) -> Tensor:
    """Standard deviations by which an example's confidence [n] exceeds the mean confidence of models trained without
    it. `shadows` [models, n] are losses, `inside` marks the models trained on the example; an example in all of them
    scores 0.
    """
    one, many, without = confidence(target), confidence(shadows), (~inside.bool()).double()
    known = without.sum(0)
    mean = (many * without).sum(0) / known.clamp_min(1)
    spread = (((many - mean) ** 2 * without).sum() / (known - 1).clamp_min(0).sum().clamp_min(1)).sqrt().clamp_min(1e-9)
    return torch.where(known > 0, (one - mean) / spread, torch.zeros_like(mean))


def confidence(loss: Tensor) -> Tensor:
    """Log odds of the true class, which are nearly normally distributed over models."""
    loss = loss.double().clamp_min(1e-12)
    return -loss - torch.log(-torch.expm1(-loss))


WRONG = 1e-4  # probability that this refutes a true guarantee
NO_UPLOAD = "no single upload can be read"


@dataclass(frozen=True)
class Canary(Attack, name="canary"):
    """Tells releases of one client's upload with a chosen image from releases without it."""

    sees = "server"

    def unfit(self, run: AttackedRun) -> str:
        if run.without_images:
            return run.without_images
        return "" if run.seen.each and (run.by or "server") == "server" else NO_UPLOAD

    def play(self, run: AttackedRun) -> AttackFinding:
        trials = run.asked.trials
        few = max(50, trials // 10)  # without noise, fewer releases suffice
        seen, control = run.beside_control(lambda bare: self._sides(game(run, bare), few if bare else trials))
        bound = next((held for held in run.of_round if held.unit == "example" and held.adversary == "server"), None)
        finite = bound is not None and bound.status in ("proved", "conditional")
        found = with_verdict(self.untried(run, ""), seen, control, bound if finite else None)
        if bound is None or not finite:
            return found
        least = max(0.0, tuned(Outputs(seen.others, seen.members), {bound.delta: bound.epsilon}, WRONG).epsilon)
        lost = BesideGuess(
            name=f"epsilon of this one round, at least (claimed {epsilon_text(bound.epsilon)})",
            value=least,
            baseline=0.0,
        )
        found = found.beside(measured=(*found.measured, lost))
        if least > bound.epsilon:
            return found.beside(verdict="broken", why="more is lost than is claimed")
        return found

    def _sides(self, played: CanaryGame, trials: int) -> MemberScores:
        towards = tree.flat(played.towards()).double()
        towards = -towards / towards.square().sum().clamp_min(1e-300)

        def scores(with_: bool) -> Tensor:
            return torch.stack([tree.flat(played.release(with_, i)).double() @ towards for i in range(trials)])

        return MemberScores(scores(True), scores(False))


@dataclass(frozen=True)
class CanaryGame:
    """The distinguishing game with and without the canary, under the run's clip and noise or without protection."""

    rounds: Rounds  # replayed up to the attacked round
    heard: RecordedRound  # its messages
    client: int
    sides: tuple[Examples, Examples]  # the client's rows without the canary, and with it
    canary: Examples
    key: keys.Key

    def release(self, with_: bool, number: int) -> Params:
        """The change of the model in another release of the upload, with or without the canary and with fresh noise."""
        site, draw = self.rounds.site, keys.fold(self.key, "release", int(with_), number)
        rows = answering(site.shards, {self.client: self.sides[with_]}, site.algorithm.read, draw)
        before, agreed = site.state(self.client), len(self.sides[True].y)  # with and without the canary
        again = replace(site, shards=rows, sizes={self.client: agreed}, key=keys.word(draw))
        terms = {self.client: self.heard.terms[self.client]}
        ((_, upload),) = again.each(self.rounds.t, self.heard.down, terms)
        site.states[self.client] = before  # the next release starts where this one did
        change = self.rounds.change_of(self.rounds.t, upload, self.heard.down, self.client, agreed)
        assert change is not None
        return change

    def towards(self) -> Params:
        """The gradient of the canary, by which its presence changes the upload."""
        task, params = self.rounds.simulation.setup.task, self.heard.before
        shares = F.one_hot(self.canary.y, task.classes).float()
        found = gradient(task, params, pictures(self.canary.x), shares)
        return {name: slope.detach() for name, slope in zip(params, found, strict=True)}


def game(run: AttackedRun, bare: bool) -> CanaryGame:
    """The game on the first attacked client, whose first image becomes noise with a random label. `bare`: without
    protection.
    """
    client, key = run.clients[0], keys.fold(run.key, "canary")
    rows = run.rows[client]
    first = taken(rows, torch.tensor([0]))
    noise = (256 * keys.uniform(key, first.x.numel())).to(first.x.dtype).reshape(first.x.shape)
    label = keys.integers(keys.fold(key, "label"), 1, run.setup.task.classes)
    canary = first._replace(x=noise, y=label.to(first.y.dtype))
    rest = taken(rows, torch.arange(1, len(rows.y)))
    with_ = rows._replace(x=torch.cat([canary.x, rest.x]), y=torch.cat([canary.y, rest.y]))
    removed = any(held.unit == "example" and held.neighbours == "zero_out" for held in run.of_round)
    without = rest if removed and len(rest.y) else rows
    heard = run.bare if bare else run.seen
    assert heard is not None
    return CanaryGame(run.rounds(bare, run.changed), heard, client, (without, with_), canary, key)
