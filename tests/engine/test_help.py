"""Who is helped by further processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sordino import config
from sordino.engine.forks import Forks
from sordino.runs.clients import forks_of
from sordino.runs.simulation import simulated


def many(**tables: Any) -> bool:
    tables = {"privacy": {}, "algorithm": {"name": "fedavg"}, "engine": {"workers": 3}} | tables
    return forks_of(simulated(config.validate(tables)).setup) is not None


def test_who_is_helped() -> None:
    assert many()
    assert not many(engine={"workers": 1})
    assert not many(privacy={"noise": "system"})  # what a dead fork owes would be noised a second time
    assert not many(engine={"workers": 3, "executor": "processes"})
    assert not many(model={"name": "tests.tasks.test_hands:Graph"})  # somebody's own


def test_nobody_is_forked_beside_torchs_own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not Forks(3).begin(lambda ends: None)
