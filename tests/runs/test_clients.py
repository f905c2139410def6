"""Processes that help to train the clients of one place: how many, and for which runs."""

from __future__ import annotations

from typing import Any

import pytest

from sordino import config
from sordino.runs import simulation
from sordino.runs.simulation import simulated


@pytest.mark.parametrize(("people", "cores", "many"), [(20, 2, 8), (5, 2, 5)])
def test_no_more_help_than_a_round_has_clients_and_the_machine_cores(
    people: int, cores: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand forks for twenty clients would only take the machine's memory."""
    monkeypatch.setattr(simulation, "cores", lambda: cores)
    made = config.load(None, [f"partition.clients={people}", "engine.workers=1000", "algorithm=fedavg"])
    found = simulation.forks_of(simulated(made).setup)
    assert found is not None
    assert found._many == many


def helped(**tables: Any) -> bool:
    tables = {"privacy": {}, "algorithm": {"name": "fedavg"}, "engine": {"workers": 3}} | tables
    return simulation.forks_of(simulated(config.validate(tables)).setup) is not None


def test_runs_that_are_helped() -> None:
    assert helped()
    assert not helped(engine={"workers": 1})
    assert not helped(privacy={"noise": "system"})  # what a dead fork owes would be noised a second time
    assert not helped(engine={"workers": 3, "executor": "processes"})
    assert not helped(model={"name": "tests.fast.test_threads:Graph"})  # somebody's own
