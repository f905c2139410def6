"""A ledger that several runs share is founded once, with one whole key beside it, and never twice."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sordino.config import Experiment
from sordino.engine.server import FederatedServer
from sordino.errors import LedgerError, SordinoError
from sordino.ledger.ledger import Ledger
from sordino.receipts import private
from sordino.receipts.receipt import lifetime, spending
from sordino.receipts.verify import verify
from sordino.runs import run
from sordino.runs.run import checked, resume, start
from sordino.runs.simulation import Simulation
from tests.budget.charged import experiment
from tests.laws.cases import BY_NAME
from tests.laws.traces import Killed, die_after, killed_at

RACING = 4
ALL = {"name": "everyone"}
ROOT = Path(__file__).parents[2]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "shared.sqlite"


def joining(ledger: Path, **changes: Any) -> Experiment:
    privacy = {"epsilon": 8.0, "ledger": str(ledger)}
    return experiment({"name": "gaussian_gdp"}, privacy=privacy, rounds=1, **changes)


def code(of: Callable[[], object]) -> str:
    with pytest.raises(SordinoError) as refusal:
        of()
    return refusal.value.code


def key_beside(ledger: Path) -> bytes:
    return Path(f"{ledger}.key").read_bytes()


def founded_under(ledger: Path, key: bytes, run: Simulation) -> bool:
    """Is the name of the data in the ledger the one that this key gives?"""
    with Ledger.as_founded(ledger) as books:
        return books.scope.dataset == type(run.population)(run.setup.experiment, key).fingerprint


@pytest.mark.one_fast
@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_that_is_not_whole_is_refused(shared: Path, size: int) -> None:
    """An empty key is everybody's key: with it, whoever knows all rows but one finds the last one by trying."""
    start(joining(shared), shared.parent / "first")
    whole = key_beside(shared)
    Path(f"{shared}.key").write_bytes(bytes(size))
    assert code(lambda: start(joining(shared), shared.parent / "second")) == "run-file-damaged"
    assert code(lambda: checked(joining(shared), shared.parent / "second", dry=True)) == "run-file-damaged"
    assert not (shared.parent / "second").exists()
    (shared.parent / "first" / private.DATA).write_bytes(bytes(size))
    assert code(lambda: resume(shared.parent / "first")) == "run-file-damaged"
    Path(f"{shared}.key").write_bytes(whole)
    start(joining(shared), shared.parent / "second")


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_full_disk_leaves_no_key_in_part(shared: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command passes as soon as there is room, and its key is a whole one."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(run.os, call, full)
        assert code(lambda: start(joining(shared), shared.parent / "run")) == "ledger-disk-full"
    assert not Path(f"{shared}.key").exists()
    start(joining(shared), shared.parent / "run")
    assert key_beside(shared) == (shared.parent / "run" / private.DATA).read_bytes()
    assert len(key_beside(shared)) == private.KEY
    assert {path.name for path in shared.parent.iterdir()} == {
        "run",
        shared.name,
        f"{shared.name}.key",
        f"{shared.name}-lock",
    }


@pytest.mark.one_fast
@pytest.mark.parametrize("at", ["draft", "founded"])
def test_a_kill_while_a_ledger_is_founded_leaves_one_that_goes_on(
    shared: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = multiprocessing.get_context("fork").Process(target=_dies, args=(shared, at))
    killed.start()
    killed.join(60)
    assert killed.exitcode == 9
    assert not Path(f"{shared}.key").exists()
    assert shared.exists() == (at == "founded")
    start(joining(shared), shared.parent / "run")
    assert founded_under(shared, key_beside(shared), checked(joining(shared), shared.parent / "next", dry=True))


def _dies(shared: Path, at: str) -> None:
    place = {"draft": "fsync", "founded": "rename"}[at]
    setattr(run.os, place, lambda *_: os._exit(9))
    start(joining(shared), shared.parent / "dead")


@pytest.mark.slow
def test_runs_that_begin_at_once_found_one_ledger_under_one_key(shared: Path) -> None:
    assert _race(shared, _run) == [0] * RACING
    run = checked(joining(shared), shared.parent / "next", dry=True)
    assert founded_under(shared, key_beside(shared), run)
    assert {(shared.parent / f"run-{i}" / private.DATA).read_bytes() for i in range(RACING)} == {key_beside(shared)}


@pytest.mark.slow
def test_with_keys_of_their_own_they_refuse_each_other(shared: Path) -> None:
    """The broken twin: as it was when every process went on with the key that it had drawn."""
    assert sorted(_race(shared, _run_with_its_own_key)) == [0, 5, 5, 5]


def _race(shared: Path, run: Callable[[Path, int, Any], None]) -> list[int | None]:
    """The exit codes of processes that all draw a key before one of them may found the ledger."""
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(RACING)
    racing = [fork.Process(target=run, args=(shared, i, barrier)) for i in range(RACING)]
    for process in racing:
        process.start()
    for process in racing:
        process.join(60)
    return [process.exitcode for process in racing]


def _run(shared: Path, number: int, barrier: Any) -> None:
    _at_once(barrier)
    try:
        start(joining(shared), shared.parent / f"run-{number}")
    except SordinoError as error:
        os._exit(error.exit_code)
    os._exit(0)


def _run_with_its_own_key(shared: Path, number: int, barrier: Any) -> None:
    like = run.Population.like
    run.Population.like = lambda known, made, key: like(known, made)  # type: ignore[method-assign]
    _run(shared, number, barrier)


def _at_once(barrier: Any) -> None:
    held = run._locked_draft

    def together(draft: Path) -> Any:
        barrier.wait(60)
        return held(draft)

    run._locked_draft = together


@pytest.mark.one_fast
@pytest.mark.parametrize("left", [".key", "-lock", "-wal"])
def test_a_ledger_that_is_gone_is_not_begun_again(shared: Path, left: str) -> None:
    start(joining(shared), shared.parent / "first")
    kept = shared.read_bytes()
    for path in (shared, Path(f"{shared}.key"), Path(f"{shared}-lock")):
        path.unlink()
    Path(f"{shared}{left}").write_bytes(bytes(private.KEY))
    for dry in (False, True):
        assert code(lambda dry=dry: checked(joining(shared), shared.parent / "second", dry=dry)) == "ledger-gone"  # type: ignore[misc]
    assert code(lambda: resume(shared.parent / "first")) == "ledger-missing"
    assert not shared.exists()
    shared.write_bytes(kept)
    Path(f"{shared}-wal").unlink(missing_ok=True)
    resume(shared.parent / "first")


def test_a_ledger_without_its_key_says_so(shared: Path) -> None:
    """It is no reason to say that the data are others."""
    start(joining(shared), shared.parent / "first")
    Path(f"{shared}.key").unlink()
    assert code(lambda: start(joining(shared), shared.parent / "second")) == "ledger-without-key"
    assert sorted(path.name for path in shared.parent.iterdir() if "key" in path.name) == []


def test_a_new_secret_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            private.write(tmp_path / "site.key", b"key", new=True)
    assert not (tmp_path / "site.key").exists()
    private.write(tmp_path / "site.key", b"key", new=True)
    with pytest.raises(FileExistsError):
        private.write(tmp_path / "site.key", b"another", new=True)


def test_a_run_that_began_on_a_shared_ledger_begins_none_of_its_own(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in its first round, after the noise was drawn: a new ledger would draw it again, and know of no budget that
    others have spent.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(shared.parent / "state"))
    privacy = {"epsilon": 8.0, "noise": "system", "ledger": str(shared)}
    made, folder = experiment({"name": "gaussian_gdp"}, privacy=privacy, rounds=1, cohort=ALL), shared.parent / "run"
    with killed_at("computed", 0):
        start(made, folder)
    file = folder / "experiment.toml"
    told = file.read_text()
    file.write_text("".join(line for line in told.splitlines(keepends=True) if not line.startswith("ledger =")))
    assert code(lambda: resume(folder)) == "edited-run"
    assert not (folder / "ledger.sqlite").exists()
    file.write_text(told)
    assert [row.lost for row in resume(folder).metrics] == [True]


def test_a_run_that_began_on_its_own_ledger_goes_to_none_that_runs_share(tmp_path: Path) -> None:
    """An older copy of it under another name would draw two rounds again, at no cost: under Laplace noise both kinds of
    ledger have the same caps.
    """
    case, folder = BY_NAME["laplace"], tmp_path / "run"
    with pytest.raises(Killed):
        start(case.experiment(privacy=case.privacy | {"noise": "system"}, rounds=3), folder, die_after(1))
    shutil.copy(folder / "ledger.sqlite", tmp_path / "shared.sqlite")
    shutil.copy(folder / "data.key", tmp_path / "shared.sqlite.key")
    with pytest.raises(Killed):
        resume(folder, die_after(2))
    file = folder / "experiment.toml"
    text = file.read_text()
    file.write_text(text.replace("[privacy]\n", f'[privacy]\nledger = "{tmp_path / "shared.sqlite"}"\n'))
    assert code(lambda: spending(folder)) == "ledger-rolled-back"
    assert code(lambda: resume(folder)) == "edited-run"
    file.write_text(text)
    assert [row.lost for row in resume(folder).metrics] == [False] * 3


@pytest.mark.slow
def test_who_could_not_pay_loses_nothing(shared: Path) -> None:
    """The second run finds nothing left: its clients abstain, and neither its receipt nor the ledger counts them."""
    made = experiment({"name": "gaussian_gdp"}, privacy={"epsilon": 8.0, "ledger": str(shared)}, rounds=2, cohort=ALL)
    first = start(made, shared.parent / "first")
    again = made.model_copy(update={"name": "again", "evaluation": made.evaluation.model_copy(update={"final": 2})})
    second = start(again, shared.parent / "second")
    assert [row.answered for row in second.metrics] == [0, 0]
    assert not any(row.finite for row in second.receipt.guarantees)
    assert [row.epsilon for row in lifetime(shared).guarantees] == [row.epsilon for row in first.receipt.guarantees]
    for folder in ("first", "second"):
        assert verify(shared.parent / folder) == []
        asked = [sys.executable, ROOT / "verifier" / "verify.py", shared.parent / folder, "--ledger", shared]
        assert subprocess.run(asked, capture_output=True, check=False).returncode == 0


def test_a_run_refused_for_its_copy_of_a_ledger_leaves_no_note(tmp_path: Path) -> None:
    """Else the run on the newest ledger would be refused too, for a release that never was."""
    files = [tmp_path / "shared.sqlite", tmp_path / "copy.sqlite"]
    case = BY_NAME["gaussian_gdp"]
    made = (case.privacy | {"noise": "system", "ledger": str(file)} for file in files)
    one, other = (case.experiment(privacy=privacy, rounds=2) for privacy in made)

    def killed(*about: Any) -> None:
        raise Killed

    first, second, reserve = tmp_path / "first", tmp_path / "second", FederatedServer.reserve
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FederatedServer, "reserve", killed)
        with pytest.raises(Killed):
            start(one, first)
    for kind in ("", ".key"):
        shutil.copy(f"{files[0]}{kind}", f"{files[1]}{kind}")

    def after_the_first(*about: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FederatedServer, "reserve", reserve)
            with pytest.raises(Killed):
                resume(first, die_after(1))
        return reserve(*about)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FederatedServer, "reserve", after_the_first)
        with pytest.raises(LedgerError, match="older"):
            start(other, second)
    assert len(resume(first).metrics) == 2
