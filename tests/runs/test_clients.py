"""Processes that help to train the clients of one place: how many, and for which runs; and whose rows they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from sordino import config
from sordino.errors import SordinoError
from sordino.partition import Scheme
from sordino.runs import simulation
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from tests.runs.test_ranks import forked


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


class Anyhow(Scheme):
    """It deals the rows in another way in every process, as a copy of the files of another day does."""

    reads_labels: ClassVar[bool] = False

    def assign(self, labels: Any, group: Any, rng: Any) -> Any:
        return np.array_split(np.random.default_rng().permutation(len(labels)), 4)


def dealt_anyhow(executor: str, **engine: Any) -> config.Experiment:
    return config.validate(
        {
            "rounds": 1,
            "data": {"source": "digits", "train": 80, "test": 40},
            "partition": {"scheme": "tests.runs.test_clients:Anyhow"},
            "algorithm": {"name": "gaussian_gdp", "clip": 1.0},
            "privacy": {"epsilon": 8.0, "delta": 1e-3, "noise": "system"},
            "engine": {"executor": executor, **engine},
        }
    )


@pytest.mark.usefixtures("quick_workers")
def test_a_client_process_trains_on_the_rows_whose_digest_is_in_the_ledger(tmp_path: Path) -> None:
    """A row that two processes give to two clients would lose twice the epsilon that is printed."""
    start(dealt_anyhow("loop"), tmp_path / "one")  # the control: in one process each row is one client's
    with pytest.raises(SordinoError) as refusal:
        start(dealt_anyhow("processes", workers=2), tmp_path / "two")
    assert "other rows than the run began with" in str(refusal.value)
    assert not (tmp_path / "two" / "privacy.json").exists()


@pytest.mark.slow
def test_so_does_a_rank(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(dealt_anyhow("ranks").toml())
    done = forked(2, "run", tmp_path / "e.toml", "--out", tmp_path / "run")
    assert done.returncode
    assert "found other rows than the run began with" in done.stderr
    assert not (tmp_path / "run" / "privacy.json").exists()
