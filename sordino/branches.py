"""Branches of the program: plug-in rooms that the rest runs without, and what they add to it.

A branch has a module `branch` with one table, PARTS: for each kind of part, names and where the part stands
("module:attribute", or a module). A part is loaded when it is first used.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from sordino.errors import ConfigError

BRANCHES = ("sites", "secagg", "report", "audits", "attacks", "synthesis")


@cache
def present() -> dict[str, ModuleType]:
    """The branches of this installation, each with the module that says what it adds."""
    found = {}
    for name in BRANCHES:
        try:
            found[name] = import_module(f"sordino.{name}.branch")
        except ModuleNotFoundError as error:
            if error.name not in (f"sordino.{name}", f"sordino.{name}.branch"):
                raise
    return found


@cache
def parts(kind: str) -> dict[str, str]:
    """All parts of one kind (verbs, algorithms, ...) that branches add: each name, and where the part stands."""
    return {name: place for branch in present().values() for name, place in branch.PARTS.get(kind, {}).items()}


def part(kind: str, name: str) -> Any:
    """One part, loaded from its branch. Refused where no branch of this installation has it."""
    place = parts(kind).get(name)
    if place is None:
        lacking = [branch for branch in BRANCHES if branch not in present()]
        raise ConfigError(
            f"this installation has no {name!r} among its {kind.replace('_', ' ')}",
            why=f"it lacks {', '.join(lacking)}" if lacking else "no branch adds it",
            fix="install sordino whole",
            code="no-branch",
        )
    module, _, attribute = place.partition(":")
    loaded = import_module(module)
    return getattr(loaded, attribute) if attribute else loaded
