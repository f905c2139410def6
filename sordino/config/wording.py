"""Validation errors of settings, in the words of the file that holds them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sordino.errors import ConfigError

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
    """The error for a table that pydantic cannot read. `keys_of`: the keys of each section that has keys of its own."""
    first, *others = error.errors()
    loc, why = first["loc"], [_said(first)]
    if first["type"] == f"{str(loc[-1]).partition('[')[0]}_type":  # one of several types that it may have
        why += [_said(other) for other in others if other["loc"][:-1] == loc[:-1]]
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
    told = "" if fix.startswith("one of: ") else ", or ".join(why).replace(", or it must be ", " or ")
    return ConfigError(f"{where}: {place} = {first['input']!r}", why=told, fix=fix, code="wrong-type")


def _said(error: ErrorDetails) -> str:
    said = SAID.get(error["type"], error["msg"])
    if expected := error.get("ctx", {}).get("expected"):
        return f"it is one of {expected}".replace("' or '", "', '")
    return said[0].lower() + said[1:]


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


LIKE = {"int_type": "10", "float_type": "0.5", "bool_type": "true"}


def sweep(setting: str) -> str:
    """The command that runs several values. Two whole numbers may be meant as one with a decimal comma: then that is
    offered too.
    """
    comma = re.fullmatch(r"([\w.]+=-?\d+),(\d+)", setting)
    point = f"; or write {comma[1]}.{comma[2]}, with a decimal point" if comma else ""
    return f"sordino compare EXPERIMENT.toml --set {setting}{point}"
