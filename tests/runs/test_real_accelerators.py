"""Runs on a real GPU: the same as on the processor but for rounding, and to the byte after stops.

The pretended accelerator is in no process of these tests: torch takes it for its only one, and differentiates on no
other.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sordino.device import on
from sordino.runs.run import start
from tests.laws.cases import BY_NAME, CASES
from tests.laws.test_executors import CLOSE, apart, paid
from tests.laws.traces import finished, interrupted, trace
from tests.privacy.readers.test_missing_example import HOSTILE, Real, moved
from tests.runs.test_ranks import torchrun

# a tiny ResNet with BatchNorm: on the processor, inputs that move by 1e-7 of themselves move its model by 4% of its way
TOUCHY = {"fedavg_batch_norm", "scaffold_batch_norm"}
ENCRYPTED = {"paillier_fl": "gmpy2", "lattice_fl": "tenseal"}
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator")]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_it_is_the_same_but_for_rounding(case: Any, tmp_path: Path) -> None:
    if case.name in ENCRYPTED:
        pytest.importorskip(ENCRYPTED[case.name])
    engine = {"executor": "auto", "workers": 1, "precision": "fp32"}
    here = finished(case.experiment(engine=engine), tmp_path / "here")
    away = finished(case.experiment(engine={**engine, "device": "cuda"}), tmp_path / "away")
    assert [paid(entry) for entry in here.ledger] == [paid(entry) for entry in away.ledger]
    if case.name not in TOUCHY:
        assert apart(tmp_path / "here", tmp_path / "away") < CLOSE


# not slaug_fl, which came out another way: the same bytes again are not promised for what its server trains on a GPU
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "gaussian_gdp", "dp_prox", "cuag_pfl_published"])
def test_a_run_that_was_stopped_is_the_same_to_the_byte(name: str, tmp_path: Path) -> None:
    there = BY_NAME[name].experiment(engine={"executor": "auto", "workers": 1, "device": "cuda"})
    assert finished(there, tmp_path / "whole") == interrupted(there, tmp_path / "stopped")


@pytest.mark.parametrize("executor", ["ranks", "processes"])
@pytest.mark.parametrize("name", ["scaffold", "gaussian_gdp", "udp"])
def test_two_processes_train_the_same_but_for_rounding(name: str, executor: str, tmp_path: Path) -> None:
    """Two processes: by nccl where there are two accelerators, by gloo where they share one."""
    case, engine = BY_NAME[name], {"executor": executor, "device": "cuda", "precision": "fp32"}
    here = finished(case.experiment(), tmp_path / "here")
    if executor == "processes":
        start(case.experiment(engine={**engine, "workers": 2}), tmp_path / "away")
    else:
        (tmp_path / "e.toml").write_text(case.experiment(engine=engine).toml())
        done = torchrun(2, "run", tmp_path / "e.toml", "--out", tmp_path / "away")
        assert done.returncode == 0, done.stderr
    assert [paid(entry) for entry in here.ledger] == [paid(entry) for entry in trace(tmp_path / "away").ledger]
    assert apart(tmp_path / "here", tmp_path / "away") < CLOSE


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_one_example_less_moves_a_sum_by_its_clip(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a program that lets its GPU multiply with 10 bits."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", precision == "high")
    with on("cuda"):
        assert max(moved(name, Real()) for name in HOSTILE) <= 1 + 1e-4
        assert max(moved(name, Real(name="counter")) for name in HOSTILE) > 1.1
