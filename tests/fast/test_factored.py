"""Matrices that are not formed: what can be said of them without forming them, and what must not be overlooked."""

from __future__ import annotations

import math

import pytest
import torch

from sordino.fast.factored import ClientRows, Lazy, Moved, Product, Scaled, Span, Zero

ROWS, X = torch.randn(3, 4), torch.randn(2, 4)
EVERY_KIND: list[Lazy] = [
    Zero(X),
    Product(torch.randn(3, 2), ROWS),
    Span(ClientRows(ROWS), torch.randn(3, 2)),
    Scaled(X, 0.5),
    Moved(X, Scaled(X, 0.5)),
]


@pytest.mark.parametrize("value", EVERY_KIND, ids=lambda value: type(value).__name__)
def test_where_it_lies_and_what_it_is_are_asked_without_forming_it(
    value: Lazy, monkeypatch: pytest.MonkeyPatch
) -> None:
    formed = value.dense()
    monkeypatch.setattr(type(value), "dense", lambda self: pytest.fail("it was formed"))
    assert (value.device, value.dtype, value.shape) == (formed.device, formed.dtype, formed.shape)
    assert (value.numel(), value.is_floating_point()) == (8, True)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_seen_in_every_part(bad: float) -> None:
    spoilt = torch.ones(3, 2)
    spoilt[1, 1] = bad
    rows = torch.ones(3, 4)
    rows[2, 0] = bad
    good = torch.ones(3, 2)
    assert Span(ClientRows(ROWS), good).finite()
    assert not Span(ClientRows(ROWS), spoilt).finite()
    assert not Span(ClientRows(rows), good).finite()
    assert Scaled(good, 0.5).finite()
    assert not Scaled(spoilt, 0.5).finite()
    assert not Scaled(good, bad).finite()
    assert not Scaled(torch.full((2,), 3e38), 2.0).finite()  # finite numbers, whose product is not
