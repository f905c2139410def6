"""A new project runs as it is, and `list` sees its runs."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from sordino.accounting.statement import Promised
from sordino.cli.running import new
from sordino.errors import RunError
from sordino.runs.listing import listed, promise


@pytest.mark.slow
def test_a_new_project_runs_and_is_listed(tmp_path: Path) -> None:
    new(tmp_path / "mine")

    def sordino(*words: str) -> str:
        command = [sys.executable, "-m", "sordino", *words]
        return subprocess.run(command, cwd=tmp_path / "mine", capture_output=True, text=True, check=True).stdout

    sordino("run", "experiment.toml", "rounds=2", "-q")
    (entry,) = json.loads(sordino("list", "--json"))
    assert entry["algorithm"] == "gaussian_gdp"
    assert (entry["rounds"], entry["planned"]) == (2, 2)
    assert entry["state"] == "finished"
    assert "per example (replace), against the server" in entry["promise"]
    assert 0 < entry["accuracy"] < 1
    assert entry["guarantee"]["unit"] == "example"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("mine")
    with pytest.raises(RunError) as refused:
        new(tmp_path)
    assert refused.value.code == "file-exists"
    assert (tmp_path / "task.py").read_text() == "mine"
    assert not (tmp_path / "experiment.toml").exists()


def test_damaged_and_unfinished_runs_are_listed_as_such(tmp_path: Path) -> None:
    for name, text in (("a", "rounds = 3\n[algorithm]\nname = 'fedavg'\n"), ("b", "not toml")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "experiment.toml").write_text(text)
        told = {"format": 1, "run": "r", "config": "c", "sordino": "0"}
        (tmp_path / name / "environment.json").write_text(json.dumps(told))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "experiment.toml").write_text("rounds = 3\n")
    states = [("a", "resumable"), ("b", "damaged"), ("c", "damaged")]
    assert [(e.folder, e.state) for e in listed(tmp_path)] == states
    with pytest.raises(RunError) as refused:
        listed(tmp_path / "nowhere")
    assert refused.value.code == "no-folder"


def test_a_promise_names_its_subject() -> None:
    row = Promised(
        unit="client",
        neighbours="replace",
        adversary="public",
        epsilon=2.0,
        delta=1e-5,
        status="proved",
        because=(),
    )
    raw = row.beside(adversary="server", epsilon=math.inf, status="none")
    assert (
        promise([raw, row], False)
        == "ε 2 per client (replace), against the public, δ 1e-05, proved; no epsilon covers scores"
    )
    assert promise([raw], False) == "nothing promised"
