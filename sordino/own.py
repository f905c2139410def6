"""A user's own class, named as `module:Class` and looked up from the current directory: their model, or their algorithm."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from sordino.errors import ConfigError


def is_own(name: str) -> bool:
    """Does it name somebody's own class?"""
    return ":" in name


def load(path: str, what: str) -> Any:
    """What `module:Class` names. The module is somebody's program: whatever goes wrong in it is said with its place."""
    module_name, _, class_name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module_name), class_name)
    except Exception as error:
        raise ConfigError(
            f"cannot load the {what} {path!r}: {told(error)}",
            why=f"{what}.name with a colon is read as python_module:ClassName, looked up from the current directory",
            fix="check the spelling, and that the file lies in the directory you start sordino from",
            code="own-import",
        ) from error


def told(error: Exception) -> str:
    """The error and where it happened, in one line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{type(error).__name__}: {str(error).partition(chr(10))[0]} ({Path(last.filename).name}, line {last.lineno})"
    )


SPOKEN = ("read", "uplink", "work", "init", "init_client", "broadcast", "zero", "local", "update", "models", "personal")


def algorithm(path: str) -> Callable[..., Any]:
    """An algorithm that lives outside the package; it passes the same gates as ours."""
    made = load(path, "algorithm")
    missing = [name for name in SPOKEN if not hasattr(made, name)]
    if not (isinstance(made, type) and is_dataclass(made)) or missing:
        raise ConfigError(
            f"{path!r} is not an algorithm",
            why=f"it has no {', '.join(missing)}"
            if missing
            else "an algorithm is a class with @dataclass(frozen=True)",
            fix="subclass one that exists, as FedProx does with FedAvg, or write all halves; `sordino check FILE` says what is missing",
            code="not-an-algorithm",
        )
    return made
