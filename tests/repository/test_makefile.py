"""`make` says what is wrong with a Python, or with an environment that another Python made, and what a bare machine
lacks; and a test that fails says so on a CI as it does here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_terminal_summary
from tests.helpers import browser
from tests.repository.following import ROOT

FITS = '#!/bin/sh\n[ "$1" = -V ] && echo Python {version}\nexit 0\n'
OLD = '#!/bin/sh\n[ "$1" = -V ] && echo Python 3.10.1 && exit 0\nexit 1\n'


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("asked", "there", "said"),
    [
        (FITS.format(version="3.12.1"), None, ""),
        (FITS.format(version="3.12.1"), FITS.format(version="3.12.1"), ""),
        (OLD, None, "needs Python 3.11 or newer"),
        (FITS.format(version="3.12.1"), OLD, "too old or gone. Remove it with `make clean`"),
        (FITS.format(version="3.12.1"), FITS.format(version="3.11.7"), "was made by Python 3.11.7, and you ask for Python 3.12.1"),
    ],
)  # fmt: skip
def test_an_environment_of_another_python_is_noticed(asked: str, there: str | None, said: str, tmp_path: Path) -> None:
    python, venv = program(tmp_path / "python", asked), tmp_path / "venv"
    if there is not None:
        program(venv / "bin" / "python", there)
    done = subprocess.run(
        ["make", "-s", "-C", str(ROOT), "fitting", f"PYTHON={python}", f"VENV={venv}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode != 0) == bool(said)
    assert said in done.stdout


def test_without_a_browser_its_tests_are_skipped_and_the_end_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv(browser.MANDATORY, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no browser") as skipped:
        browser.browser()
    said = summary(("page.py", 1, f"Skipped: {skipped.value}"), ("other.py", 1, "Skipped: no accelerator"))
    assert said.startswith("1 test was skipped: no browser.")
    assert "apt-get install chromium" in said
    assert summary(("other.py", 1, "Skipped: no accelerator")) == ""


def test_where_browsers_are_mandatory_none_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv(browser.MANDATORY, "1")
    with pytest.raises(pytest.fail.Exception, match="no browser"):
        browser.browser()
    assert f"export {browser.MANDATORY}=1" in (ROOT / ".ci" / "run").read_text()


def summary(*reasons: tuple[str, int, str]) -> str:
    """What stands at the end of a session that skipped tests for these."""
    lines: list[str] = []
    stats = {"skipped": [SimpleNamespace(longrepr=reason) for reason in reasons]}
    terminal: Any = SimpleNamespace(stats=stats, write_line=lines.append)
    pytest_terminal_summary(terminal)
    return "\n".join(lines)


@pytest.mark.slow
def test_two_models_that_differ_are_told_apart_in_seconds_on_a_ci_too(tmp_path: Path) -> None:
    """Told of a CI, pytest writes the whole difference, which had not ended after two minutes."""
    (tmp_path / "test_it.py").write_text(
        "import random\n"
        "def test_it():\n"
        "    assert random.Random(1).randbytes(1 << 17) == random.Random(2).randbytes(1 << 17)\n"
    )
    words = [sys.executable, "-m", "pytest", "-n0", "-o", "addopts=", "-p", "tests.conftest", str(tmp_path)]
    told = subprocess.run(words, cwd=ROOT, env=os.environ | {"CI": "true"}, timeout=120, capture_output=True, text=True)
    assert told.returncode == 1, told.stderr
    assert "At index 0 diff" in told.stdout
