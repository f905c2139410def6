"""`sordino watch` on runs that go on, ended, were stopped and were killed: it says so, and touches nothing."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sordino import config
from sordino.cli import looking, main
from sordino.cli.looking import connected, line
from sordino.metrics import Scores
from sordino.receipts import folder
from sordino.receipts.folder import RunFolder
from sordino.receipts.verify import verify
from sordino.runs.listing import RunStatus, SiteNow, WatchStart, beginning, look, promise, rate
from sordino.runs.run import start
from tests.laws import warm

SMALL = ("rounds=3", "partition=iid", "partition.clients=3", "evaluation.final=1")
LONG = ("rounds=100000", "partition=iid", "partition.clients=2", "algorithm=fedavg", "evaluation.every=50")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("watch") / "run"
    start(config.load(None, SMALL), run)
    return run


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[warm.Process, Path]]:
    """A run in a process of its own that would go on for long."""
    run = tmp_path / "live"
    process = warm.Process([sys.executable, "-m", "sordino", "run", *LONG, "--out", str(run), "-q"])
    wait_for(lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size > 0)
    yield process, run
    process.kill()
    process.wait()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def watch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sordino", "watch", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return call


# a run that goes on, is stopped, is killed ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_live_run_is_followed_until_it_is_stopped(live: tuple[warm.Process, Path]) -> None:
    process, run = live
    command = [sys.executable, "-m", "sordino", "watch", str(run)]
    watcher = warm.Process(command, stdout=subprocess.PIPE, env={"COLUMNS": "40"})
    assert watcher.stdout is not None
    first = watcher.stdout.readline().decode()
    assert " running " in first
    assert "/100000 " in first
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    rest = watcher.stdout.read().decode().splitlines()
    assert watcher.wait() == 130
    rounds = len((run / "metrics.jsonl").read_text().splitlines())
    assert rest[-2].startswith(f"round {rounds}/100000  stopped")
    assert rest[-1] == f"Continue with: sordino resume {run}"
    assert "\x1b" not in first + "".join(rest)


def test_a_killed_run_is_said_to_be_killed(
    live: tuple[warm.Process, Path], watch: Callable[..., tuple[int, str, str]]
) -> None:
    process, run = live
    assert look(RunFolder(run)).state == "running"
    process.kill()
    process.wait()
    wait_for(lambda: not RunFolder(run).in_use)
    code, out, _ = watch(run)
    assert code == 1
    assert "  killed" in out
    assert f"sordino resume {run}" in out
    assert watch(run, "--once")[0] == 0  # to say how it stands is no failure


def test_watching_is_in_nobodys_way(live: tuple[warm.Process, Path]) -> None:
    """What `resume` needs is free the whole time: while it is looked at, an exclusive lock can be had at once."""
    process, run = live
    process.kill()
    process.wait()
    wait_for(lambda: not RunFolder(run).in_use)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with open(run / ".lock") as file:
        for _ in range(20):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert look(RunFolder(run)).state == "running"
            fcntl.flock(file, fcntl.LOCK_UN)
            assert look(RunFolder(run)).state == "killed"
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_the_ledger_of_a_run_that_goes_on_is_never_opened(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And that of one that ended is not written to: a copy says whether it knows the receipt."""

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr("sordino.ledger.storage.turnstile", refused)
    monkeypatch.setattr("sordino.ledger.storage.open_database", refused)
    monkeypatch.setattr("sordino.receipts.receipt.opened", refused)
    assert look(RunFolder(finished)).state == "finished"
    monkeypatch.setattr("sqlite3.connect", refused)
    monkeypatch.setattr(RunFolder, "in_use", True)
    assert look(RunFolder(finished)).state == "running"


# a run that ended -----------------------------------------------------------------------------------------------------


def test_a_finished_run_ends_at_once(finished: Path, watch: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = watch(finished)
    rows = [json.loads(row) for row in (finished / "metrics.jsonl").read_text().splitlines()]
    assert (code, err) == (0, "")
    assert out.startswith(f"round 3/3  finished  accuracy {rows[-1]['accuracy']:.2%}  ")
    assert out.endswith(f"{promise(RunFolder(finished).receipt().guarantees, True)}\n")
    assert "ε 8 per example" in out
    assert out.count("\n") == 1
    assert watch(finished, "--once") == (0, out, "")
    found = json.loads(watch(finished, "--json")[1])
    assert found["state"] == "finished"
    assert found["bytes"] == sum(row["bytes_up"] + row["bytes_down"] for row in rows)
    assert found["score"]["accuracy"] == rows[-1]["accuracy"]
    assert verify(finished) == []


def test_an_old_receipt_does_not_hide_a_kill(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    text = (run / "experiment.toml").read_text().replace("rounds = 3", "rounds = 9")
    (run / "experiment.toml").write_text(text)
    assert look(RunFolder(run)).state == "stopped"  # three of nine rounds, and a receipt of three
    row = (run / "metrics.jsonl").read_text().splitlines()[-1]
    with open(run / "metrics.jsonl", "a") as file:
        file.write(row + "\n")
    assert look(RunFolder(run)).state == "killed"  # it went on after that receipt
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"round": 5, "accu')  # cut short
    assert look(RunFolder(run)).round == 4


def test_a_spent_budget_is_an_end(finished: Path, tmp_path: Path, watch: Callable[..., tuple[int, str, str]]) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / "experiment.toml").write_text((run / "experiment.toml").read_text().replace("rounds = 3", "rounds = 9"))
    (run / "log.txt").write_text("stopped before round 4: the budget is spent before round 3\n")
    code, out, _ = watch(run)
    assert code == 0
    assert "round 3/9  budget spent" in out


def test_what_is_no_run_is_refused(tmp_path: Path, watch: Callable[..., tuple[int, str, str]]) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        code, out, err = watch(place, "--once")
        assert (code, out) == (6, "")
        assert "not-a-run" in err
        assert "Traceback" not in err


# the lock -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", ["linux", "elsewhere"])
def test_a_held_lock_is_seen(system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if system == "elsewhere":
        monkeypatch.setattr(folder, "LOCKS", tmp_path / "no-such-table")
    elif not folder.LOCKS.exists():
        pytest.skip("no /proc/locks on this system")
    assert not RunFolder(tmp_path).in_use
    with open(tmp_path / ".lock", "w") as file:
        assert not RunFolder(tmp_path).in_use
        fcntl.flock(file, fcntl.LOCK_EX)
        assert RunFolder(tmp_path).in_use
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / ".lock").write_text("")
        assert not RunFolder(tmp_path / "other").in_use
    assert not RunFolder(tmp_path).in_use


# numbers --------------------------------------------------------------------------------------------------------------


def seen(round: int, at: float, state: str = "running") -> RunStatus:
    return RunStatus(state, round, 100, Scores(accuracy=0.5, loss=1.0), 2_500_000, at, "")


def test_rate_and_time_left() -> None:
    assert rate(seen(50, 1010.0), WatchStart(1000.0, 30)) == 2.0
    assert rate(seen(50, 1000.0), WatchStart(1000.0, 50)) == 0.0
    assert rate(seen(50, 990.0), WatchStart(1000.0, 50)) == 0.0  # written before the watching began
    said = line(seen(50, 1010.0), WatchStart(1000.0, 30))
    assert said == "round 50/100  running  accuracy 50.00%  2.5 MB  2 rounds/s  25 s left"
    assert line(seen(50, 1010.0, "stopped"), WatchStart(1000.0, 30)) == "round 50/100  stopped  accuracy 50.00%  2.5 MB"


def test_who_is_connected_is_said_while_a_run_goes_on() -> None:
    there, gone = SiteNow(True, "t"), SiteNow(False, "t", why="no route")
    said = seen(50, 1010.0)._replace(sites={"a": there, "b": gone, "c": SiteNow()})
    assert connected(said) == "1/3 sites connected (b not connected: no route, c not there yet)"
    assert connected(said._replace(sites={"a": there})) == "1/1 sites connected"
    assert connected(said._replace(sites={"": there})) == "connected"
    assert connected(said._replace(sites={"": gone})) == "not connected: no route"
    assert connected(said._replace(state="stopped")) == connected(seen(50, 1010.0)) == ""


def test_a_pause_does_not_count_as_work(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    begun = beginning(RunFolder(run))
    assert begun is not None
    assert begun.round == 0
    later = begun.at + 3600
    os.utime(run / ".lock", (later, later))  # resumed an hour later
    assert beginning(RunFolder(run)) is None


def test_a_terminal_gets_a_bar(finished: Path) -> None:
    import io

    out = io.StringIO()
    with looking._shown(Console(file=out, force_terminal=True, width=100)) as show:
        show(seen(50, 1010.0), WatchStart(1000.0, 30))
    assert "50/100" in out.getvalue()
    assert "accuracy 50.00%" in out.getvalue()
