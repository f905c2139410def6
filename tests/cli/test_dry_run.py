"""`run --dry-run` and `--verbose`: what a run would do, and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.command_line import Said

SMALL = ("rounds=3", "partition=iid", "partition.clients=3", "evaluation.final=1")


@pytest.mark.slow
def test_a_dry_run_says_what_a_run_would_do_and_writes_nothing(
    cli: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = tmp_path / "shared.sqlite"
    assert cli("run", *SMALL, f"privacy.ledger={ledger}", "--out", "first", "-q").code == 0
    caplog.clear()  # another test may have asked for the lines of every run
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with caplog.at_level("INFO", logger="sordino"):
        said = cli("run", *SMALL, f"privacy.ledger={ledger}", "--out", "second", "--dry-run", "--json")
    told = json.loads(said.out)
    assert (said.code, told["folder"], told["answer"]["rounds"]) == (0, "second", 3)
    assert {"second/metrics.jsonl", "second/privacy.json", str(ledger)} <= set(told["would_write"])
    assert any(line.startswith("executor pooled: ") for line in told["decided"])
    assert [record.message for record in caplog.records] == told["decided"]  # what -v and Python's logging say
    assert cli("run", *SMALL, "--out", "first", "--dry-run").code == 6  # as a run would be refused
    assert cli("run", *SMALL, "algorithm.clip=-1", "--dry-run").code == 2
    assert "would write" in cli("run", *SMALL, "--dry-run").out
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    files = set(json.loads(cli("run", *SMALL, "--out", "third", "--dry-run", "--json").out)["would_write"])
    assert cli("run", *SMALL, "--out", "third", "-q").code == 0
    assert {f"third/{path.name}" for path in (tmp_path / "third").iterdir()} - {
        "third/.lock",
        "third/ledger.sqlite-lock",
    } == files


def test_verbose_says_why_on_standard_error(cli: Callable[..., Said], tmp_path: Path) -> None:
    said = cli("run", *SMALL, "--out", tmp_path / "run", "-q", "-v")
    assert said.out == ""
    assert "sordino.runs.run: executor pooled: the algorithm reads examples behind noise" in said.err
    assert cli("resume", tmp_path / "run", "-q").err == ""  # as long as nobody asks
