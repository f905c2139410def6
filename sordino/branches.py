"""Optional subpackages (branches): which are installed, and the commands, algorithms and pages that they add. All else
runs without them.

A branch's `__init__.py` has one table, PARTS: for each kind of part, each part's name and its place
("module:attribute", or a module). A part is loaded when it is first used.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from sordino.errors import ConfigError

BRANCHES = ("sites", "secagg", "report", "audits", "attacks", "synthesis", "adapters")


@cache
def present() -> dict[str, ModuleType]:
    """The optional subpackages that are installed."""
    found = {}
    for name in BRANCHES:
        try:
            branch = import_module(f"sordino.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"sordino.{name}":
                raise
        else:
            if branch.__file__ is not None:  # a folder that is left over without its code
                found[name] = branch
    return found


@cache
def parts(kind: str) -> dict[str, str]:
    """Commands, algorithms or other parts of one `kind` that optional subpackages add: each name, and where it is
    defined.
    """
    return {name: place for branch in present().values() for name, place in branch.PARTS.get(kind, {}).items()}


def part(kind: str, name: str) -> Any:
    """Loads what an optional subpackage adds under this kind and name, such as a command or an algorithm; an error if
    no installed subpackage has it.
    """
    place = parts(kind).get(name)
    if place is None:
        lacking = [branch for branch in BRANCHES if branch not in present()]
        raise ConfigError(
            f"this installation has no {name!r} among its {kind.replace('_', ' ')}",
            why=f"it lacks {', '.join(lacking)}" if lacking else "no part of the package provides it",
            fix="install sordino again, with all of its folders" if lacking else "check the spelling",
            code="no-branch",
        )
    module, _, attribute = place.partition(":")
    loaded = import_module(module)
    return getattr(loaded, attribute) if attribute else loaded
