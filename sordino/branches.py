"""Optional subpackages (branches): which are installed, and the commands, algorithms and pages that they add. All else
runs without them.

A branch's `__init__.py` has one table, PARTS: for each kind of part, each part's name and its place
("module:attribute", or a module). A part is loaded when it is first used.

And the lazy import of heavy libraries (`when_used`): each is loaded when it is first used, so a command that only
computes with public numbers never loads them.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from sordino.errors import ConfigError


@contextmanager
def when_used(library: str) -> Iterator[None]:
    """Imports inside the block get a stand-in for this library, which loads the library when one of its names is first
    used.
    """
    if library in sys.modules:
        yield
        return
    sys.modules[library] = stand_in = _LazyModule(library)
    try:
        yield
    finally:
        if sys.modules.get(library) is stand_in:  # others look there for what is loaded
            del sys.modules[library]


class _LazyModule(ModuleType):
    """Stand-in for a module: the first use of a name imports the real one, in which every name is looked up."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def loading() -> Iterator[None]:
    """Pauses garbage collection around code that makes hundreds of thousands of lasting objects, such as importing
    torch: it would take a tenth of the start-up time. Objects that exist at the end are exempt from later collections.
    Does nothing once torch is loaded, or where collection is off.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


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
