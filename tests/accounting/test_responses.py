"""Randomised response in the ledger: what is drawn once counts once, and every accountant against the exact law of many
answers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.accounting.accountants import best, bounds, epsilon_by
from sordino.accounting.claims import Claim
from sordino.accounting.composition import note
from sordino.accounting.events import (
    DrawnOnce,
    Event,
    Gaussian,
    Laplace,
    NoAccess,
    NonPrivate,
    Poisson,
    Repeat,
    Response,
    Together,
    compact,
    from_json,
    leaves,
    to_json,
)
from sordino.accounting.statement import statement
from sordino.errors import InvalidBudget, UnsupportedEvent
from sordino.privacy.readers.responses import composed_delta, flip_probability, keep_probability
from tests.accounting.priced import to_dp_event

A, B = DrawnOnce("a", Repeat(Response(5.0, 21), 3)), DrawnOnce("b", Repeat(Response(5.0, 21), 3))
_events = st.recursive(
    st.one_of(
        st.builds(Response, st.floats(0.01, 50.0), st.integers(2, 30)),
        st.builds(Gaussian, st.floats(0.1, 9.0)),
        st.builds(NonPrivate, st.text(max_size=3)),
        st.just(NoAccess()),
    ),
    lambda inner: st.one_of(
        st.builds(DrawnOnce, st.sampled_from(["a", "b"]), inner),
        st.builds(Poisson, st.floats(0.1, 1.0), inner),
        st.builds(Repeat, inner, st.integers(1, 5)),
        st.builds(Together, st.lists(inner, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)


def by(name: str, event: Event, delta: float, **more: Any) -> float:
    return epsilon_by(name, event, delta, "replace", **more)


# the language ---------------------------------------------------------------------------------------------------------


@given(_events)
@settings(max_examples=50, deadline=None)
def test_json_returns_an_equal_event(event: Event) -> None:
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


@given(st.lists(_events, max_size=4))
@settings(max_examples=50, deadline=None)
def test_compact_keeps_every_leaf_also_when_done_twice(events: list[Event]) -> None:
    whole = Together(tuple(events))
    assert leaves(compact(events)) == leaves(whole)
    assert compact([compact(events)]) == compact(events)


@given(_events, st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_what_was_drawn_once_counts_once_however_often_it_is_seen(event: Event, rounds: int, again: int) -> None:
    once = DrawnOnce("answers", event)
    wanted = leaves(once)
    for seen in (Repeat(once, rounds), Together((once,) * rounds), Together((Repeat(once, again), once))):
        assert leaves(seen) == leaves(Repeat(seen, again)) == wanted
        assert compact([seen] * again) == once
    assert leaves(DrawnOnce("answers", DrawnOnce("answers", event))) == wanted


def test_names_tell_draws_apart() -> None:
    """Two names are two draws; so are two events under one name: a name is no licence to forget another event."""
    assert leaves(Together((A, B, A))) == {Response(5.0, 21): 6}
    assert compact([A, B, A, B]) == Together((A, B))
    other = DrawnOnce("a", Response(1.0, 10))
    assert leaves(Together((A, other, A))) == {Response(5.0, 21): 3, Response(1.0, 10): 1}
    assert by("pure", Repeat(Together((A, B)), 7), 0) == 30.0
    assert by("pure", Repeat(A.event, 7), 0) == 7 * 15.0  # drawn afresh: they add up


def test_rounds_of_a_statement() -> None:
    """Through the ledger's own words: noise of every round adds up beside answers that do not."""
    rounds = [
        note([([0, 1], Claim.to_everyone("image", "replace", Together((A, Laplace(1.0))), "proved", ())[:1])])
    ] * 4
    (row,) = statement(rounds, 2, 1e-5)
    assert row.accountants["pure"] == 15.0 + 4.0
    assert row.releases == 4
    assert row.event == Together((A, Repeat(Laplace(1.0), 4)))


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, True, "1", None])
def test_no_response_without_a_price(bad: Any) -> None:
    with pytest.raises(InvalidBudget, match="epsilon"):
        Response(bad, 21)
    with pytest.raises(InvalidBudget, match="epsilon"):
        from_json({"kind": "response", "epsilon": bad, "levels": 21})


@pytest.mark.parametrize("bad", [1, 0, -3, 2.0, True, "21", None])
def test_no_response_among_one_value(bad: Any) -> None:
    with pytest.raises(InvalidBudget) as caught:
        Response(1.0, bad)
    assert caught.value.code == "too-few-levels"
    assert repr(bad) in caught.value.what


@pytest.mark.parametrize(
    "make",
    [
        lambda: DrawnOnce(3, A),  # type: ignore[arg-type]
        lambda: DrawnOnce("a", 3),  # type: ignore[arg-type]
        lambda: from_json({"kind": "once", "name": "a"}),
        lambda: from_json({"kind": "once", "name": "a", "event": {"kind": "response", "epsilon": 1.0}}),
    ],
)
def test_malformed_events(make: Callable[[], Event]) -> None:
    with pytest.raises(UnsupportedEvent) as caught:
        make()
    assert caught.value.code == "malformed-event"


# its price ------------------------------------------------------------------------------------------------------------


def law(epsilon: float, k: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Of the answers to the values 0 and 1: two rows of probabilities."""
    rows = np.full((2, k), flip_probability(epsilon, k))
    rows[0, 0] = rows[1, 1] = keep_probability(epsilon, k)
    return rows


@pytest.mark.parametrize("k", [2, 3, 21, 256])
@pytest.mark.parametrize("epsilon", [0.01, 0.7, 5.0, 40.0])
def test_the_renyi_curve_is_the_divergence_of_two_laws(epsilon: float, k: int) -> None:
    """Mironov 2017, definition 3, summed over the answers; both ways round, and the conversion of Canonne, Kamath and
    Steinke at one order at a time.
    """
    p, q = law(epsilon, k)
    for order in (1.1, 1.5, 2, 3.7, 8, 32):
        for one, other in ((p, q), (q, p)):
            divergence = np.logaddexp.reduce(order * np.log(one) + (1 - order) * np.log(other)) / (order - 1)
            for count in (1, 50):
                converted = count * divergence + math.log1p(-1 / order) - math.log(1e-5 * order) / (order - 1)
                found = by("rdp", Repeat(Response(epsilon, k), count), 1e-5, orders=(order,))
                assert found == pytest.approx(max(converted, 0.0), rel=1e-9, abs=1e-9)


def test_a_tiny_epsilon_is_not_rounded_to_none() -> None:
    epsilon, k, delta = 1e-6, 1000, 1e-10
    assert keep_probability(epsilon, k) - flip_probability(epsilon, k) > 9 * delta  # lost at epsilon 0 by one answer
    for event in (Response(epsilon, k), Repeat(Response(epsilon, k), 30)):
        assert all(bound.epsilon > 0 for bound in bounds(event, delta, "replace"))
    orders = np.array([1.1, 2, 4.5, 16])
    found = Response(epsilon, k).renyi(tuple(orders))
    assert found == pytest.approx(orders * epsilon**2 / k, rel=1e-4)  # by its series
    # broken twin: the logarithm of the whole moment, 1 and what is above it
    moments = np.logaddexp(np.logaddexp(orders * epsilon, (1 - orders) * epsilon), math.log(k - 2))
    assert ((moments + math.log(flip_probability(epsilon, k))) / (orders - 1) < found / 2).any()


def test_renyi_losses_of_answers_and_of_noise_add_up() -> None:
    both = Together((Repeat(Response(1.0, 21), 5), Gaussian(2.0)))
    p, q = law(1.0, 21)
    divergence = 5 * math.log((p**4 * q**-3.0).sum()) / 3 + 4 / (2 * 2.0**2)
    assert by("rdp", both, 1e-5, orders=(4,)) == pytest.approx(divergence + math.log(0.75) - math.log(4e-5) / 3)
    names = [bound.accountant for bound in bounds(both, 1e-5, "replace")]
    assert names == ["rdp"]  # neither pure, nor one pair of distributions


COMPOSED = [(0.5, 21, 1), (5.0, 21, 1), (0.7318, 21, 49), (5.0, 21, 64), (0.3, 2, 100), (1.0, 10, 30), (0.05, 3, 784)]


def excess(event: Repeat, delta: float, epsilon: float) -> float:
    """The exact delta at `epsilon`, over the one that was asked for: at most 1 where the bound is true. Without the
    room for rounding that it comes with.
    """
    one, count = event.event, event.count
    assert isinstance(one, Response)
    return (composed_delta(one.epsilon, count, epsilon, one.levels) - 1e-14 * count) / delta


@pytest.mark.one_fast
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
@pytest.mark.parametrize(("epsilon", "k", "count"), COMPOSED)
def test_loss_distributions_are_true_and_tight(epsilon: float, k: int, count: int, delta: float) -> None:
    event = Repeat(Response(epsilon, k), count)
    found = by("pld", event, delta)
    assert excess(event, delta, found) <= 1 + 1e-7
    assert excess(event, delta, found * 0.99 - 1e-3) > 1
    assert by("rdp", event, delta) >= found * 0.999
    assert by("pure", event, delta) == pytest.approx(count * epsilon)


def test_dp_accounting_takes_many_responses_for_one() -> None:
    """Version 0.6: its accountant ignores `count` and repetition of this event. Ours composes distributions; when this
    test fails, the detour can go.
    """
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import PLDAccountant

    def theirs(event: Event, count: int = 1) -> float:
        accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE)
        return float(accountant.compose(to_dp_event(event), count).get_epsilon(1e-5))

    event = Repeat(Response(0.7318, 21), 49)
    fooled, counted, single = theirs(event), theirs(event.event, 49), theirs(event.event)
    assert fooled == counted == single < 0.74
    assert excess(event, 1e-5, fooled) > 1e4  # a check that would have caught it
    assert by("pld", event, 1e-5) == pytest.approx(10.0, rel=0.01)


def test_answers_of_two_kinds_compose() -> None:
    """An image and its label: not more than the sum of both, not less than either."""
    image, label = Repeat(Response(0.7318, 21), 49), Response(2.0, 10)
    both = by("pld", Together((image, label)), 1e-5)
    assert by("pld", image, 1e-5) < both < by("pld", image, 1e-5) + 2.0
    assert by("pure", Together((image, label)), 0) == pytest.approx(49 * 0.7318 + 2.0)
    # exact, by summing over the label: its loss is 2, -2 or 0
    p, q = keep_probability(2.0, 10), flip_probability(2.0, 10)
    parts = zip((p, q, 8 * q), (2.0, -2.0, 0.0), strict=True)
    exact = sum(weight * composed_delta(0.7318, 49, both - loss) for weight, loss in parts)
    assert 0.9e-5 < exact <= 1e-5


@pytest.mark.parametrize(("epsilon", "count"), [(5.0, 784), (5.0, 3072), (1e6, 1), (800.0, 2)])
def test_what_is_too_wide_for_a_float_is_summed(epsilon: float, count: int) -> None:
    (found,) = bounds(Repeat(Response(epsilon, 21), count), 1e-5, "replace")
    assert found.accountant == "pure"
    assert found.epsilon == epsilon * count


@pytest.mark.parametrize("neighbours", ["replace", "zero_out"])
def test_answers_cost_the_same_under_every_relation(neighbours: str) -> None:
    assert best(Response(5.0, 21), 0.0, neighbours).epsilon == 5.0


def test_a_sample_of_answers_is_refused() -> None:
    with pytest.raises(UnsupportedEvent) as caught:
        best(Poisson(0.5, Response(5.0, 21)), 1e-5, "zero_out")
    assert caught.value.code == "sampled-event-not-supported"
    # a sample of everybody is no sample, and a draw that is kept stays one draw in it
    assert best(Repeat(Poisson(1.0, A), 1), 0.0, "zero_out").epsilon == 15.0
