"""Heavy libraries: loaded when something of them is first used, and quickly.

A verb that only computes with public numbers never pays for them.
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
    """Modules that are imported inside get a stand-in for the library, which loads it as soon as anything of it is
    asked for."""
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
    """Module without names of its own, so that each name is asked of the library itself."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def loading() -> Iterator[None]:
    """Around what makes hundreds of thousands of objects that all stay: the imports that bring torch, the spending of
    many clients. Python looks through them for garbage again and again, which takes a tenth of the start. So it does
    not look meanwhile, and afterwards never at what is there now.
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
