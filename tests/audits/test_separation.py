"""AUCs, their intervals, and hits at few false alarms: against another implementation, by coverage, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.special import ndtr, ndtri
from sklearn.metrics import roc_auc_score
from torch import Tensor

from sordino import keys
from sordino.attacks.methods.members import hits_at, limits_at, separation
from sordino.audits.lower_bounds import upper

pytestmark = pytest.mark.slow  # attacks on what others published: no promise of ours stands or falls with them


def normal(*place: int, shape: tuple[int, ...]) -> Tensor:
    return keys.normal(keys.fold(keys.root(2), *place), math.prod(shape)).reshape(shape)


def test_the_area_is_another_implementations_ties_and_all() -> None:
    members, others = (5 * normal(1, shape=(70,)) + 2).round(), (5 * normal(2, shape=(90,))).round()
    assert len(torch.cat([members, others]).unique()) < 40  # there are ties
    truth = [1] * 70 + [0] * 90
    assert separation(members, others).auc == pytest.approx(roc_auc_score(truth, torch.cat([members, others])))
    backwards = separation(others, members)
    assert backwards.auc == pytest.approx(1 - separation(members, others).auc)


REPEATS = 400
# 95% of intervals hold the truth: 20 of 400 do not. More than 45 miss with probability 3e-7; DeLong's own error at
# these sizes adds less than a percent
MISSES = 45


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    truth = float(ndtr(1 / math.sqrt(2)))
    found = [separation(normal(3, i, shape=(80,)) + 1, normal(4, i, shape=(120,))) for i in range(REPEATS)]
    assert sum(not one.low <= truth <= one.high for one in found) < MISSES
    assert sum(one.high - one.low for one in found) / REPEATS < 0.2  # and they say something


def test_an_interval_of_few_hits_counts_that_the_threshold_is_drawn_too() -> None:
    """Members like all others, of whom 1% are above the true threshold: 99% of intervals hold that. Beyond 16 of 400
    miss with probability 4e-6. The twin, Clopper and Pearson at the threshold that was found, says 99% and holds 90%.
    """
    missed = twin = 0
    for i in range(REPEATS):
        members, others = normal(8, i, shape=(100,)), normal(9, i, shape=(100,))
        low, high = limits_at(members, others, 0.01, 0.01)
        assert low <= hits_at(members, others, 0.01) <= high
        missed += not low <= 0.01 <= high
        hits = round(100 * hits_at(members, others, 0.01))
        twin += not 1 - upper(100 - hits, 100, 0.005) <= 0.01 <= upper(hits, 100, 0.005)
    assert missed <= 16 < twin
    low, high = limits_at(2 + normal(8, shape=(4000,)), normal(9, shape=(4000,)), 0.01, 0.01)
    assert low < float(ndtr(ndtri(0.01) + 2)) < high < low + 0.25  # and they say something


def test_intervals_of_eight_are_those_of_eight() -> None:
    """98.7% of 2,000 hold the truth, where normal quantiles would give 96%. More than 50 miss with probability 1e-5."""
    found = [separation(normal(10, i, shape=(8,)), normal(11, i, shape=(8,)), 0.01) for i in range(2000)]
    assert sum(not one.low <= 0.5 <= one.high for one in found) <= 50


def test_scores_of_one_trial_count_together() -> None:
    """A shift that all members of a trial share: intervals by trial hold the truth, intervals that take scores as
    independent do not.
    """
    truth = float(ndtr(1 / math.sqrt(3)))
    by_trial = alone = 0
    for i in range(REPEATS):
        members = 1 + normal(5, i, shape=(40, 1)) + normal(6, i, shape=(40, 10))
        others = normal(7, i, shape=(40, 10))
        good, bad = separation(members, others), separation(members.flatten(), others.flatten())
        assert good.auc == bad.auc
        by_trial += not good.low <= truth <= good.high
        alone += not bad.low <= truth <= bad.high
    assert by_trial < MISSES < 80 < alone


def test_no_pair_out_of_order_is_no_certainty() -> None:
    found = separation(torch.ones(50), torch.zeros(80))
    assert found.auc == found.high == 1
    assert found.low == pytest.approx(0.025 ** (1 / 50))  # so many trials without a miss, at worst


def test_hits_at_few_alarms() -> None:
    others = torch.arange(1000).double()
    members = torch.tensor([500.0, 988.5, 989.5, 998.5, 999.5])
    # ten others are at 990 or above, one is at 999: members must be above the next one
    assert hits_at(members, others, 0.01) == pytest.approx(2 / 5 + 1 / 5)
    assert hits_at(members, others, 0.001) == pytest.approx(2 / 5)
    assert hits_at(members, others[:100], 0.001) == 1.0  # above all others: no alarm at all
    for share in (0.01, 0.1, 0.5):
        drawn = normal(8, shape=(777,))
        threshold = min(t for t in drawn.tolist() if int((drawn > t).sum()) <= share * 777)
        asked = normal(9, shape=(500,))
        assert hits_at(asked, drawn, share) == pytest.approx(float((asked > threshold).double().mean()))
