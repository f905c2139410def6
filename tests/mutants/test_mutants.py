"""The tests bite: every seeded bug makes the tests named beside it fail, and without a bug all of these pass."""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import pytest

import sordino
from tests.mutants.adapted import ADAPTED
from tests.mutants.counted import COUNTED_OR_NOT
from tests.mutants.deployed import DEPLOYED
from tests.mutants.hostile import HOSTILE
from tests.mutants.kept import KEPT
from tests.mutants.mutant import FAILED, ROOT, Mutant, planted, run, warm_process
from tests.mutants.mutants import PRIVACY
from tests.mutants.receipts import RECEIPTS
from tests.mutants.secret_rows import SECRET_ROWS
from tests.mutants.sums import SUMS
from tests.mutants.together import TOGETHER
from tests.mutants.told import TOLD

PACKAGE = Path(sordino.__file__).parent
MUTANTS = [
    *PRIVACY,
    *HOSTILE,
    *DEPLOYED,
    *TOGETHER,
    *RECEIPTS,
    *SUMS,
    *KEPT,
    *SECRET_ROWS,
    *TOLD,
    *COUNTED_OR_NOT,
    *ADAPTED,
]
IDS = [mutant.name for mutant in MUTANTS]


def test_the_table_fits_the_package() -> None:
    read = cache(partial(Path.read_text, encoding="utf-8"))
    for mutant in MUTANTS:
        text = read(PACKAGE / mutant.file)
        for old, new in mutant.edits:
            assert text.count(old) == 1, f"{mutant.name}: {old!r} occurs {text.count(old)} times in {mutant.file}"
            assert old != new, mutant.name
        ast.parse(mutant.changed(text), mutant.name)  # a bug that is no Python would fail any test
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert name, f"{mutant.name}: a whole file is more than a bug needs"
            assert f"def {name.partition('[')[0]}" in read(ROOT / file), f"{mutant.name}: {test} is gone"


def test_there_are_mutants_enough() -> None:
    assert len(MUTANTS) >= 230
    assert len(set(IDS)) == len(IDS)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package and its tests, where one bug after the other is planted and taken out again."""
    place = tmp_path_factory.mktemp("copy")
    for folder in (PACKAGE, ROOT / "tests", ROOT / "verifier"):
        shutil.copytree(folder, place / folder.name, ignore=shutil.ignore_patterns(".*"))
    shutil.copy(ROOT / "pyproject.toml", place)
    return place


@pytest.fixture(scope="module")
def warm() -> Iterator[subprocess.Popen[str]]:
    with warm_process() as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=IDS)
def test_a_mutant_is_killed(mutant: Mutant, copy: Path, warm: subprocess.Popen[str]) -> None:
    target = copy / "sordino" / mutant.file
    with planted(target, mutant.changed(target.read_text(encoding="utf-8"))):
        code, printed = run(warm, copy, *mutant.tests)
    assert code == FAILED, f"it survived, with {code}:\n{printed[-4000:]}"


@pytest.mark.slow
def test_without_a_bug_they_pass_in_the_copy(copy: Path, warm: subprocess.Popen[str]) -> None:
    """So it is the bug that kills. Those that take long are left out: they pass where they lie, in this tier."""
    (copy / "tests" / "test_copy.py").write_text(
        f"import sordino\n\ndef test_it_is_the_copy():\n    assert sordino.__file__.startswith({str(copy)!r})\n"
    )
    tests = sorted({test for mutant in MUTANTS for test in mutant.tests})
    code, printed = run(warm, copy, "-m", "not slow", "tests/test_copy.py", *tests, timeout=900)
    assert code == 0, printed[-3000:]
