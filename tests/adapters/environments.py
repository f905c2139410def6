"""Environments of other programs, beside the one that the tests run in, and the end of processes in them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.repository.following import ROOT

WITHOUT = "import runpy, sys; sys.modules['sordino'] = None; sys.path.insert(0, '.'); sys.argv[:] = sys.argv[1:]; "


def made(name: str, package: str, places: pytest.TempPathFactory) -> Path:
    """The folder of an environment's programs: of the one that SORDINO_<NAME> names, or of a new one. It sees the
    packages of this environment, but for those that it needs in other versions.
    """
    if given := os.environ.get(f"SORDINO_{name.upper()}"):
        return Path(given) / "bin"
    place = places.mktemp(name) / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    packages = next(place.glob("lib/python*/site-packages"))
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib"))
    install = [str(place / "bin" / "python"), "-m", "pip", "install", "-q", package]
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


def elsewhere(run: Path, place: Path) -> subprocess.CompletedProcess[str]:
    """The stand-alone verifier on a copy of what a run may show, where sordino cannot be imported."""
    place.mkdir()
    for one in (ROOT / "verifier").glob("*.py"):
        shutil.copy(one, place)
    (place / "run").mkdir()
    for one in run.iterdir():
        if one.is_file() and one.name != "data.key":
            shutil.copy(one, place / "run")
    command = [sys.executable, "-I", "-c", f"{WITHOUT}runpy.run_path('verify.py', run_name='__main__')"]
    return subprocess.run([*command, "verify.py", "run"], cwd=place, capture_output=True, text=True, timeout=300)
