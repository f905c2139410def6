"""How well scores tell members from others: the area under the ROC curve with its interval, and hits at few false
alarms.

DeLong, DeLong and Clarke-Pearson (Biometrics 1988). Scores of one trial share what was released in it; then the trials
are what is independent (Obuchowski, Biometrics 1997). Hits at few false alarms are what counts for privacy (Carlini et
al., S&P 2022).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

ALARMS = (0.01, 0.001)  # shares of others that may be taken for members


class Separation(NamedTuple):
    auc: float
    low: float
    high: float
    hits: tuple[float, ...]  # share of members found, for each of ALARMS


def separation(members: Tensor, others: Tensor, alpha: float = 0.05) -> Separation:
    """Scores [members] and [others] of independent trials, or [trials, of members] and [trials, of others], held
    against one threshold. `alpha` is for both sides together.
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
    """The share of members above the lowest threshold that at most this share of others is above."""
    ordered = others.flatten().sort(descending=True).values
    return float((members > ordered[min(int(alarms * len(ordered)), len(ordered) - 1)]).double().mean())


def _above(scores: Tensor, others: Tensor) -> Tensor:
    """For each score the share of others below it; a tie is a half."""
    ordered, asked = others.flatten().double().sort().values, scores.double().contiguous()
    left, right = (torch.searchsorted(ordered, asked, right=side) for side in (False, True))
    return (left + right).double() / (2 * len(ordered))
