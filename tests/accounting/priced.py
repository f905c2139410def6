"""Events and accountants by their short names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sordino.accounting.accountants import epsilon_by
from sordino.accounting.events import (
    DiscreteGaussian,
    Event,
    Gaussian,
    Laplace,
    NonPrivate,
    Poisson,
    Repeat,
    Response,
    Together,
)

PRV = json.loads((Path(__file__).parents[1] / "golden" / "prv.json").read_text())["cases"]


slow = pytest.mark.slow


def by(name: str, event: Event, delta: float, neighbours: str = "zero_out") -> float:
    return epsilon_by(name, event, delta, neighbours)


def sampled(row: dict[str, float]) -> Repeat:
    return Repeat(Poisson(row["rate"], Gaussian(row["noise_multiplier"])), int(row["steps"]))


def to_dp_event(event: Event) -> Any:
    """The same event for dp-accounting."""
    from dp_accounting import dp_event

    match event:
        case Gaussian(multiplier) | DiscreteGaussian(multiplier):
            return dp_event.GaussianDpEvent(multiplier)
        case Laplace(scale):
            return dp_event.LaplaceDpEvent(scale)
        case Response():
            return dp_event.RandomizedResponseDpEvent(event.replaced, event.levels)
        case Poisson(rate, inner):
            return dp_event.PoissonSampledDpEvent(rate, to_dp_event(inner))
        case Repeat(inner, count):
            return dp_event.SelfComposedDpEvent(to_dp_event(inner), count)
        case Together(parts):
            return dp_event.ComposedDpEvent([to_dp_event(part) for part in parts])
        case NonPrivate():
            return dp_event.NonPrivateDpEvent()
    return dp_event.NoOpDpEvent()
