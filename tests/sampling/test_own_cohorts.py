"""Cohorts of a user's own: what they draw is looked at before anybody pays for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sordino
from sordino.errors import ConfigError
from sordino.receipts.folder import RunFolder
from sordino.sampling import COHORTS, Cohort, IndependentCohort, alike, each_once
from tests.laws.cases import CENTRAL

SMALL: dict[str, Any] = {
    "algorithm": {"name": "fedavg"}, "rounds": 1, "partition": {"scheme": "iid", "clients": 4}, "uplink": CENTRAL,
    "privacy": {"epsilon": 8.0, "delta": 1e-3}, "evaluation": {"final": 0},
}  # fmt: skip


@dataclass(frozen=True)
class Drawing(Cohort):
    who: str = "good"

    DRAWS = {  # noqa: RUF012
        "good": np.array([3, 0]),
        "twice": [1, 1],
        "under two numbers": [-1, 3],
        "beyond": [0, 4],
        "not whole": [0.5, 1],
    }

    def draw(self, round_index: int, population: int, key: Any) -> Any:
        return self.DRAWS[self.who]

    def participations(self, rounds: int, population: int) -> Any:
        return alike(rounds, population)

    def expected(self, population: int) -> float:
        return 2.0


def played(who: str, folder: Path) -> Any:
    return sordino.run(SMALL, cohort={"name": f"{__name__}:Drawing", "who": who}, out=folder)


@pytest.mark.parametrize("who", [who for who in Drawing.DRAWS if who != "good"])
def test_a_client_is_drawn_once_under_its_one_number(who: str, tmp_path: Path) -> None:
    """Client -1 of four was client 3, with a budget of its own: two clips under noise for one, called proved."""
    with pytest.raises(ConfigError) as refusal:
        played(who, tmp_path / "run")
    assert refusal.value.code == "own-cohort-draws"
    assert not list(RunFolder(tmp_path / "run").metrics())


def test_numbers_of_numpy_are_clients(tmp_path: Path) -> None:
    assert played("good", tmp_path / "run").metrics[-1].answered == 2


@pytest.mark.parametrize("name", sorted(COHORTS))
def test_no_draw_of_the_library_is_changed(name: str) -> None:
    options = {"size": 3} if name in ("round_robin", "random") else {}
    options |= {"fraction": 0.3} if name == "round_robin_peer" else {"rate": 0.3} if name == "poisson" else {}
    cohort = COHORTS[name](**options)
    for t in range(5):
        drawn = cohort.draw(t, 10, 7)
        assert each_once(drawn, 10) == drawn
    assert isinstance(cohort, IndependentCohort) == (name == "poisson")
