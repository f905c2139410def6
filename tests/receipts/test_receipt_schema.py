"""The published shape of privacy.json. (Every algorithm's receipt is held against it in tests/laws/test_receipts.py.)"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from sordino.accounting import events
from sordino.receipts import Receipt, receipt_schema
from tests.helpers.command_line import Said

SHAPE = Draft202012Validator(receipt_schema())
EVENT = events.Together(
    (
        events.Repeat(events.Poisson(0.1, events.Gaussian(1.0)), 3),
        events.DrawnOnce("drawn", events.Response(1.0, 4)),
        events.Laplace(2.0),
        events.DiscreteGaussian(3.0),
        events.NonPrivate("raw"),
        events.NoAccess(),
    )
)
ROW: dict[str, Any] = {
    "unit": "example", "neighbours": "replace", "adversary": "server", "epsilon": "inf", "delta": 1e-5, "accountant": "gdp",
    "accountants": {"gdp": "inf"}, "status": "proved", "because": [], "releases": 3, "event": events.to_json(EVENT),
}  # fmt: skip
TOLD: dict[str, Any] = {
    "format": 1, "run": "r", "config": "c", "simulated": True, "rounds": 1, "clients": 1, "guarantees": [ROW], "budget": None,
    "assumptions": [], "ledger_head": "00",
}  # fmt: skip

BROKEN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a field that nobody knows": lambda told: told.update(seal="approved"),
    "a field of a row that nobody knows": lambda told: told["guarantees"][0].update(proved=True),
    "a field that is missing": lambda told: told.pop("simulated"),
    "a number as text": lambda told: told["guarantees"][0].update(epsilon="0.1"),
    "an epsilon below 0": lambda told: told["guarantees"][0].update(epsilon=-1.0),
    "a delta below 0": lambda told: told["guarantees"][0].update(delta=-1e-5),
    "an unknown status": lambda told: told["guarantees"][0].update(status="certain"),
    "an unknown event": lambda told: told["guarantees"][0].update(event={"kind": "magic"}),
    "an event inside that lacks a field": lambda told: told["guarantees"][0]["event"]["events"][0]["event"].pop("rate"),
    "a null that says nothing": lambda told: told["guarantees"][0].update(nominal_epsilon=None),
    "another version": lambda told: told.update(format=3),
}


def test_every_kind_of_event_is_of_the_shape_and_is_read() -> None:
    Draft202012Validator.check_schema(receipt_schema())
    assert not list(SHAPE.iter_errors(TOLD))
    assert Receipt.model_validate_json(json.dumps(TOLD)).guarantees[0].event == EVENT


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_receipt_is_not(name: str) -> None:
    told = json.loads(json.dumps(TOLD))
    BROKEN[name](told)
    assert list(SHAPE.iter_errors(told))
    if not name.endswith("nobody knows"):  # a reader passes over those
        with pytest.raises(ValidationError):
            Receipt.model_validate_json(json.dumps(told))


def test_every_field_has_a_meaning() -> None:
    schema = receipt_schema()
    shapes = {"Receipt": schema, **{name: shape for name, shape in schema["$defs"].items() if name != "Event"}}
    assert all(vars(kind)["meaning"] for kind in events.KINDS.values())

    def described(part: Any) -> Iterator[bool]:
        for kind in part.get("properties", {}).values():
            yield bool(kind["description"].strip())

    assert all(all(described(shape)) for shape in shapes.values())


def test_the_verb_prints_it(cli: Callable[..., Said]) -> None:
    assert json.loads(cli("privacy", "schema").out) == receipt_schema()
