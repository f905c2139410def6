"""What a plan accepts, a run computes: nothing is refused once a folder is there and budget is reserved."""

from __future__ import annotations

import itertools
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
READERS: dict[str, dict[str, Any]] = {
    "noise on gradients": {"name": "noisy_gradient", "clip": 1.0},
    "noise on cells": {"name": "cells", "clip": 1.0},
    "published noise on gradients": {"name": "median_clip"},
    "answers": {"name": "responses"},
}
CHANGES: dict[str, dict[str, Any]] = {
    **{name: {"uplink": uplink} for name, uplink in UPLINKS.items()},
    **{name: {"read": reader} for name, reader in READERS.items()},
}


def refusals(case: str, change: str, place: Path) -> list[str]:
    """Codes of the refusals of a run of one round, with a budget or without, in batches or in one, until it is accepted
    or leaves a folder; none: it was accepted."""
    found = []
    for privacy, batches in itertools.product(({"epsilon": 4.0, "delta": 1e-4}, {}), ({}, {"batch_size": "full"})):
        algorithm = {**BY_NAME[case].algorithm, **batches}
        table = {"rounds": 1, "cohort": {"name": "everyone"}, "algorithm": algorithm, **CHANGES[change]}
        try:
            start(BY_NAME[case].experiment(**table, privacy=privacy), place)
        except SordinoError as error:
            found.append(error.code)
            if place.exists():
                break
        else:
            return []
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", BY_NAME)
def test_a_run_is_refused_before_it_has_a_folder(case: str, tmp_path: Path) -> None:
    for change in CHANGES:
        refused = refusals(case, change, tmp_path / change)
        assert not refused or not (tmp_path / change).exists(), (change, refused)


@pytest.mark.parametrize(
    ("case", "change", "code"),
    [
        ("fedgen", "noise on the sum", "aggregate-only"),
        ("fedgen", "masks", "aggregate-only"),
        ("fedgen", "noise on each value of the mean", "aggregate-only"),
        ("fedgen", "noise on gradients", "reader-does-not-give"),
        ("vhl", "noise on gradients", "reader-does-not-give"),
        ("fedavg_prototypes", "noise on gradients", "reader-does-not-give"),
        ("slaug_fl_rigorous_b", "published noise on gradients", "reader-does-not-give"),
        ("udp_discount", "published noise on gradients", "reader-does-not-give"),
    ],
)
def test_what_no_round_could_compute_is_refused_before_a_folder(
    case: str, change: str, code: str, tmp_path: Path
) -> None:
    assert code in refusals(case, change, tmp_path / "run")
    assert not (tmp_path / "run").exists()
