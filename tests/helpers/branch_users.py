"""Tests that a copy of the repository without branches leaves out."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
LISTED = TESTS / "needs_branches.txt"
WHOLE_PROGRAM = ("experiments", "mutants", "repository", "stories")


@cache
def lacking() -> tuple[str, ...]:
    """Branches that this copy does not have."""
    from sordino.branches import BRANCHES

    found = importlib.util.find_spec("sordino")
    assert found is not None
    assert found.submodule_search_locations
    package = Path(found.submodule_search_locations[0])
    return tuple(name for name in BRANCHES if not (package / name).is_dir())


def listed() -> list[str]:
    return [line for line in LISTED.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


@cache
def left_out() -> frozenset[str]:
    """Files and tests that this copy leaves out: none where it is whole."""
    if not lacking():
        return frozenset()
    folders = (*WHOLE_PROGRAM, *lacking())
    return frozenset([*listed(), *(f"tests/{name}" for name in folders)])
