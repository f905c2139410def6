"""Events and accountants by their short names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sordino.accounting.accountants import epsilon_by
from sordino.accounting.events import (
    Event,
    Gaussian,
    Poisson,
    Repeat,
)

PRV = json.loads((Path(__file__).parents[1] / "golden" / "prv.json").read_text())["cases"]


slow = pytest.mark.slow


def by(name: str, event: Event, delta: float, neighbours: str = "zero_out") -> float:
    return epsilon_by(name, event, delta, neighbours)


def sampled(row: dict[str, float]) -> Repeat:
    return Repeat(Poisson(row["rate"], Gaussian(row["noise_multiplier"])), int(row["steps"]))
