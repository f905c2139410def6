"""The language of events: JSON, grouping, and what is refused."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.accounting.events import (
    Event,
    Gaussian,
    Laplace,
    NoAccess,
    NonPrivate,
    Poisson,
    Repeat,
    Together,
    compact,
    from_json,
    leaves,
    to_json,
)
from sordino.errors import InvalidBudget, UnsupportedEvent

_noise = st.floats(0.0, 1e6, allow_subnormal=False)
_events = st.recursive(
    st.one_of(
        st.builds(Gaussian, _noise),
        st.builds(Laplace, _noise),
        st.builds(NonPrivate, st.text(max_size=5)),
        st.just(NoAccess()),
    ),
    lambda inner: st.one_of(
        st.builds(Poisson, st.floats(1e-6, 1.0), inner),
        st.builds(Repeat, inner, st.integers(1, 9)),
        st.builds(Together, st.lists(inner, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)


@given(_events)
@settings(max_examples=50, deadline=None)
def test_json_returns_an_equal_event(event: Event) -> None:
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


@given(st.lists(_events, max_size=4))
@settings(max_examples=50, deadline=None)
def test_compact_keeps_every_leaf(events: list[Event]) -> None:
    assert leaves(compact(events)) == leaves(Together(tuple(events)))


def test_counts_multiply() -> None:
    nested = Repeat(Together((Gaussian(1.0), Repeat(Gaussian(1), 2), Laplace(1.0), NoAccess())), 5)
    assert leaves(nested) == {Gaussian(1.0): 15, Laplace(1.0): 5}
    assert compact([nested]) == Together((Repeat(Gaussian(1.0), 15), Repeat(Laplace(1.0), 5)))
    assert compact([]) == NoAccess()


def test_equal_events_have_equal_json() -> None:
    assert json.dumps(to_json(Gaussian(1))) == json.dumps(to_json(Gaussian(1.0)))
    assert json.dumps(to_json(Gaussian(-0.0))) == json.dumps(to_json(Gaussian(0.0)))


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, True, "1", None])
def test_bad_numbers_are_refused(bad: object) -> None:
    makers: list[Callable[[float], Event]] = [Gaussian, Laplace, lambda v: Poisson(v, Gaussian(1))]
    for make in makers:
        with pytest.raises(InvalidBudget):
            make(bad)  # type: ignore[arg-type]
    for field, kind in (("noise_multiplier", "gaussian"), ("scale", "laplace")):
        with pytest.raises(InvalidBudget):
            from_json({"kind": kind, field: bad})


def test_rates_and_counts_have_ranges() -> None:
    for rate in (0.0, 1.01):
        with pytest.raises(InvalidBudget) as caught:
            Poisson(rate, Gaussian(1))
        assert caught.value.code == "rate-out-of-range"
    for count in (0, -3, 2.0, True, math.nan, "1"):
        with pytest.raises(InvalidBudget) as caught:
            Repeat(Gaussian(1), count)  # type: ignore[arg-type]
        assert caught.value.code == "count-not-positive"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ({"kind": "os.system", "event": "true"}, "unknown-event-kind"),
        ({"kind": ["gaussian"]}, "unknown-event-kind"),
        ({}, "unknown-event-kind"),
        ("gaussian", "malformed-event"),
        ({"kind": "gaussian"}, "malformed-event"),
        ({"kind": "gaussian", "noise_multiplier": 1.0, "scale": 1.0}, "malformed-event"),
        ({"kind": "together", "events": {"kind": "nothing"}}, "malformed-event"),
        ({"kind": "repeat", "event": 3, "count": 1}, "malformed-event"),
        ({"kind": "non_private", "reason": 3}, "malformed-event"),
    ],
)
def test_only_known_kinds_are_read(data: object, code: str) -> None:
    with pytest.raises(UnsupportedEvent) as caught:
        from_json(data)
    assert caught.value.code == code


def test_events_need_no_heavy_import() -> None:
    program = (
        "import sys, sordino.accounting.events, sordino.accounting.accountants, sordino.accounting.accountants;"
        "print({'torch', 'scipy', 'dp_accounting'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"
