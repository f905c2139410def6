"""A run that was stopped is looked at, passed on and continued like any other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sordino.receipts.folder import RunFolder
from sordino.receipts.verify import verify
from sordino.runs.run import start
from tests.helpers.command_line import Said
from tests.laws.cases import BY_NAME

Cli = Callable[..., Said]
EVERY, PLAYED, PLANNED = 12, 23, 25


def stops(progress: Any) -> None:
    if progress.round == PLAYED:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stopped where none of the last ten rounds was scored, and an earlier one was."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    made = BY_NAME["fedavg"].experiment(rounds=PLANNED, evaluation={"every": EVERY, "final": 1})
    ended = start(made, folder, stops)
    assert ended.interrupted
    assert [row.round for row in ended.metrics if row.loss is not None] == [EVERY]
    assert len(ended.metrics) == PLAYED
    return folder


@pytest.fixture
def stopped(once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(once, tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["show", "list", "report"])
def test_it_is_shown(verb: str, stopped: Path, cli: Cli) -> None:
    found = cli(verb, stopped.parent if verb == "list" else stopped)
    assert found.code == 0, found
    told = (stopped / "report.html").read_text() if verb == "report" else found.out
    assert str(PLAYED) in told, told


@pytest.mark.slow
@pytest.mark.parametrize("signed", [False, True])
def test_what_was_made_of_it_does_not_outlive_it(signed: bool, stopped: Path, cli: Cli, tmp_path: Path) -> None:
    """Nobody has tampered with anything, so the receipt holds: a page and a signature of the run as it was go."""
    mine = RunFolder(stopped)
    assert cli("report", stopped).code == 0
    assert verify(stopped) == []
    if signed:
        assert cli("identity", "new", tmp_path / "key").code == 0
        assert cli("privacy", "sign", stopped, "--key", tmp_path / "key").code == 0
    assert cli("resume", stopped, "-q").code == 0
    assert verify(stopped) == []
    assert (mine.page_file.exists(), mine.signature_file.exists()) == (False, False)
    assert cli("report", stopped).code == 0
    assert cli("resume", stopped, "-q").code == 0  # nothing is left to do, so the page stays
    assert mine.page_file.exists()
    assert verify(stopped) == []


@pytest.mark.slow
def test_a_page_of_a_run_that_was_killed_goes_too(stopped: Path, cli: Cli) -> None:
    RunFolder(stopped).receipt_file.unlink()
    assert cli("report", stopped).code == 0
    assert cli("resume", stopped, "-q").code == 0
    assert verify(stopped) == []


@pytest.mark.slow
def test_a_page_after_a_signature_takes_the_signature_with_it(stopped: Path, cli: Cli, tmp_path: Path) -> None:
    assert cli("identity", "new", tmp_path / "key").code == 0
    assert cli("privacy", "sign", stopped, "--key", tmp_path / "key").code == 0
    assert cli("report", stopped).code == 0
    assert verify(stopped) == []
    assert "there is no signature" in cli("privacy", "verify", stopped, "--key", tmp_path / "key.pub").err


@pytest.mark.slow
def test_an_old_page_that_is_kept_is_no_page_of_the_new_receipt(stopped: Path, cli: Cli) -> None:
    """The broken twin."""
    assert cli("report", stopped).code == 0
    kept = RunFolder(stopped).page_file.read_bytes()
    assert cli("resume", stopped, "-q").code == 0
    RunFolder(stopped).page_file.write_bytes(kept)
    assert any("report.html" in line for line in verify(stopped))


@pytest.mark.slow
def test_no_round_is_attacked_that_was_not_played(stopped: Path, cli: Cli) -> None:
    for beyond in (PLAYED + 1, 10**9):
        found = cli("attack", stopped, "-a", "analytic", "--round", beyond)
        assert (found.code, "no-such-round" in found.err) == (2, True), found
