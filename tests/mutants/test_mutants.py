"""The tests bite: every seeded bug makes the tests named beside it fail, and without a bug all of these pass."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sordino
from tests.mutants.counted import COUNTED_OR_NOT
from tests.mutants.deployed import DEPLOYED
from tests.mutants.hostile import HOSTILE
from tests.mutants.kept import KEPT
from tests.mutants.mutant import Mutant
from tests.mutants.mutants import PRIVACY
from tests.mutants.receipts import RECEIPTS
from tests.mutants.secret_rows import SECRET_ROWS
from tests.mutants.sums import SUMS
from tests.mutants.together import TOGETHER
from tests.mutants.told import TOLD

ROOT = Path(__file__).parents[2]
PACKAGE = Path(sordino.__file__).parent
MUTANTS = [*PRIVACY, *HOSTILE, *DEPLOYED, *TOGETHER, *RECEIPTS, *SUMS, *KEPT, *SECRET_ROWS, *TOLD, *COUNTED_OR_NOT]
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
        assert name, "a whole file is more than a bug needs"
        assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text(encoding="utf-8")


def test_there_are_mutants_enough() -> None:
    assert len(MUTANTS) >= 230
    assert len(set(IDS)) == len(IDS)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package and its tests, where one bug after the other is planted and taken out again."""
    place = tmp_path_factory.mktemp("copy")
    for folder in (PACKAGE, ROOT / "tests"):
        shutil.copytree(folder, place / folder.name, ignore=shutil.ignore_patterns(".*"))
    shutil.copy(ROOT / "pyproject.toml", place)
    return place


@contextmanager
def planted(mutant: Mutant, copy: Path) -> Iterator[None]:
    target = copy / "sordino" / mutant.file
    text = target.read_text(encoding="utf-8")
    for old, new in mutant.edits:
        text = text.replace(old, new)
    target.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        shutil.copy2(PACKAGE / mutant.file, target)
        for compiled in (target.parent / "__pycache__").glob(f"{target.stem}.*"):
            compiled.unlink()


@pytest.fixture(scope="module")
def warm() -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("warm.py"))],
        cwd="/",
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with started:
        yield started
        started.stdin.close()  # type: ignore[union-attr]


def run(warm: subprocess.Popen[str], place: Path, *tests: str, timeout: float = 300) -> tuple[int | None, str]:
    flags = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "-o", "addopts=", f"--basetemp={place / 'temporary'}"]
    assert warm.stdin is not None
    assert warm.stdout is not None
    warm.stdin.write(json.dumps([str(place), timeout, [*flags, *tests]]) + "\n")
    warm.stdin.flush()
    code, printed = json.loads(warm.stdout.readline())
    return code, printed


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=IDS)
def test_a_mutant_is_killed(mutant: Mutant, copy: Path, warm: subprocess.Popen[str]) -> None:
    with planted(mutant, copy):
        code, printed = run(warm, copy, *mutant.tests)
    assert code == FAILED, f"it survived, with {code}:\n{printed[-2000:]}"


@pytest.mark.slow
def test_without_a_bug_they_pass_in_the_copy(copy: Path, warm: subprocess.Popen[str]) -> None:
    """So it is the bug that kills. Those that take long are left out: they pass where they lie, in this tier."""
    (copy / "tests" / "test_copy.py").write_text(
        f"import sordino\n\ndef test_it_is_the_copy():\n    assert sordino.__file__.startswith({str(copy)!r})\n"
    )
    tests = sorted({test for mutant in MUTANTS for test in mutant.tests})
    code, printed = run(warm, copy, "-m", "not slow", "tests/test_copy.py", *tests, timeout=900)
    assert code == 0, printed[-3000:]
