"""Proved lower bounds on the privacy loss of a mechanism, from the outputs that a distinguisher observed.

Many runs (Jagielski et al., NeurIPS 2020; Nasr et al., USENIX Security 2023): two neighbours, one threshold chosen
independently of these outputs, Clopper-Pearson limits for both error rates, at level `alpha` together. A claim below
the bound is wrong, except with probability `alpha`.

Many canaries in one run; coins decide beforehand which are present. The sharpest bound uses each score's distance from
its centre, not only its side of a threshold. Sums of signals along canaries are Gaussian (Agrawal et al., arXiv
2606.12733), and an attacker who knows all but coins and noise knows both centres, so the scores show the noise's own
deviation (`distance`). For any noise, wrong guesses about independent canaries are counted: each guess is wrong with
probability at least half the overlap of the two neighbours (`epsilon_by_errors`; the order statistics of Xiang et al.,
arXiv 2509.08704, count the same when all canaries are guessed).

Bounds that need only fair, independent coins and a number of guesses fixed beforehand: Steinke, Nasr and Jagielski
(NeurIPS 2023), Theorem 5.2, for (epsilon, delta); and Mahloujifar, Melis and Chaudhuri (ICML 2025), Theorem 9 and
Algorithm 3, for a whole privacy curve, which is sharper. Both are weak, because they allow guesses to depend on each
other: a mechanism may leak little nearly always and everything at times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from sordino.accounting.gaussian_dp import bisect
from sordino.audits.noise_sources import Silent
from sordino.types import NoiseSource

ALPHA = 1e-6
GRID = 200  # thresholds that are tried before one is chosen
MOST = 50.0  # largest epsilon, or mu, in a search
FARTHEST = 1e3  # largest distance, in deviations of the noise, which then is as good as none
TIGHT = 1e-4


class Outputs(NamedTuple):
    """Scores of independent releases of both neighbours, scaled so that the neighbours' centres are 0 and 1."""

    without: Tensor
    with_: Tensor


class Errors(NamedTuple):
    """Upper confidence limits of a distinguisher's two error rates."""

    false_alarms: float
    misses: float


class LowerBound(NamedTuple):
    """A proved lower bound on epsilon at one delta."""

    delta: float
    epsilon: float


def errors(outputs: Outputs, threshold: float, alpha: float = ALPHA) -> Errors:
    false, missed = (outputs.without > threshold), (outputs.with_ <= threshold)
    return Errors(*(upper(int(wrong.sum()), len(wrong), alpha / 2) for wrong in (false, missed)))


def upper(hits: int, draws: int, alpha: float) -> float:
    """Upper confidence limit of a rate after `hits` in `draws`; the true rate exceeds it with probability `alpha` at
    most (Clopper and Pearson 1934).
    """
    from scipy.special import betaincinv

    return float(betaincinv(hits + 1, draws - hits, 1 - alpha)) if hits < draws else 1.0


def mu_lost(outputs: Outputs, alpha: float = ALPHA) -> float:
    """Lower bound on mu of Gaussian differential privacy; valid if the claim is Gaussian."""
    from scipy.special import ndtri

    found = errors(outputs, 0.5, alpha)
    return float(-ndtri(found.false_alarms) - ndtri(found.misses))


def epsilon_lost(outputs: Outputs, threshold: float, delta: float, alpha: float = ALPHA) -> float:
    """Lower bound on epsilon at this delta, for any mechanism: from how often the scores of either neighbour exceed
    `threshold`.
    """
    found = errors(outputs, threshold, alpha)
    sides = ((found.false_alarms, found.misses), (found.misses, found.false_alarms))
    return max(math.log(max(1 - delta - b, 1e-300) / a) for a, b in sides)


def tuned(outputs: Outputs, claimed: Mapping[float, float], alpha: float = ALPHA) -> LowerBound:
    """The lower bound at one threshold and delta. A quarter of the draws chooses these two, where the bound is largest
    relative to the claim; the other draws give the bound. `claimed`: epsilon by delta."""
    chooses = Outputs(*(side[: len(side) // 4] for side in outputs))
    believed = Outputs(*(side[len(side) // 4 :] for side in outputs))
    both = torch.cat(list(chooses)).sort().values
    tried = [0.5, *both[torch.linspace(0, len(both) - 1, GRID).long()].tolist()]
    _, threshold, delta = max(
        (
            (epsilon_lost(chooses, threshold, delta, alpha) / claim, threshold, delta)
            for threshold in tried
            for delta, claim in claimed.items()
        ),
        key=lambda one: one[0],
    )
    return LowerBound(delta, epsilon_lost(believed, threshold, delta, alpha))


# one run: independent canaries ----------------------------------------------------------------------------------------


def distance(off: Tensor, alpha: float) -> float:
    """Lower confidence limit for the distance between two neighbours in deviations of Gaussian noise, mu if nothing is
    sampled. `off`: deviation of each score from its centre, in units in which the centres lie at 0 and 1.
    """
    from scipy.special import gammaincinv

    if not len(off):
        return 0.0
    squares = float(off.square().sum())
    least = 2 * float(gammaincinv(len(off) / 2, alpha))  # quantile of the chi-square law
    return min(FARTHEST, math.sqrt(least / squares)) if squares else FARTHEST


def epsilon_by_errors(wrong: float, delta: float) -> float:
    """Lower bound on epsilon at this delta if at most this share of guesses is wrong, whatever the noise: under
    (epsilon, delta) both error rates add up to at least 2 (1 - delta) / (1 + e^epsilon).
    """
    return math.log(max(1.0, (1 - delta) / wrong - 1))


# one run: any canaries ------------------------------------------------------------------------------------------------


class Guesses(NamedTuple):
    """Guesses about canaries: how many were made, and how many are right."""

    canaries: int
    tried: int  # of the canaries; the others are not guessed
    right: int


class TradeOff(Protocol):
    """Trade-off curve of a mechanism: how rarely an attacker can err on one neighbour, given its errors on the
    other."""

    def wrong(self, right: float) -> float:
        """Least probability of an event under one neighbour, if it has probability `right` under the other."""


@dataclass(frozen=True)
class GaussianTradeOff:
    """Trade-off curve of Gaussian noise on neighbours that lie `mu` deviations apart."""

    mu: float

    def wrong(self, right: float) -> float:
        from scipy.special import ndtr, ndtri

        return float(ndtr(ndtri(right) - self.mu))


# one run: (epsilon, delta) --------------------------------------------------------------------------------------------


def chance(found: Guesses, epsilon: float, delta: float) -> float:
    """Largest probability of at least this many right guesses if (epsilon, delta) holds."""
    from scipy.special import bdtrc

    if not found.right:
        return 1.0
    honest = 1 / (1 + math.exp(-epsilon))
    usual = float(bdtrc(found.right - 1, found.tried, honest))
    if not delta:
        return usual
    import numpy as np

    fewer = np.arange(1, found.right + 1)
    more = float(((bdtrc(found.right - fewer - 1, found.tried, honest) - usual) / fewer).max())
    return min(1.0, usual + 2 * found.canaries * delta * more)


def epsilon_at_least(found: Guesses, delta: float, alpha: float) -> float:
    """Largest epsilon that this number of right guesses refutes at this delta; 0 if it refutes none."""
    return _largest(lambda epsilon: chance(found, epsilon, delta) <= alpha)


# one run: a curve -----------------------------------------------------------------------------------------------------


def refuted(curve: TradeOff, found: Guesses, alpha: float) -> bool:
    """True if the curve is refuted: under it, at least as many right guesses have a probability below `alpha`. All
    canaries must be guessed.

    The proof assumes that the probability were `alpha`. Each right guess could also have been wrong, and the curve
    bounds that probability from below, so fewer right guesses have some probability too. If all these probabilities add
    up to more than 1, the assumption was false.
    """
    many, least = found.canaries, found.right
    assert found.tried == many, "the bound is for guesses of all canaries"
    if not many:
        return False
    right, wrong = alpha * least / many, alpha * (many - least) / many
    for i in range(least - 1, -1, -1):
        before, wrong = wrong, max(wrong, curve.wrong(right))
        right += i / (many - i) * (wrong - before)
        if right + wrong > 1:
            return True
        if wrong == before:  # later steps add nothing
            return False
    return False


def mu_at_least(found: Guesses, alpha: float) -> float:
    """Largest mu that this number of right guesses refutes, if noise is Gaussian; 0 if it refutes none."""
    return _largest(lambda mu: refuted(GaussianTradeOff(mu), found, alpha))


def _largest(gone: Callable[[float], bool]) -> float:
    """Largest number from 0 to MOST for which `gone` is true (it is refuted), by bisection; 0 if there is none."""
    if not gone(0.0):
        return 0.0
    return MOST if gone(MOST) else bisect(gone, good=0.0, bad=MOST, tight=TIGHT)


FAR = 1e3  # times any bound, so that a gate must cut it
Release = Callable[[NoiseSource], Tensor]  # [independent draws of one call, numbers seen]


class NoPower(Exception):
    """Error of an attack for which both neighbours look the same, so that it shows nothing about the claim."""


@dataclass(frozen=True)
class Pair:
    """Two neighbours to distinguish by their releases. `by` "direction": by the projection on the line between their
    centres; `by` "energy": by the size of the noise.
    """

    attack: str
    without: Release
    with_: Release
    by: Literal["direction", "energy"] = "direction"
    score: Callable[[Tensor], Tensor] | None = None  # a better statistic, where the attacker knows one
    rate: float = 1.0  # sampling rate: probability that a coordinate holds the record at all

    def outputs(self, draws: int, source: NoiseSource) -> Outputs:
        """Scores of at least `draws` releases of each neighbour, each with fresh noise."""
        score = self.score or self._score()
        calls = math.ceil(draws / len(self.without(source.child("shape"))))
        sides = [
            torch.cat([score(release(source.child(name, call))) for call in range(calls)])
            for name, release in (("without", self.without), ("with", self.with_))
        ]
        return Outputs(*sides)

    def _score(self) -> Callable[[Tensor], Tensor]:
        centres = [release(Silent()) for release in (self.without, self.with_)]
        loud = [release(Silent(1.0)) for release in (self.without, self.with_)]
        std = torch.maximum(*((noisy - centre).abs() for noisy, centre in zip(loud, centres, strict=True)))
        most = float(std.max())
        std = std.clamp_min(1e-6 * most if most else 1.0)  # a number without noise counts for nearly everything
        origin, towards = centres[0], (centres[1] - centres[0]) / std**2
        if self.by == "energy":
            return lambda seen: (((seen - origin) / std) ** 2).mean(1)
        length = ((centres[1] - origin) * towards).sum(1)
        if not bool((torch.isfinite(length) & (length > 0)).all()):
            raise NoPower
        if self.rate < 1:
            return partial(likelihood, origin=origin, towards=towards, std=std, rate=self.rate)
        return lambda seen: ((seen - origin) * towards).sum(1) / length


def likelihood(seen: Tensor, origin: Tensor, towards: Tensor, std: Tensor, rate: float) -> Tensor:
    """Log likelihood ratio of each release in `seen`, with Gaussian noise of deviation `std` around `origin`, where
    each coordinate is shifted with probability `rate`: the best test statistic (Neyman and Pearson). `towards`: the
    shift of each coordinate divided by its variance.
    """
    shift = towards * std
    log_ratio = (seen - origin) / std * shift - shift**2 / 2
    return torch.logaddexp(log_ratio + math.log(rate), torch.tensor(math.log1p(-rate), dtype=log_ratio.dtype)).sum(1)
