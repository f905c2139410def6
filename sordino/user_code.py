"""Code of the user's own, named as `module:Class` or `session:Name`.

Modules are looked up from the current directory. Objects of a Python session can be looked up only inside `lent`, in
the process of that session.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import operator
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from sordino.errors import ConfigError, OwnCodeError, SordinoError

_NAME = re.compile(r"session:.+|[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")  # all that `load` takes, so `named` misses none
_HERE = str(Path(__file__).parent)
_FILES: set[str] = set()  # of classes that were named in this process, and of those they are made from
LIBRARIES = ("sordino", "torch", "builtins", "abc", "typing", "numpy", "pandas", "pyarrow")  # blamed for nothing
SESSION = "session:"
ROWS = SESSION + "data"  # lent by Python as arrays or a table: no code
_LENT: ContextVar[Mapping[str, object] | None] = ContextVar("lent", default=None)
T = TypeVar("T")


def is_own(name: str) -> bool:
    """True for the name of a user's own class, FILE.py:CLASS or MODULE:CLASS."""
    return ":" in name


def named(table: object) -> Iterator[str]:
    """Every name of a user's own class in an experiment, at any depth."""
    if isinstance(table, str):
        if _NAME.fullmatch(table):
            yield table
    elif isinstance(table, Mapping | list | tuple):
        for value in table.values() if isinstance(table, Mapping) else table:
            yield from named(value)


def load(path: str, what: str) -> Any:
    """The class that `module:Class` names. The module is the user's program: whatever goes wrong in it becomes an error
    that says where it happened.
    """
    if not _NAME.fullmatch(path):
        raise ConfigError(
            f"{path!r} does not name a {what}",
            why="names of modules and classes have letters, digits, underscores and dots, and begin with no digit",
            fix="rename the file, and write module:Class",
            code="own-name",
        )
    if is_lent(path):
        return _of_session(path, what)
    module_name, _, class_name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = operator.attrgetter(class_name)(importlib.import_module(module_name))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ConfigError(
            f"cannot load the {what} {path!r}: {described(error)}",
            why=f"{what}.name has a colon, so it is read as python_module:ClassName, a file in the current "
            "directory or an installed module",
            fix="check the spelling, and start sordino in the directory that holds the file",
            code="own-import",
        ) from error
    _FILES.update(_files(found))
    return found


def _of_session(path: str, what: str) -> Any:
    if (found := (_LENT.get() or {}).get(path.removeprefix(SESSION))) is None:
        raise ConfigError(
            f"{path!r} was an object of the Python session that began the run",
            why="it is not stored in a file, so it must be given again",
            fix=f"give it in Python, for example sordino.open_run(folder, {what}=...).report(), and with resume and "
            f"predict in the same way; or put it into a module, and begin a run with {what}=module:Name",
            code="own-session",
        )
    _FILES.update(_files(found))
    return found


def is_lent(name: str) -> bool:
    """True for a name that stands for an object of a Python session, not for a class in a module."""
    return name.startswith(SESSION)


@contextlib.contextmanager
def lent(objects: Mapping[str, object]) -> Iterator[None]:
    """Makes these objects of a Python session available by their names inside the block."""
    before = _LENT.set({**(_LENT.get() or {}), **objects})
    try:
        yield
    finally:
        _LENT.reset(before)


def name_of(made: Any) -> str:
    """Name of a user's object in an experiment: `module:Class` where a new process can import the same object; else
    `session:Name`, which only this session can look up.
    """
    name = str(made.__qualname__)
    if made.__module__ != "__main__" and "<" not in name:
        with contextlib.suppress(ImportError, AttributeError):
            if operator.attrgetter(name)(importlib.import_module(made.__module__)) is made:
                return f"{made.__module__}:{name}"
    return SESSION + str(made.__name__)


def parts(*held: object) -> Iterator[str]:
    """Names of the user's own classes among these objects, also in dataclass fields, tuples and lists."""
    for one in held:
        if not _is_library(type(one)):
            yield name_of(type(one))
        if dataclasses.is_dataclass(one):
            yield from parts(*(getattr(one, each.name) for each in dataclasses.fields(one)))
        elif isinstance(one, tuple | list):
            yield from parts(*one)


def of_kind(path: str, what: str, base: type[T]) -> type[T]:
    """The named class; refused unless it is a subclass of `base` without abstract methods."""
    made = load(path, what)
    if not (isinstance(made, type) and issubclass(made, base)):
        why = f"it is not a subclass of {base.__module__}.{base.__qualname__}"
    elif inspect.isabstract(made):
        why = f"it has no {', '.join(sorted(getattr(made, '__abstractmethods__', ())))}"
    else:
        return made
    raise ConfigError(
        f"{path!r} is not a valid {what}",
        why=why,
        fix=f"write a subclass of {base.__qualname__} with all of its methods; `sordino check FILE` tries it",
        code="not-a-part",
    )


def made_of(classes: Iterable[type]) -> None:
    """Registers classes that a user's own function has used, so that an error in their files is reported with its
    place.
    """
    for cls in classes:
        if not _is_library(cls):
            _FILES.update(_files(cls))


def _is_library(cls: type) -> bool:
    return str(cls.__module__).partition(".")[0] in LIBRARIES


def _files(made: Any) -> Iterator[str]:
    whole = made.__mro__ if isinstance(made, type) else (made,) if inspect.isfunction(made) else type(made).__mro__
    for base in whole:
        name = str(base.__module__)
        if base is not made and name.partition(".")[0] in LIBRARIES:
            continue
        yield str(getattr(sys.modules.get(name), "__file__", ""))
        for method in (base, *vars(base).values()):  # of a notebook, whose cells are files of their own
            if inspect.isfunction(method) and method.__code__.co_filename != "<string>":
                yield method.__code__.co_filename


def described(error: BaseException) -> str:
    """The error and where it happened, in one line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((_HERE, "<frozen"))]
    return _described(error, frames[-1] if frames else None)


def _described(error: BaseException, at: traceback.FrameSummary | None) -> str:
    text = str(error).partition("\n")[0]
    if isinstance(error, SystemExit):
        text = f"the program asks to end with status {error.code!r}"
    place = f" ({Path(at.filename).name}, line {at.lineno})" if at is not None else ""
    return f"{type(error).__name__}: {text}{place}"


@contextlib.contextmanager
def blamed() -> Iterator[None]:
    """Turns an exception from the file of a user's own class into one message with its place; `sys.exit` there does not
    end the program.

    Ctrl-C interrupts as usual.
    """
    try:
        yield
    except (SordinoError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if (text := blame(error)) is None:
            raise
        raise text from error


def blame(error: BaseException) -> OwnCodeError | None:
    """The error for an exception that passed through the file of a user's own class; None for any other exception."""
    theirs = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _FILES]
    if not theirs:
        return None
    last = theirs[-1]
    return OwnCodeError(
        f"your own code failed: {_described(error, last)}",
        why=f"it happened in {last.name}: {last.line}" if last.line else f"it happened in {last.name}",
        fix="correct it, then start again, or continue with `sordino resume`: nothing that was released is lost",
        code="own-code",
    )
