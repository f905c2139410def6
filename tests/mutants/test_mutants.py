"""The tests bite: every seeded privacy bug makes one of them fail, and without a bug they pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mutants.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]


def copy(place: Path) -> None:
    for name in ("sordino", "tests"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", place)


def run(place: Path, killers: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-x", "-n0", "-q", "-p", "no:cacheprovider", *killers.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[m.name for m in MUTANTS])
def test_the_table_is_not_rotten(mutant: Mutant) -> None:
    assert (ROOT / "sordino" / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.new != mutant.old
    for word in mutant.killers.split():
        assert not word.startswith("tests/") or (ROOT / word.partition("::")[0]).exists()


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=[m.name for m in MUTANTS])
def test_the_bug_is_noticed(mutant: Mutant, tmp_path: Path) -> None:
    copy(tmp_path)
    file = tmp_path / "sordino" / mutant.file
    file.write_text(file.read_text().replace(mutant.old, mutant.new))
    done = run(tmp_path, mutant.killers)
    assert done.returncode == 1, done.stdout[-2000:]  # 1: tests failed; anything else is a broken harness
    assert str(tmp_path) in done.stdout or "FAILED" in done.stdout


@pytest.mark.slow
def test_without_a_bug_they_pass(tmp_path: Path) -> None:
    copy(tmp_path)
    killers = " ".join(dict.fromkeys(word for m in MUTANTS for word in m.killers.split() if word.startswith("tests/")))
    done = run(tmp_path, killers)
    assert done.returncode == 0, done.stdout[-2000:]
