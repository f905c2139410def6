"""Read settings from TOML files and from the command line, where plain words need no quotes."""

from __future__ import annotations

import difflib
import stat
import tomllib
from collections.abc import Container
from pathlib import Path
from typing import Any

from sordino.config.wording import sweep
from sordino.errors import ConfigError

LARGEST = 1 << 24  # bytes of an experiment file
DEEPEST = 20  # tables and lists inside each other
TOO_DEEP = f"tables or lists lie more than {DEEPEST} deep inside each other"
SWEEP = "one run has one value of everything; a sweep is a comparison of several runs"


def read(path: Path, settings: Container[str]) -> dict[str, Any]:
    """The table of an experiment file. `settings`: names of settings, to recognise one that was given in place of a
    file.
    """
    try:
        if stat.S_ISCHR(path.stat().st_mode) or path.stat().st_size > LARGEST:
            raise OSError(f"it is a device, or larger than {LARGEST:,} bytes")
        return _table(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        beside = [str(path.with_name(file.name)) for file in path.absolute().parent.glob("*.toml")]
        near = difflib.get_close_matches(str(path), beside, n=1)
        raise ConfigError(
            f"there is no experiment file {path}",
            fix=f"to change a setting, write {path}=VALUE"
            if str(path) in settings
            else f"did you mean {near[0]}?"
            if near
            else "check the path; `sordino run` without a file runs the default experiment",
            code="no-file",
        ) from None
    except IsADirectoryError:
        run = (path / "experiment.toml").is_file()
        raise ConfigError(
            f"{path} is a {'run ' * run}folder, not an experiment file",
            why="what is finished is shown by `sordino show`, `list` and `report`; to run it again takes its file"
            if run
            else "",
            fix=f"use {path / 'experiment.toml'}" if run else "give the path of a TOML file",
            code="no-file",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read {path}", why=str(error), fix="give a text file in TOML", code="unreadable-file"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{path} is not valid TOML: {error}", fix="put texts in quotes, tables under a [header]", code="bad-toml"
        ) from None


def _table(text: str) -> dict[str, Any]:
    """The table of a text in TOML; refused where it is nested deeper than an experiment can be."""
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError(TOO_DEEP) from None
    inside: list[Any] = [found]
    for _ in range(DEEPEST):
        inside = [
            value
            for one in inside
            for value in (one.values() if isinstance(one, dict) else one)
            if isinstance(value, dict | list)
        ]
    if inside:
        raise tomllib.TOMLDecodeError(TOO_DEEP)
    return found


def parsed(override: str) -> tuple[str, Any]:
    """The key and the value of `key=value`."""
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ConfigError(
            f"{override!r} is not key=value", fix="write it like rounds=20 or algorithm.lr=0.05", code="bad-override"
        )
    try:
        return path, _table(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return path, _word(override, text)


def _word(override: str, text: str) -> str:
    """The text of a value without quotes. Several values are refused: they are a sweep, which one run cannot be."""
    if text.lstrip().startswith(("{", "[", '"', "'")):
        raise ConfigError(
            f"{override!r} is not valid TOML",
            why="every bracket and quote must be closed, and a text inside brackets needs quotes of its own",
            fix="put the whole setting in quotes for the shell: 'algorithm={name = \"fedavg\", lr = 0.1}'",
            code="bad-override",
        )
    try:
        several = len(_table(f"v = [{text}]")["v"]) > 1
    except tomllib.TOMLDecodeError:
        return text
    if several:
        raise ConfigError(f"{override!r} has several values", why=SWEEP, fix=sweep(override), code="sweep-in-a-run")
    return text
