"""Classes of a user's own, named as `module:Class`.

They are looked up from the current directory: a model, or an algorithm.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sordino.errors import ConfigError, OwnCodeError, SordinoError

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_HERE = str(Path(__file__).parent)
OTHERS = ("sordino", "torch", "builtins")  # whose files are nobody's own
_FILES: set[str] = set()  # of classes that were named in this process, and of those they are made from


def is_own(name: str) -> bool:
    """Whether a name is that of somebody's own class."""
    return ":" in name


def named(table: object) -> Iterator[str]:
    """Every name of somebody's own class in an experiment, wherever it stands."""
    if isinstance(table, str):
        if _NAME.fullmatch(table):
            yield table
    elif isinstance(table, Mapping):
        for value in table.values():
            yield from named(value)
    elif isinstance(table, list | tuple):
        for value in table:
            yield from named(value)


def load(path: str, what: str) -> Any:
    """The class that `module:Class` names. The module is somebody's program: whatever goes wrong in it is said with
    its place.
    """
    module_name, _, class_name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ConfigError(
            f"cannot load the {what} {path!r}: {told(error)}",
            why=f"{what}.name has a colon, so it is read as python_module:ClassName, a file in the current "
            "directory or an installed module",
            fix="check the spelling, and start sordino in the directory that holds the file",
            code="own-import",
        ) from error
    _FILES.update(_files(found))
    return found


def made_of(classes: Iterable[type]) -> None:
    """Classes that a function of somebody's own has used: what goes wrong in their files is said with its place."""
    for cls in classes:
        if cls.__module__.partition(".")[0] not in OTHERS:
            _FILES.update(_files(cls))


def _files(made: Any) -> Iterator[str]:
    for base in getattr(made, "__mro__", (made,)):
        name = str(getattr(base, "__module__", ""))
        if base is made or name.partition(".")[0] not in OTHERS:
            yield str(getattr(sys.modules.get(name), "__file__", ""))


def told(error: BaseException) -> str:
    """The error and where it happened, in one line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((_HERE, "<frozen"))]
    return _told(error, frames[-1] if frames else None)


def _told(error: BaseException, at: traceback.FrameSummary | None) -> str:
    said = str(error).partition("\n")[0]
    if isinstance(error, SystemExit):
        said = f"the program asks to end with status {error.code!r}"
    place = f" ({Path(at.filename).name}, line {at.lineno})" if at is not None else ""
    return f"{type(error).__name__}: {said}{place}"


@contextlib.contextmanager
def blamed() -> Iterator[None]:
    """Turns whatever goes wrong in a named class into one message with its place; `sys.exit` does not end the
    program.

    Ctrl-C is Ctrl-C wherever it strikes.
    """
    try:
        yield
    except (SordinoError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if (said := blame(error)) is None:
            raise
        raise said from error


def blame(error: BaseException) -> OwnCodeError | None:
    """The message for an error that came through the file of a named class; None where it did not."""
    theirs = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _FILES]
    if not theirs:
        return None
    last = theirs[-1]
    return OwnCodeError(
        f"your own code failed: {_told(error, last)}",
        why=f"it happened in {last.name}: {last.line}" if last.line else f"it happened in {last.name}",
        fix="correct it, then start again, or continue with `sordino resume`: nothing that was released is lost",
        code="own-code",
    )
