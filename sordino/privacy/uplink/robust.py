"""Robust sums: the server uses single uploads to estimate their mean so that a few false ones cannot move the estimate
far. Each rule is made for at most `f` false uploads in a round.

    median        the median of each coordinate (Yin et al., ICML 2018)
    trimmed_mean  the mean of each coordinate without its f largest and f smallest values (same paper)
    krum          the upload, or the mean of `keep` uploads, nearest to its n - f - 2 nearest others (Blanchard et al.,
                  NeurIPS 2017)
    nnm           every upload becomes the mean of the n - f nearest to it, before one of these (Allouah et al.,
                  AISTATS 2023)
    norm_bound    uploads beyond a length are scaled down to it (Sun et al., 2019)

Each rule replaces n uploads by others, whose plain mean is the estimate. All fields of an upload are one vector. An
upload that is not finite counts as zeros. They work on what the server receives: after noise of the clients they are
post-processing; with central noise or a secure sum they are refused.

Deviations: Krum takes the upload of the smallest client id where scores are equal; `norm_bound` without a radius takes
the median of the lengths of the round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from sordino import tree
from sordino.errors import COUNT, POSITIVE, ConfigError, Range, Rule, UnsoundGuarantee, check_range
from sordino.privacy.uplink.stages import Stage, Weigh, clip_factor
from sordino.tree import Tree
from sordino.types import Tensor

if TYPE_CHECKING:
    from sordino.privacy.uplink.rules import UplinkStages

Rows = list[Tensor]  # of each leaf what all clients sent: [clients, numbers], in float64


@dataclass(frozen=True)
class RobustStage(Stage, ABC):
    """One stage of a robust sum, made for at most `f` false uploads in a round."""

    f: int

    def __post_init__(self) -> None:
        why = "it counts the false uploads of a round"
        check_range("f of a robust sum", self.f, Range(least=0, whole=True), "attackers-out-of-range", why=why)

    reads_each = True

    @property
    def needs(self) -> int:
        """The smallest number of uploads in a round for which the stage's theory holds."""
        return 2 * self.f + 1

    @property
    def ends(self) -> bool:
        """True for a rule that makes the final estimate, so that no stage can come after it."""
        return True

    @abstractmethod
    def kept(self, rows: Rows) -> Rows:
        """Replacements of the uploads `rows`, whose plain mean is the robust estimate."""


@dataclass(frozen=True)
class CoordinateMedian(RobustStage):
    """The median of each coordinate; of an even number of uploads the mean of the middle two."""

    def kept(self, rows: Rows) -> Rows:
        return [_middle(leaf, (len(leaf) - 1) // 2) for leaf in rows]


@dataclass(frozen=True)
class TrimmedMean(RobustStage):
    """The mean of each coordinate without its f largest and its f smallest values."""

    def kept(self, rows: Rows) -> Rows:
        return [_middle(leaf, self.f) for leaf in rows]


@dataclass(frozen=True)
class Krum(RobustStage):
    """The upload closest to its nearest neighbours; with `keep` above 1 the mean of the `keep` closest ones
    (Multi-Krum).
    """

    keep: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("keep of krum", self.keep, COUNT, "not-positive")

    @property
    def needs(self) -> int:
        return max(2 * self.f + 3, self.f + 2 + self.keep)

    def kept(self, rows: Rows) -> Rows:
        apart = distances(rows)
        # to itself an upload has distance 0: the nearest n - f - 1 are itself and n - f - 2 others
        scores = apart.sort(dim=1).values[:, : len(apart) - self.f - 1].sum(1)
        chosen = scores.argsort(stable=True)[: self.keep].sort().values
        return [leaf[chosen] for leaf in rows]


@dataclass(frozen=True)
class NearestMixing(RobustStage):
    """Replaces each upload by the mean of the n - f uploads nearest to it, itself included, before another rule."""

    ends = False

    def kept(self, rows: Rows) -> Rows:
        apart = distances(rows)
        nearest = apart.argsort(dim=1, stable=True)[:, : len(apart) - self.f]
        return [torch.stack([leaf[own].mean(0) for own in nearest]) for leaf in rows]


@dataclass(frozen=True)
class NormBound(RobustStage):
    """Scales each upload down to a norm of at most `radius`, before weighting. f false uploads then move the mean by at
    most f times this norm times the weight share of one of them.
    """

    radius: float | None = None  # None: the median of the lengths of the round

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.radius is not None:
            check_range("the radius of norm_bound", self.radius, POSITIVE, "clip-not-positive")

    ends = False

    def kept(self, rows: Rows) -> Rows:
        lengths = torch.stack([leaf.square().sum(1) for leaf in rows]).sum(0).sqrt()
        radius = float(lengths.sort().values[(len(lengths) - 1) // 2]) if self.radius is None else self.radius
        factors = clip_factor(lengths, radius, torch.float64)
        return [leaf * factors[:, None] for leaf in rows]


def distances(rows: Rows) -> Tensor:
    """Squared distances between all uploads, from differences, so that a huge upload costs the others no precision."""
    return torch.stack([torch.stack([(leaf - one).square().sum(1) for one in leaf]) for leaf in rows]).sum(0)


def _middle(leaf: Tensor, cut: int) -> Tensor:
    return leaf.sort(dim=0).values[cut : len(leaf) - cut]


def robust_mean(
    stages: Sequence[RobustStage], uploads: Sequence[Tree], weights: Sequence[float], template: Tree
) -> Tree:
    """The robust estimate of the mean of uploads that their clients have multiplied by their weights; zeros where there
    are fewer uploads than the theory needs.
    """
    if len(uploads) < fewest(stages):
        return tree.zeros_like(template)
    pairs = zip(map(tree.formed, uploads), weights, strict=True)
    each = [tuple(leaf.flatten().double() / weight for leaf in tree.leaves(upload)) for upload, weight in pairs]
    kept = [one if tree.finite(one) else tree.zeros_like(one) for one in each]
    rows = [torch.stack(leaves) for leaves in zip(*kept, strict=True)]
    for stage in stages:
        rows = stage.kept(rows)
    if not any(stage.ends for stage in stages) and len(set(weights)) > 1:  # only a bound on lengths can be weighed
        shares = torch.tensor(weights, dtype=torch.float64)
        rows = [leaf * (shares / shares.mean())[:, None] for leaf in rows]
    return tree.unflat(torch.cat([leaf.mean(0) for leaf in rows]), template)


def fewest(stages: Sequence[RobustStage]) -> int:
    """The smallest number of uploads that all of these stages need."""
    return max((stage.needs for stage in stages), default=0)


def check_robust(stages: Sequence[RobustStage], cohort: float, takes_mean: bool, hidden: bool) -> None:
    """Refuses, before a run, more false uploads than the theory covers, a hidden cohort, and a method that needs more
    than a mean.
    """
    if not stages:
        return
    if not takes_mean:
        raise ConfigError(
            "a robust sum with an algorithm that uses more than the mean change of the model",
            why="clients of this method send counts, prototypes or sums beside their change, or the server reads "
            "single uploads: a median of these means something else",
            fix="use fedavg, fedopt, fedprox, ditto, moon, vhl, scaffold or what is made of them; an algorithm of "
            "your own says `class Mine(FedAvg, takes_mean=True)`",
            code="robust-sum-needs-a-mean",
        )
    if hidden:
        raise ConfigError(
            "a robust sum over a cohort of unknown size",
            why="whether enough honest clients outvote the attackers depends on how many are drawn",
            fix='use a cohort of fixed size, for example cohort = {name = "random", size = 10}',
            code="robust-sum-hidden-cohort",
        )
    for stage in stages:
        if stage.needs > cohort:
            raise ConfigError(
                f"a robust sum made for {stage.f} attackers, in a round of {cohort:g} clients",
                why=f"its theory needs at least {stage.needs} uploads: with fewer, attackers can outvote the others",
                fix="set a smaller f, or ask more clients in a round",
                code="too-many-attackers",
            )


ROBUST_RULES: tuple[Rule[UplinkStages], ...] = (
    Rule(
        lambda stages: any(isinstance(stage, RobustStage) for stage in stages.client),
        ConfigError,
        "a robust sum among the stages of the clients",
        "it compares the uploads of several clients, and only the server has these",
        "put it into server = [...]",
        "robust-sum-at-the-client",
    ),
    Rule(
        lambda stages: 0 < len(stages.robust) < len(stages.server),
        UnsoundGuarantee,
        "a robust sum with noise at the server",
        "the noise is sized for how far one client moves a sum: a median or a choice of uploads moves by another "
        "amount, for which nothing is proved here",
        'let each client add its noise before the upload, client = ["clip", "noise"], or leave the robust sum out: a '
        "clip bounds every client, too",
        "robust-sum-under-noise",
    ),
    Rule(
        lambda stages: bool(stages.robust) and stages.denominator == "expected",
        ConfigError,
        'a robust sum with denominator = "expected"',
        "a robust sum already estimates a mean, so it is not divided",
        "leave the denominator out",
        "robust-sum-denominator",
    ),
    Rule(
        lambda stages: any(stage.ends for stage in stages.robust[:-1]),
        ConfigError,
        "a stage after the rule that makes a robust sum",
        "after the rule there are no single uploads left",
        "put norm_bound and nnm first, and one of median, trimmed_mean and krum last",
        "robust-rule-not-last",
    ),
    Rule(
        lambda stages: bool(stages.robust) and isinstance(stages.robust[-1], NearestMixing),
        ConfigError,
        "nnm without a rule after it",
        "mixing brings honest uploads together; the plain mean of all mixtures still follows whoever lies far away",
        'add a rule, for example server = [{name = "nnm", f = 2}, {name = "trimmed_mean", f = 2}]',
        "mixing-without-rule",
    ),
    Rule(
        lambda stages: (
            any(not isinstance(stage, NormBound) for stage in stages.robust)
            and any(isinstance(stage, Weigh) for stage in stages.client)
        ),
        ConfigError,
        "a robust sum of weighed uploads",
        "its theory counts attackers by heads, and an attacker with most of the examples would outweigh the others; "
        "only norm_bound has a weighted form",
        'leave "weigh" out: uplink = {client = [], server = [...]}',
        "robust-sum-weighed",
    ),
)
