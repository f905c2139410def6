"""`make` says what is wrong with a Python, or with an environment that another Python made."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.repository.following import ROOT

FITS = '#!/bin/sh\n[ "$1" = -V ] && echo Python {version}\nexit 0\n'
OLD = '#!/bin/sh\n[ "$1" = -V ] && echo Python 3.10.1 && exit 0\nexit 1\n'


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


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
