"""What a plan accepts, a run computes: nothing is refused once a folder is there and budget is reserved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sordino.errors import SordinoError
from sordino.runs.run import start
from tests.laws.cases import BY_NAME, CENTRAL

CLIP: dict[str, Any] = {"name": "clip", "radius": 1.0}
UPLINKS: dict[str, dict[str, Any]] = {
    "noise on the sum": CENTRAL,
    "noise on the sum of masked uploads": {**CENTRAL, "client": [CLIP, "secagg"]},
    "noise at each client": {"client": [CLIP, "noise"]},
    "masks": {"client": ["weigh", "secagg"]},
    "noise on each value of the mean": {"client": ["clip_coordinates"], "server": ["coordinate_laplace"]},
}


def first_round(case: str, uplink: str, place: Path, budget: bool = True) -> SordinoError | None:
    """The refusal of a run of one round, if there is one; without a budget where nothing would be paid from it."""
    changes = {"rounds": 1, "uplink": UPLINKS[uplink], "cohort": {"name": "everyone"}}
    try:
        start(BY_NAME[case].experiment(**changes, privacy={"epsilon": 4.0, "delta": 1e-4} if budget else {}), place)
    except SordinoError as error:
        without = budget and error.code == "budget-without-mechanism"
        return first_round(case, uplink, place, budget=False) if without else error
    return None


@pytest.mark.slow
@pytest.mark.parametrize("case", BY_NAME)
def test_a_run_is_refused_before_it_has_a_folder(case: str, tmp_path: Path) -> None:
    for uplink in UPLINKS:
        refused = first_round(case, uplink, tmp_path / uplink)
        assert refused is None or not (tmp_path / uplink).exists(), (uplink, refused.code)


@pytest.mark.parametrize("uplink", ["noise on the sum", "masks", "noise on each value of the mean"])
def test_a_generator_of_single_uploads_is_refused_before_a_folder(uplink: str, tmp_path: Path) -> None:
    refused = first_round("fedgen", uplink, tmp_path / "run")
    assert refused is not None
    assert refused.code == "aggregate-only"
    assert not (tmp_path / "run").exists()
