"""Random mutants: their changes of a program, and the tests that are tried on them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import sordino
from tests.mutants.generated import changes, nearest

PROGRAM = b'''
def cost(n: int | None, words):
    """Never changed."""
    if n < 2 and not words:
        raise ValueError(f"{n + 1} is too few")
    total = 3 * max(n, 1)
    total += n
    note(total, unit="epsilon")
    return total if words else True
'''


def test_changes_of_a_program() -> None:
    assert [(change.line, change.old, change.new) for change in changes(PROGRAM)] == [
        (4, "n < 2 and not words", "(not (n < 2 and (not words)))"),
        (4, "n < 2 and not words", "(n < 2 or not words)"),
        (4, "n < 2", "(n <= 2)"),
        (4, "2", "(3)"),
        (4, "2", "(1)"),
        (4, "not words", "(words)"),
        (5, 'raise ValueError(f"{n + 1} is too few")', "pass"),
        (6, "3 * max(n, 1)", "(3 / max(n, 1))"),
        (6, "3", "(4)"),
        (6, "3", "(2)"),
        (6, "max(n, 1)", "(min(n, 1))"),
        (6, "1", "(2)"),
        (6, "1", "(0)"),
        (7, "total += n", "pass"),
        (8, 'note(total, unit="epsilon")', "pass"),
        (8, 'note(total, unit="epsilon")', "(note(total))"),
        (8, 'note(total, unit="epsilon")', "(note(unit='epsilon'))"),
        (9, "return total if words else True", "return None"),
        (9, "total if words else True", "(True if words else total)"),
        (9, "True", "(False)"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("module", ["accounting/events.py", "ledger/ledger.py"])
def test_each_is_another_program(module: str) -> None:
    source = (Path(sordino.__file__).parent / module).read_bytes()
    own = ast.dump(ast.parse(source))
    made = [change.made(source) for change in changes(source)]
    assert len(made) > 100
    assert all(ast.dump(ast.parse(text)) != own for text in made[::10])


def test_the_nearest_tests_come_first_and_stop_at_the_limit() -> None:
    seconds = {
        "tests/runs/test_run.py::test_all": 0.1,
        "tests/ledger/test_storage.py::test_slow": 2.0,
        "tests/ledger/test_storage.py::test_quick": 1.0,
        "tests/ledger/test_ledger.py::test_it": 3.0,
    }
    order = nearest("sordino/ledger/ledger.py", set(seconds), seconds, 6.0)
    assert order == [*reversed(list(seconds))][:3]
