"""Runs between sites on a road of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sordino.config import Experiment
from tests.helpers.scripted_messages import Play


@pytest.fixture
def playing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Experiment], Play]:
    return lambda experiment: Play(experiment, tmp_path / "between", monkeypatch)
