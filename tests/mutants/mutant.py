"""A seeded bug: a file under sordino/, the exact text that is changed (it must occur once, so that the table cannot
rot), and a few tests of which at least one
must fail."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    file: str
    edits: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]


def one(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, file, ((old, new),), tests)
