"""`privacy plan`: numbers in both directions, what else keeps the promise, and a real experiment foreseen to the byte
without leaving a trace.

The laws: budget -> noise -> budget comes home; a larger federation is never noisier; what is printed as a command keeps
what was promised; the expected noise is the noise that the engine really makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from sordino.accounting.claims import UNIT
from sordino.planning.calculator import Question, answer, ask, asked, bought, enough_for
from sordino.planning.planner import SmallestFederation, enough, warning, ways_out
from tests.helpers.planned import Table

quick = settings(deadline=None, derandomize=True, max_examples=40)


# numbers, both ways ---------------------------------------------------------------------------------------------------
@st.composite
def questions(draw: st.DrawFn) -> Question:
    """Where Gaussian DP is exact: records, or clients that all take part in every round."""
    unit, clients = draw(st.sampled_from(["client", "example"])), draw(st.integers(2, 500))
    cohort = clients if unit == "client" else draw(st.integers(1, clients))
    return Question(
        draw(st.floats(0.05, 20)), 10 ** draw(st.floats(-12, -6)), unit, clients, cohort, draw(st.integers(1, 300)),
        records=draw(st.integers(1, 1000)), parameters=draw(st.integers(1, 10**6)),
    )  # fmt: skip


@quick
@given(questions())
def test_budget_to_noise_to_budget_comes_home(q: Question) -> None:
    """A budget is cut into integers as a run cuts it: one participation has at most one unit more than another."""
    made = asked(q)
    unit = (
        2 * made.noise_multiplier**2 / UNIT
    )  # as a part of mu^2/2 of a participation; epsilon changes by no larger part
    again = bought(made.noise_multiplier, replace(q, epsilon=1.0))
    assert again == pytest.approx(q.epsilon, rel=1e-6 + unit)


@pytest.mark.slow
def test_it_comes_home_for_a_hidden_cohort_too() -> None:
    """The calibration ends within 1e-5 of its budget, on the safe side."""
    q = Question(0.5, 1e-7, "client", 1000, 50, 200)
    again = bought(asked(q).noise_multiplier, q)
    assert 0.5 * (1 - 3e-5) <= again <= 0.5


@quick
@given(st.floats(0.3, 50), st.integers(1, 400), st.floats(-10, -5))
def test_what_a_multiplier_buys_is_the_gaussian_curve(z: float, rounds: int, log_delta: float) -> None:
    """Balle and Wang 2018, by scipy: at the epsilon bought, delta is used up."""
    q, mu = Question(1.0, 10**log_delta, "client", 5, 5, rounds), math.sqrt(rounds) / z
    if norm.cdf(mu / 2) - norm.cdf(-mu / 2) <= q.delta or mu > 30:
        return  # epsilon 0, or too far out for the plain formula
    epsilon = bought(z, q)
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))
    assert delta == pytest.approx(q.delta, rel=1e-3)


def test_asking_in_one_direction_answers_in_the_other() -> None:
    facts: Table = {"unit": "example", "delta": 1e-6, "clients": 10, "cohort": 5, "rounds": 8}
    there = asked(ask(epsilon=2.0, **facts))
    back = asked(ask(noise_multiplier=there.noise_multiplier, **facts))
    assert back.question.epsilon == pytest.approx(2.0, rel=1e-6)
    assert back.noise_multiplier == pytest.approx(there.noise_multiplier, rel=1e-6)


# a larger federation --------------------------------------------------------------------------------------------------
@pytest.mark.slow
@quick
@given(questions(), st.integers(2, 9))
def test_more_clients_are_never_noisier(q: Question, times: int) -> None:
    larger = replace(q, clients=q.clients * times, cohort=q.cohort * times)
    before = {row.what: row for row in answer(q)}
    after = {row.what: row for row in answer(larger)}
    assert any("local noise" in what for what in before)
    for what in before.keys() & after.keys():
        assert after[what].noise_to_signal < before[what].noise_to_signal
        assert after[what].participations == before[what].participations


Search = Callable[..., SmallestFederation | None]


def check_enough(q: Question, search: Search) -> None:
    """What is found is below the mark by the library's own calibration; one client fewer in the cohort is not, unless
    delta had to fall.
    """
    power, units = (1, 1) if q.unit == "client" else (2, q.records)
    for below in (1.0, 0.3):
        found = search(
            below,
            q.clients,
            q.cohort,
            q.delta,
            units,
            power,
            lambda delta: asked(replace(q, delta=delta)).noise_to_signal,
        )
        assert found is not None
        grown = asked(replace(q, clients=found.clients, cohort=found.cohort, delta=found.delta))
        assert grown.noise_to_signal < below
        assert grown.noise_to_signal <= found.noise_to_signal * (1 + 1e-9)
        assert found.delta < 1 / (found.clients * units)
        if found.delta == q.delta and found.cohort > q.cohort:
            fewer = round((found.cohort - 1) * q.clients / q.cohort)
            short = replace(q, clients=max(fewer, found.cohort - 1), cohort=found.cohort - 1)
            assert asked(short).noise_to_signal >= below * (1 - 1e-9)
        if found.delta != q.delta:
            assert q.delta >= 1 / (found.clients * units)


ENOUGH = [
    Question(1.0, 1e-6, "client", 100, 100, 20, parameters=1000),
    Question(0.5, 1e-3, "client", 50, 50, 100, parameters=20_000),
    Question(1.0, 1e-7, "example", 100, 20, 50, records=100, parameters=3000),
    Question(8.0, 1e-4, "example", 30, 30, 40, records=50, parameters=650),
]


@pytest.mark.parametrize("question", ENOUGH)
def test_enough_clients_are_enough_and_no_more(question: Question) -> None:
    check_enough(question, enough)


def test_the_check_finds_a_search_that_forgets_something() -> None:
    def forgets_delta(
        below: float, clients: int, cohort: float, delta: float, units: int, *rest: Any
    ) -> SmallestFederation | None:
        found = enough(below, clients, cohort, delta, units, *rest)
        return found and found._replace(delta=delta)

    def forgets_the_square(
        below: float, clients: int, cohort: float, delta: float, units: int, power: int, ratio: Any
    ) -> SmallestFederation | None:
        return enough(below, clients, cohort, delta, units, 1, ratio)  # fmt: skip

    with pytest.raises((AssertionError, ValueError)):
        check_enough(ENOUGH[1], forgets_delta)
    with pytest.raises(AssertionError):
        check_enough(ENOUGH[2], forgets_the_square)


def test_a_hundred_clients_with_local_noise_are_told() -> None:
    """28,938 parameters, 100 clients: noise of every client's own is not trainable, and no crowd on earth would change
    it at this budget.
    """
    rows = answer(Question(1.0, 1e-5, "client", 100, 100, 20, parameters=28_938))
    (local,) = (row for row in rows if row.what == "local noise")
    assert local.noise_to_signal > 100
    found = enough(0.3, 100, 100, 1e-5, 1, 2, lambda delta: local.noise_to_signal * 1e4)
    assert found is None


@pytest.mark.parametrize(("clients", "loud"), [(100, True), (1000, True), (10_000, False)])
def test_a_warning_where_the_noise_is_louder_than_the_signal(clients: int, loud: bool) -> None:
    question = Question(4.0, 1e-5, "client", clients, clients, 100, parameters=28_938)
    found = enough_for(question)
    ratio = asked(question).noise_to_signal
    said = warning(ratio, ways_out(found, question.delta))
    assert (said is not None) == loud == (ratio > 1)
    if said:
        assert f"{found[0].clients:,} such clients" in said
