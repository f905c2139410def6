"""The tests bite: every seeded bug makes the tests named beside it fail, and without a bug all of these pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sordino
from tests.mutants.mutant import Mutant
from tests.mutants.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
PACKAGE = Path(sordino.__file__).parent
IDS = [mutant.name for mutant in MUTANTS]
FAILED = 1  # pytest's exit code for tests that ran and failed


@pytest.mark.parametrize("mutant", MUTANTS, ids=IDS)
def test_the_table_fits_the_package(mutant: Mutant) -> None:
    text = (PACKAGE / mutant.file).read_text(encoding="utf-8")
    for old, new in mutant.edits:
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {mutant.file}"
        assert old != new
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text(encoding="utf-8")


def test_there_are_mutants_enough() -> None:
    assert len(MUTANTS) >= 25
    assert len(set(IDS)) == len(IDS)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package and its tests, where a bug may be planted."""
    for folder in (PACKAGE, ROOT / "tests"):
        shutil.copytree(folder, tmp_path / folder.name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run(place: Path, *tests: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    flags = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "-o", "addopts="]
    # pytest puts the folder it is started in first on the path: the copy, not the installed package
    return subprocess.run(
        [sys.executable, "-m", "pytest", *flags, *tests],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=IDS)
def test_a_mutant_is_killed(mutant: Mutant, copy: Path) -> None:
    target = copy / "sordino" / mutant.file
    text = target.read_text(encoding="utf-8")
    for old, new in mutant.edits:
        text = text.replace(old, new)
    target.write_text(text, encoding="utf-8")
    outcome = run(copy, *mutant.tests)
    assert outcome.returncode == FAILED, f"it survived:\n{outcome.stdout[-2000:]}{outcome.stderr[-2000:]}"


@pytest.mark.slow
def test_without_a_bug_all_of_them_pass(copy: Path) -> None:
    (copy / "sordino" / "version.py").write_text('__version__ = "copy"\n')
    (copy / "tests" / "test_copy.py").write_text(
        "import sordino.version\n\ndef test_it_is_the_copy():\n    assert sordino.version.__version__ == 'copy'\n"
    )
    tests = sorted({test for mutant in MUTANTS for test in mutant.tests})
    outcome = run(copy, "tests/test_copy.py", *tests, timeout=900)
    assert outcome.returncode == 0, outcome.stdout[-3000:]
