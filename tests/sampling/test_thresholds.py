"""Rates and waste by threshold, by closed forms and by enumeration; and what recycling really loses."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.accounting.events import amplified
from sordino.errors import InvalidBudget
from sordino.sampling.by_budget import (
    LostBudget,
    included,
    threshold,
    waste,
    waste_at_least,
    wasted,
)
from tests.helpers.threshold_budgets import each


# sampling by threshold ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("budget", "tau", "rate"),
    [(0.5, 1, 0.377541), (0.1, 1, 0.061207), (1, 2, 0.268941), (1, 4, 0.032059), (2, 1, 1), (1, 1, 1)],
)
def test_inclusion(budget: float, tau: float, rate: float) -> None:
    assert included(each(budget), tau)[0] == pytest.approx(rate, abs=5e-7)


@given(st.floats(1e-3, 8), st.floats(1e-3, 8))
def test_one_hidden_sample_costs_the_budget_and_no_more(budget: float, tau: float) -> None:
    assert amplified(tau, float(included(each(budget), tau)[0])) == pytest.approx(min(budget, tau), rel=1e-9)


def loss_ratio(outputs: tuple[int, ...], rate: float, tau: float, stops: bool) -> float:
    """ln of P[outputs | client in] / P[outputs | client out], for rounds of randomised response on a hidden sample.

    `stops`: the client is charged when it is drawn and, its budget used up, takes no part any more (as published); else
    it tosses in every round.
    """
    yes = math.exp(tau)  # P1(1)/P0(1), and P1(0)/P0(0) is its inverse
    each_round = [yes if o else 1 / yes for o in outputs]
    if not stops:
        return sum(math.log(1 - rate + rate * r) for r in each_round)
    untouched = (1 - rate) ** len(outputs)
    return math.log(untouched + sum((1 - rate) ** t * rate * r for t, r in enumerate(each_round)))


def worst(rate: float, tau: float, rounds: int, stops: bool) -> float:
    return max(loss_ratio(o, rate, tau, stops) for o in itertools.product((0, 1), repeat=rounds))


def recycled(rate: float, tau: float, rounds: int) -> float:
    """The pure loss if only those who were drawn are charged, and stop after their first round."""
    return math.log1p(-math.expm1(rounds * math.log1p(-rate)) * math.expm1(tau))


@pytest.mark.parametrize(("rounds", "loss"), [(1, 0.1), (2, 0.186), (5, 0.382), (10, 0.590), (20, 0.803), (50, 0.973)])
def test_recycling_loses_more_than_it_says(rounds: int, loss: float) -> None:
    rate = float(included(each(0.1), 1.0)[0])
    assert recycled(rate, 1.0, rounds) == pytest.approx(loss, abs=6e-4)
    if rounds <= 10:
        assert worst(rate, 1.0, rounds, stops=True) == pytest.approx(recycled(rate, 1.0, rounds), rel=1e-12)
    assert (recycled(rate, 1.0, rounds) > 0.1 + 1e-9) == (rounds > 1)  # it had promised 0.1


def test_the_enumeration_over_a_thousand_outputs() -> None:
    rate = float(included(each(0.1), 1.0)[0])
    assert worst(rate, 1.0, 10, stops=True) == pytest.approx(0.59034, abs=5e-6)
    assert worst(rate, 1.0, 8, stops=False) == pytest.approx(
        8 * 0.1, rel=1e-9
    )  # charging everybody every round is exact


# what a threshold wastes ----------------------------------------------------------------------------------------------
def test_waste_at_the_budgets_themselves() -> None:
    phi = each(0.1, 0.5, 1.0)
    assert [waste(phi, t) for t in phi] == pytest.approx([1.3, 0.440263, 0.405109], abs=5e-7)


@pytest.mark.parametrize(
    ("phi", "least", "at"),
    [((0.1, 0.5, 1), 0.276723, 0.768719), ((1, 2, 4), 1.555495, 2.247193), ((0.5, 0.5, 0.5, 1), 0.359299, 0.581067)],
)
def test_the_least_waste(phi: tuple[float, ...], least: float, at: float) -> None:
    tau = threshold(each(*phi))
    assert tau == pytest.approx(at, abs=2e-6)
    assert waste(each(*phi), tau) == pytest.approx(least, abs=5e-7)


def test_its_parts_and_the_other_rules() -> None:
    phi = each(0.1, 0.5, 1.0)
    assert wasted(phi, 0.768719) == pytest.approx((0.310564, 0.231281), abs=2e-6)
    assert waste(phi, 0.7687, LostBudget("sum")) == pytest.approx(0.5418, abs=1e-4)
    assert waste(phi, 1.0, LostBudget("sum")) == pytest.approx(
        0.4051, abs=1e-4
    )  # less: the weighted rule favours equal parts, not little waste
    assert threshold(phi, LostBudget("sum")) == pytest.approx(1.0)
    assert waste(phi, 0.5, LostBudget("count")) == pytest.approx(0.7 * (1 - float(included(phi, 0.5)[0])) + 0.3 * 0.5)


@given(st.lists(st.floats(0.05, 8), min_size=1, max_size=6), st.sampled_from(["weighted", "sum", "fixed", "count"]))
@settings(max_examples=25, deadline=None)
def test_no_grid_point_wastes_less(phi: list[float], name: Any) -> None:
    grid, rule = np.linspace(min(phi), max(phi), 301), LostBudget(name, (0.4, 0.6))
    assert (
        waste(each(*phi), threshold(each(*phi), rule), rule)
        <= min(waste(each(*phi), float(t), rule) for t in grid) + 1e-6
    )


@given(
    st.lists(st.floats(0.01, 60), min_size=2, max_size=6, unique=True),
    st.sampled_from(["weighted", "sum", "fixed", "count"]),
    st.floats(0, 1),
)
@settings(max_examples=100, deadline=None)
def test_no_gap_is_left_out_that_could_hold_the_least_waste(phi: list[float], name: Any, at: float) -> None:
    levels, rule = np.sort(each(*phi)), LostBudget(name, (0.4, 0.6))
    low, high = levels[:-1], levels[1:]
    within = [waste(levels, float(tau), rule) for tau in low + at * (high - low)]
    assert (
        waste_at_least(levels, low, high, rule, np.ones(len(levels))) <= np.array(within) + 1e-9 * levels.sum()
    ).all()


def test_where_the_least_waste_is_nearly_all_gaps_are_left_out() -> None:
    levels = np.sort(np.random.default_rng(0).uniform(1, 4, 1000))
    at_least = waste_at_least(levels, levels[:-1], levels[1:], LostBudget(), np.ones(1000))
    assert 0 < (at_least <= waste(levels, threshold(levels))).mean() < 0.1


def test_equal_budgets_waste_nothing_and_none_are_refused() -> None:
    assert threshold(each(0.7, 0.7)) == 0.7
    assert waste(each(0.7, 0.7), 0.7) == 0
    for bad in (each(), each(0.0, 1.0), each(math.nan)):
        with pytest.raises(InvalidBudget) as refusal:
            threshold(bad)
        assert refusal.value.code == "threshold-without-budgets"
