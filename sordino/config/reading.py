"""Reads settings from TOML files and from the command line, where plain words need no quotes; puts validation errors
into the words of the user's file; and builds what a table names, with exactly its parameters: `[algorithm] name =
"fedprox"`.

The signature of the chosen class or function is the schema, so a new algorithm needs nothing beside its file.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
import stat
import tomllib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import ErrorDetails

from sordino import user_code
from sordino.accounting.claims import check_neighbours
from sordino.errors import ConfigError, Range, check_range

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
    """Key and value of an override `key=value`."""
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
    """Value of an override, given without quotes. A list of values (a sweep, for several runs) is refused."""
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


A_TABLE = "it must be a table {key = value, ...}"
SAID = {  # what pydantic says of types, in TOML's words
    "dict_type": A_TABLE,
    "model_type": A_TABLE,
    "list_type": "it must be a list [...]",
    "tuple_type": "it must be a list [...]",
    "int_type": "it must be a whole number",
    "float_type": "it must be a number",
    "string_type": 'it must be a text "..."',
    "bool_type": "it must be true or false",
}


TOTAL = (
    "set privacy.epsilon, the budget of the one gate whose noise it sizes; the receipt has a row for each other "
    "promise: epsilons cannot be added up when they are about different units, neighbours or adversaries"
)
MEANT = {  # keys that many look for, and where what they mean is said
    "privacy.unit": "leave it out: what is protected follows from where the noise is, a [read] protects an example and "
    "an [uplink] a client; `sordino algorithms` says which of them a method has",
    "privacy.total_eps": TOTAL,
    "privacy.total_epsilon": TOTAL,
}


def check_keys(table: Mapping[str, object], known: Iterable[str], where: str) -> None:
    names = list(known)
    for key in table:
        if key not in names:
            raise unknown(key, names, where)


def unknown(key: str, names: Iterable[str], where: str, elsewhere: Iterable[str] = ()) -> ConfigError:
    """The error for an unknown key. `elsewhere`: full names of settings of other tables that may be meant."""
    meant = " or ".join(f"{place}=..." for place in elsewhere)
    fix = f"write {meant}" if meant else nearest(key, names)
    return ConfigError(f"{where} has no key {key!r}", fix=fix, code="unknown-key")


def nearest(word: str, names: Iterable[str]) -> str:
    listed = list(names)
    close = difflib.get_close_matches(word, listed, n=1)
    if not listed:
        return f"leave {word} out: there is nothing to set here"
    return f"did you mean {close[0]!r}?" if close else f"one of: {', '.join(listed)}"


def wrong(error: ValidationError, where: str, keys_of: Mapping[str, Iterable[str]]) -> ConfigError:
    """Error for a table that fails pydantic's validation. `keys_of`: the keys of each section, for suggestions."""
    first, *others = error.errors()
    loc, why = first["loc"], [_said(first)]
    if first["type"] == f"{str(loc[-1]).partition('[')[0]}_type":  # one of several types that it may have
        why += [_said(other) for other in others if other["loc"][:-1] == loc[:-1]]
        loc = loc[:-1]
    elif first["type"] == "finite_number" and loc[-1] == "float":
        loc = loc[:-1]
    place = ".".join(str(part) for part in loc)
    if first["type"] == "extra_forbidden":
        names = keys_of.get(str(first["loc"][0]), ())
        return ConfigError(
            f"{where} has no key {place!r}",
            fix=MEANT.get(place) or nearest(str(first["loc"][-1]), names),
            code="unknown-key",
        )
    if first["type"] == "missing":
        return ConfigError(
            f"{where} needs {place}", why="this setting has no default", fix=f"give {place} a value", code="wrong-type"
        )
    fix = _fix(first, place)
    why_text = "" if fix.startswith("one of: ") else ", or ".join(why).replace(", or it must be ", " or ")
    return ConfigError(f"{where}: {place} = {first['input']!r}", why=why_text, fix=fix, code="wrong-type")


def _said(error: ErrorDetails) -> str:
    message = SAID.get(error["type"], error["msg"])
    if expected := error.get("ctx", {}).get("expected"):
        return f"it is one of {expected}".replace("' or '", "', '")
    return message[0].lower() + message[1:]


def _fix(error: ErrorDetails, place: str) -> str:
    given, expected = error["input"], error.get("ctx", {}).get("expected")
    if isinstance(given, str) and isinstance(expected, str):
        return nearest(given, expected.replace(" or ", ", ").replace("'", "").split(", "))
    if isinstance(given, tuple | list) and len(given) > 1 and error["type"] not in ("dict_type", "model_type"):
        return sweep(f"{place}={','.join(map(str, given))}")
    if error["type"] in ("dict_type", "model_type"):
        return f"for example {place}.KEY=VALUE, or {place}={{key = value}}"
    if isinstance(expected, str):
        return f"one of: {expected.replace(' or ', ', ').replace(chr(39), '')}"
    return f"for example {place}={LIKE[error['type']]}" if error["type"] in LIKE else ""


LIKE = {"int_type": "10", "float_type": "0.5", "finite_number": "0.5", "bool_type": "true"}


def sweep(setting: str) -> str:
    """Advice for the error about a setting with several values: the command that runs each of them. Two whole numbers
    may be meant as one with a decimal comma; then that is said too.
    """
    comma = re.fullmatch(r"([\w.]+=-?\d+),(\d+)", setting)
    point = f"; or write {comma[1]}.{comma[2]}, with a decimal point" if comma else ""
    return f"sordino compare EXPERIMENT.toml --set {setting}{point}"


T = TypeVar("T")
CHOOSERS = {
    "partition": "scheme",
    "model": "name",
    "cohort": "name",
    "algorithm": "name",
    "data": "source",
    "candidates": "source",
    "loss": "name",
    "task": "name",
}


def build(
    table: Mapping[str, object],
    choices: Mapping[str, Callable[..., T]],
    where: str,
    key: str = "name",
    own: type[T] | None = None,
) -> T:
    """Calls the class or function that a table names, with the rest of the table as arguments. `own`: the class that a
    user's own choice must be a subclass of.
    """
    rest = {field: tuple(value) if isinstance(value, list) else value for field, value in table.items()}
    name = rest.pop(key, None)
    if own is not None and isinstance(name, str) and user_code.is_own(name):
        return filled(user_code.of_kind(name, where, own), rest, f"[{where}] {name}")
    if not isinstance(name, str) or name not in choices:
        raise ConfigError(
            f"[{where}] {key} = {name!r} is not known", fix=nearest(str(name), choices), code="unknown-choice"
        )
    if rest and not parameters(choices[name]):
        takers = [other for other in choices if rest.keys() <= parameters(choices[other]).keys()]
        raise ConfigError(
            f"[{where}] {name} has no key {next(iter(rest))!r}",
            why=f"{name} takes no settings",
            fix=(f"choose it without: {where}={name}" if where in CHOOSERS else "leave it out")
            + (f"; or one that takes it: {where}.{key}={' or '.join(takers)}" if takers else ""),
            code="unknown-key",
        )
    return filled(choices[name], rest, f"[{where}] {name}")


def filled(made: Callable[..., T], table: Mapping[str, object], where: str) -> T:
    """Call a class or function with a table as its arguments, checked by its signature."""
    fields = parameters(made)
    if table.keys() - fields.keys():
        from sordino.algorithms.preset import Preset

        if isinstance(made, Preset):
            made.refuse_fixed(table)
    check_keys(table, fields, where)
    if table.get("neighbours") is not None:
        check_neighbours(table["neighbours"])
    try:
        values = _model(made).model_validate(table)
    except ValidationError as error:
        raise wrong(error, where, {}) from None
    check_ranges(values, f"{where[1:].partition(']')[0]}.")
    return made(**{field: getattr(values, field) for field in fields if field in table})


def check_ranges(values: BaseModel, inside: str = "") -> None:
    """Refuses numbers outside the range of their setting; a list holds one number for each client process."""
    for name, allowed in _ranges(type(values)):
        value, place = getattr(values, name), f"{inside}{name}"
        if value == []:
            raise ConfigError(
                f"{place} is an empty list",
                why="a list has a number for each client process, in turn",
                fix="write numbers into it, or leave the setting out",
                code="out-of-range",
            )
        for number in value if isinstance(value, list) else [value]:
            if number is not None and number != "auto":
                check_range(place, number, allowed, "out-of-range")
    for name, value in values.__dict__.items():
        if isinstance(value, BaseModel):
            check_ranges(value, f"{inside}{name}.")


@lru_cache(maxsize=256)
def _ranges(kind: type[BaseModel]) -> Sequence[tuple[str, Range]]:
    """Settings of a table that have a range, each with that range."""
    return [(n, one) for n, field in kind.model_fields.items() for one in field.metadata if isinstance(one, Range)]


@lru_cache(maxsize=256)
def _model(made: Callable[..., object]) -> type[BaseModel]:
    strict = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
    model: type[BaseModel] = create_model("Table", __config__=strict, **parameters(made))  # type: ignore[call-overload]
    return model


@lru_cache(maxsize=256)
def parameters(made: Callable[..., object]) -> dict[str, tuple[Any, Any]]:
    """The parameters of a class or function that a table may set: name -> (type, default). Left out are the reader and
    the uplink of an algorithm, which [read] and [uplink] choose, and names that begin with `_`, which the engine sets.
    """
    # a class that is no dataclass has its type hints in the constructor
    written = inspect.isclass(made) and inspect.isfunction(made.__init__) and not dataclasses.is_dataclass(made)
    hints = get_type_hints(made, include_extras=True)
    hints |= get_type_hints(made.__init__, include_extras=True) if written else {}
    found = {}
    for name, parameter in inspect.signature(made).parameters.items():
        if name not in ("read", "uplink") and not name.startswith("_"):
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            found[name] = (hints.get(name, Any), default)
    return found
