"""Federated learning algorithms: one paper per file.

A file gives its algorithm the name on the command line: a class says `name="fedavg"`, a preset has that of its
function. The callable's parameters are the paper's hyper-parameters. There is no other list of algorithms.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import TypeAlias

from sordino.algorithms.algorithm import NAMES, Algorithm, AnyAlgorithm
from sordino.algorithms.phases import Phased
from sordino.algorithms.preset import Preset
from sordino.branches import parts, when_used

Method: TypeAlias = Callable[..., AnyAlgorithm | Phased]


@cache
def all_algorithms() -> dict[str, Method]:
    """Algorithms by name: those of this package, and those that optional subpackages add."""
    found: dict[str, Method] = {}
    files = [module.name for module in pkgutil.iter_modules(__path__, f"{__name__}.")]
    for file in (*files, *parts("algorithms").values()):
        for made in vars(import_module(file)).values():
            name = _name(made, file)
            if name in found:
                raise TypeError(f"two algorithms are called {name!r}: {found[name]} and {made}")
            if name:
                found[name] = made
    return dict(sorted(found.items()))


def algorithm_named(name: str) -> Method | None:
    """The algorithm of this name, or None. Imports only the file that defines it: an optional subpackage lists the
    files of its algorithms, those of this package are searched for the name as text."""
    holding = [parts("algorithms")[name]] if name in parts("algorithms") else _holding(name)
    with when_used("torch"):  # what it declares needs no tensor
        found = [made for file in holding for made in vars(import_module(file)).values() if _name(made, file) == name]
    return found[0] if found else all_algorithms().get(name)


@cache
def _holding(name: str) -> list[str]:
    """Modules of this package in whose text the algorithm `name` is defined. A text search (10 ms) avoids importing all
    files.
    """
    pattern = re.compile(rf'\bname="{re.escape(name)}"|^def {re.escape(name)}\(', re.MULTILINE)
    return [
        f"{__name__}.{file.name.removesuffix('.py')}"
        for file in files(__name__).iterdir()
        if file.name.endswith(".py") and pattern.search(file.read_text(encoding="utf-8"))
    ]


def _name(made: object, file: str) -> str:
    """The name under which this file defines an algorithm; "" for other objects, and for ones that it only imports."""
    if isinstance(made, Preset):
        return made.__name__ if made.__module__ == file else ""
    if isinstance(made, type) and issubclass(made, Algorithm):
        return NAMES.get(made, "") if made.__module__ == file else ""
    return ""
