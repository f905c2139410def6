"""What `auto` chooses: by rules, once per run, and the same again when the run goes on elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sordino import config, fast
from sordino.cli import bench
from sordino.engine import executor
from sordino.runs.run import resume, start
from sordino.runs.simulation import simulated
from tests.laws.traces import differences, finished, killed_at, trace


def made(**engine: Any) -> config.Experiment:
    return config.validate(
        {
            "rounds": 3,
            "partition": {"scheme": "iid", "clients": 3},
            "model": {"name": "cnn_norm"},  # convolutions, so that precision matters
            "algorithm": {"name": "fedavg", "lr": 0.1, "local_steps": 2, "batch_size": 32},
            "privacy": {},
            "engine": engine,
        }
    )


@pytest.mark.parametrize("units", [True, False])
def test_auto_follows_the_processor_and_is_written_down(
    units: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "bf16_instructions", lambda: units)
    start(made(), tmp_path / "run")
    engine = config.load(tmp_path / "run" / "experiment.toml").engine
    assert (engine.executor, engine.precision) == ("stack", "bf16" if units else "fp32")
    wanted = torch.bfloat16 if units else torch.float32
    assert simulated(config.load(tmp_path / "run" / "experiment.toml")).setup.task.precision == wanted  # type: ignore[attr-defined]


def test_what_was_asked_for_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for units in (True, False):
        monkeypatch.setattr(executor, "bf16_instructions", lambda units=units: units)
        for noisy in (True, False):
            assert executor.decide("loop", "fp32", noisy) == ("loop", "fp32")
            assert executor.decide("processes", "bf16", noisy) == ("processes", "bf16")
    assert executor.decide("auto", "fp32", noisy=True)[0] == "pooled"  # at the same weights until the first step


@pytest.mark.slow
def test_a_run_goes_on_in_its_own_precision_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "bf16_instructions", lambda: True)
    whole = finished(made(), tmp_path / "whole")
    with killed_at("published", 0):
        start(made(), tmp_path / "run")
    monkeypatch.setattr(executor, "bf16_instructions", lambda: False)
    resume(tmp_path / "run")
    assert differences(whole, trace(tmp_path / "run")) == []
    # control: started there, it would have been another run
    assert "model" in differences(whole, finished(made(), tmp_path / "other"))


@pytest.mark.slow
def test_the_bench_races_what_auto_chooses_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "REPEATS", 1)
    rows = bench.measure()
    libraries = [("MKL", "oneDNN")] * (fast.onednn() is not None)
    races = [("fp32", "bf16"), *libraries, ("fp32", "bf16"), ("alone", "pooled"), ("alone", "stack")]
    assert [(row.first[0], row.second[0]) for row in rows] == races
    assert all(row.first[1] > 0 and row.second[1] > 0 for row in rows)
    assert bench.BenchResult("x", ("a", 2.0), ("b", 1.0)).ratio == 2.0
