"""Proved lower bounds on what was lost, from what a distinguisher saw (Jagielski et al., NeurIPS 2020; Nasr et al.,
USENIX Security 2023).

Two neighbours, one threshold that was chosen without these outputs, Clopper-Pearson limits for both errors, at `alpha`
together. Whoever claims less is wrong, except with probability `alpha`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

ALPHA = 1e-6
GRID = 200  # thresholds that are tried before one is chosen


class Outputs(NamedTuple):
    """One score per independent draw, in units in which the neighbours' centres lie at 0 and 1."""

    without: Tensor
    with_: Tensor


class Errors(NamedTuple):
    false_alarms: float  # upper limits of both error rates
    misses: float


class Found(NamedTuple):
    delta: float
    epsilon: float


def errors(outputs: Outputs, threshold: float, alpha: float = ALPHA) -> Errors:
    false, missed = (outputs.without > threshold), (outputs.with_ <= threshold)
    return Errors(*(upper(int(wrong.sum()), len(wrong), alpha / 2) for wrong in (false, missed)))


def upper(hits: int, draws: int, alpha: float) -> float:
    """The largest rate that is likely behind so many hits: it is exceeded with probability `alpha` at most (Clopper
    and Pearson 1934).
    """
    from scipy.special import betaincinv

    return float(betaincinv(hits + 1, draws - hits, 1 - alpha)) if hits < draws else 1.0


def mu_lost(outputs: Outputs, alpha: float = ALPHA) -> float:
    """A lower bound on mu: right where the claim is Gaussian."""
    from scipy.special import ndtri

    found = errors(outputs, 0.5, alpha)
    return float(-ndtri(found.false_alarms) - ndtri(found.misses))


def epsilon_lost(outputs: Outputs, threshold: float, delta: float, alpha: float = ALPHA) -> float:
    """A lower bound on epsilon at this delta: right for any claim."""
    found = errors(outputs, threshold, alpha)
    sides = ((found.false_alarms, found.misses), (found.misses, found.false_alarms))
    return max(math.log(max(1 - delta - b, 1e-300) / a) for a, b in sides)


def tuned(outputs: Outputs, claimed: Mapping[float, float], alpha: float = ALPHA) -> Found:
    """The bound where it presses hardest on the claim, an epsilon for each delta: a quarter of the draws chooses
    threshold and delta, the others are believed.
    """
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
    return Found(delta, epsilon_lost(believed, threshold, delta, alpha))
