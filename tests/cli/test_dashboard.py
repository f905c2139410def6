"""`sordino dashboard` as a program: it says where it is, shows the run, and goes when it is told to."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from sordino import run
from sordino.cli import main
from tests.laws import warm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dashboard") / "run"
    run(None, "rounds=2", "partition.clients=3", out=out)
    return out


@pytest.mark.slow
def test_it_comes_and_goes(folder: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    for more, answers in (([], True), (["--token-file", str(token)], True), (["--token-file", str(token)], False)):
        command = [sys.executable, "-m", "sordino", "dashboard", str(folder), *more]
        process = warm.Process(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        link = process.stdout.readline().decode().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:[0-9]+/(\?token=[\w-]{22})?", link)
        assert ("token" in link) == (bool(more) and answers)  # printed once, when it is new
        if answers and not more:
            assert b"round 2 of 2" in urllib.request.urlopen(link, timeout=20).read()
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (["--bind", "0.0.0.0:0"], "open-dashboard"),
        (["--bind", "0.0.0.0:0", "--token-file", "token"], "open-dashboard"),
        (["--bind", "nowhere"], "no-address"),
        (["--certificates", "nowhere"], "no-file"),
    ],
)
def test_what_it_refuses_it_says(
    more: list[str], code: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sordino", "dashboard", str(folder), *more])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert code in capsys.readouterr().err
