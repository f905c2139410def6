"""Lazy and faster import of heavy libraries: each is loaded when it is first used.

A command that only computes with public numbers never loads them.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def when_used(library: str) -> Iterator[None]:
    """Imports inside the block get a stand-in for this library, which loads the library when one of its names is first
    used.
    """
    if library in sys.modules:
        yield
        return
    sys.modules[library] = stand_in = _Later(library)
    try:
        yield
    finally:
        if sys.modules.get(library) is stand_in:  # others look there for what is loaded
            del sys.modules[library]


class _Later(ModuleType):
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
