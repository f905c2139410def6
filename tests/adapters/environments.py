"""Environments of other programs, beside the one that the tests run in, and the end of processes in them."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path

import pytest

from tests.repository.following import ROOT
from tests.verifier.test_edits import sealed


def made(name: str, package: str, places: pytest.TempPathFactory) -> Path:
    """The folder of an environment's programs: of the one that SORDINO_<NAME> names, or of a new one, with `package`,
    or several. It sees the packages of this environment, but for those that it needs in other versions.
    """
    if given := os.environ.get(f"SORDINO_{name.upper()}"):
        return Path(given) / "bin"
    place = places.mktemp(name) / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    packages = next(place.glob("lib/python*/site-packages"))
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib"))
    install = [str(place / "bin" / "python"), "-m", "pip", "install", "-q", *package.split()]
    ran = subprocess.run(install, capture_output=True, text=True, timeout=900)
    if ran.returncode:
        pytest.skip(f"{package} cannot be installed here: {ran.stderr.strip()[-300:]}")
    return place / "bin"


def stop(started: Iterable[subprocess.Popen[bytes]], at_once: bool = False) -> None:
    """End processes and those that they have started, each in a session of its own."""
    for process in started:
        for way in (signal.SIGKILL,) if at_once else (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, way)
                process.wait(15)


@cache
def verifier() -> Path:
    """The Python of an environment with dp-accounting alone, as a stranger makes it to check a receipt."""
    place = Path(tempfile.mkdtemp(prefix="verifier"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    python = place / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", "dp-accounting"]
    ran = subprocess.run(install, capture_output=True, text=True, timeout=900)
    if ran.returncode:
        pytest.skip(f"dp-accounting cannot be installed here: {ran.stderr.strip()[-300:]}")
    for absent in ("sordino", "torch"):
        assert subprocess.run([str(python), "-I", "-c", f"import {absent}"], capture_output=True).returncode == 1
    return python


def verified_elsewhere(run: Path, place: Path) -> None:
    """The stand-alone verifier accepts a copy of what a run may show, without sordino; and the broken twin: once its
    epsilons are halved, with a seal and a ledger that fit, it refuses.
    """
    place.mkdir()
    for one in (ROOT / "verifier").glob("*.py"):
        shutil.copy(one, place)
    copy = place / "run"
    copy.mkdir()
    for one in run.iterdir():
        if one.is_file() and one.name != "data.key":
            shutil.copy(one, copy)
    command = [str(verifier()), "verify.py", "run"]
    check = partial(subprocess.run, command, cwd=place, capture_output=True, text=True, timeout=300)
    said = check()
    assert said.returncode == 0, said.stdout + said.stderr
    receipt = json.loads((copy / "privacy.json").read_text())
    for row in receipt["guarantees"]:
        row["epsilon"] = row["epsilon"] if row["epsilon"] == "inf" else row["epsilon"] / 2
    sealed(copy, receipt)
    said = check()
    assert said.returncode == 1, said.stdout + said.stderr
    assert "and the seal of the receipt in it" in said.stdout  # nothing but the recomputation tells
    wrong = [line for line in said.stdout.splitlines() if line.startswith("DOES NOT HOLD")]
    assert wrong
    assert all("epsilon: the files give" in line for line in wrong)


def written(file: Path, *uses: str) -> int:
    """How many lines a user wrote to make an app private: those between its two rules, and those that hold a use."""
    above, ours, below = re.split(r"^ *# -{60,}$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return sum(bool(line.strip()) for line in ours.splitlines()) + sum(
        any(use in line for use in uses) for line in (above + below).splitlines()
    )
