"""Runs that reports are written of."""

from __future__ import annotations

from pathlib import Path

import pytest

import sordino
from sordino import config
from sordino.runs.simulation import Simulation, simulated
from tests.report.prepared import SETTINGS


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prepared") / "run"
    sordino.run(None, *SETTINGS, out=out)
    return out


@pytest.fixture(scope="session")
def parts(folder: Path) -> Simulation:
    return simulated(config.load(folder / "experiment.toml"))
