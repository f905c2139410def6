"""Catalogue of an experiment's choices and of the meaning of each parameter: for people, editors and other programs.

Reading it off the code takes seconds, because that loads torch; so it is stored in catalogue.json, which a test
compares with the code. `python -m sordino.runs.catalogue` writes it anew."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import tomllib
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any

from sordino.accounting.events import Json
from sordino.branches import part
from sordino.config import Experiment, Section, parameters
from sordino.config.reading import nearest
from sordino.errors import ConfigError

HERE = Path(__file__).parent
FILE, MEANINGS = HERE / "catalogue.json", HERE / "meanings.toml"
GIVEN = {"model": ("shape", "classes")}  # what the data decide, and no table
# example values for gates whose guarantee depends on them: a client's examples, their shape, their classes
SIZE, SHAPE, CLASSES = 100, (28, 28, 1), 10
KEYS = {"partition": "scheme", "candidates": "source"}  # how a table names its choice, if not by `name`
_SCHEMAS: dict[str, Any] = {}  # schemas already computed, by type


@cache
def catalogue() -> Json:
    """Everything that an experiment file can choose, as it is stored: for each of its tables, such as [algorithm], each
    choice with its description and parameters.
    """
    found: Json = json.loads(FILE.read_text(encoding="utf-8"))
    return found


@cache
def meanings() -> Json:
    return tomllib.loads(MEANINGS.read_text(encoding="utf-8"))


def of_algorithm(name: str) -> Json:
    """Catalogue entry of one algorithm: a listed one, or a user's own (`module:Class`)."""
    listed = catalogue()["algorithm"]
    if ":" in name:
        from sordino.algorithms.algorithm import own_algorithm

        return _entry("algorithm", name, own_algorithm(name))
    if name not in listed:
        raise ConfigError(
            f"there is no algorithm {name!r}",
            fix=f"{nearest(name, listed)}; `module:Class` names one of your own",
            code="unknown-choice",
        )
    found: Json = listed[name]
    return found


# from the code --------------------------------------------------------------------------------------------------------


def asked() -> Json:
    """The catalogue of all choices and their parameters, derived from the code."""
    return {
        table: {name: _entry(table, name, made) for name, made in choices.items()}
        for table, choices in _choices().items()
    }


def _choices() -> dict[str, Mapping[str, Callable[..., object]]]:
    from sordino.algorithms import all_algorithms
    from sordino.budget import SCHEDULES
    from sordino.config import gates
    from sordino.partition import SCHEMES
    from sordino.sampling.by_budget import COHORTS
    from sordino.tasks import PROBLEMS
    from sordino.tasks.nets import NETS

    return {
        "algorithm": all_algorithms(),
        "partition": SCHEMES,
        "model": NETS,
        "cohort": COHORTS,
        "schedule": SCHEDULES,
        "read": gates.READERS,
        "uplink": gates.STAGES,
        "candidates": part("candidates", "sources"),
        "task": PROBLEMS,
    }


def _entry(table: str, name: str, made: Callable[..., object]) -> dict[str, Any]:
    from sordino.runs.backend import CandidateSettings

    taken = parameters(made) | (parameters(CandidateSettings) if table == "candidates" else {})
    words = meanings()[table]
    entry: dict[str, Any] = {"summary": _summary(made)}
    entry["parameters"] = {
        parameter: {
            "type": _words(kind),
            "schema": _schema(kind),
            **({"required": True} if default is ... else {"default": _plain(default)}),
            "meaning": words.get(f"{name}.{parameter}", words.get(parameter, "")),
        }
        for parameter, (kind, default) in taken.items()
        if parameter not in GIVEN.get(table, ())
    }
    if table == "algorithm":
        entry |= _of_method(made)
    return entry


def _of_method(made: Callable[..., Any]) -> dict[str, Any]:
    """Description of a method: its paper, its base, and the guarantees of its default clip and noise (reader and
    uplink).
    """
    from sordino.algorithms.phases import Phased
    from sordino.algorithms.preset import Preset

    module = inspect.getmodule(made)
    about = inspect.cleandoc((module.__doc__ if module is not None else "") or "").split("\n\n")
    method = made()
    phases = (*method.preparation, method.training) if isinstance(method, Phased) else (method,)
    claims = [
        claim
        for phase in phases
        for claim in (
            *phase.read.fitted(SHAPE, CLASSES).claims(phase.work, SIZE, 1.0),
            *phase.uplink.claims(1.0, lambda event, by: event),
        )
    ]
    promised: dict[str, list[str]] = {}
    for claim in claims:
        if claim.status != "none":
            against = promised.setdefault(f"{claim.unit} ({claim.neighbours}): {claim.status}", [])
            against += [claim.adversary] if claim.adversary not in against else []
    return {
        "paper": " ".join(about[0].split()),
        "notes": [" ".join(part.split()) for part in about[1:]],
        "base": made.base if isinstance(made, Preset) else None,
        "protects": [f"{what}, against {', '.join(whom)}" for what, whom in promised.items()],
        "phases": len(phases),
    }


def _summary(made: Callable[..., object]) -> str:
    """First paragraph of the docstring of `made`; where it has none, of its module's."""
    text = (made.__dict__.get("__doc__") if inspect.isclass(made) else made.__doc__) or ""
    if not text or text.startswith(f"{getattr(made, '__name__', '')}("):  # dataclasses and named tuples invent theirs
        module = inspect.getmodule(made)
        text = (module.__doc__ if module is not None else "") or ""
    return " ".join(inspect.cleandoc(text).split("\n\n")[0].split())


def _words(kind: Any) -> str:
    return " | ".join(dict.fromkeys(_kinds(kind)))


def _kinds(kind: Any) -> Iterator[str]:
    if isinstance(kind, UnionType) or typing.get_origin(kind) is typing.Union:
        for part in typing.get_args(kind):
            yield from _kinds(part)
    elif typing.get_origin(kind) is typing.Literal:
        yield from (json.dumps(choice) for choice in typing.get_args(kind))
    elif typing.get_origin(kind) is typing.Annotated:  # with a range
        yield from _kinds(typing.get_args(kind)[0])
    else:
        names = {int: "integer", float: "number", str: "text", bool: "true | false", type(None): "none"}
        names |= {tuple: "list", list: "list", dict: "table"}
        origin = typing.get_origin(kind) or kind
        yield names.get(origin, "table" if isinstance(origin, type) and issubclass(origin, Mapping) else "list")


def _schema(kind: Any) -> Any:
    """JSON Schema of a type. The cache is by `repr`: equal types whose parts stand in another order have different
    schemas.
    """
    if repr(kind) not in _SCHEMAS:
        from pydantic import TypeAdapter

        _SCHEMAS[repr(kind)] = TypeAdapter(kind).json_schema()
    return _SCHEMAS[repr(kind)]


def _plain(value: Any) -> Any:
    """A default as a file would write it."""
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value if value is None or isinstance(value, bool | int | float | str | dict) else None


def write() -> None:
    FILE.write_text(json.dumps(asked(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()


DIALECT = "http://json-schema.org/draft-07/schema#"  # the one that TOML editors read
# module:Class
NAME_OF_OWN: Json = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$"}
OWN_PARTS = ("algorithm", "model", "partition", "cohort")


def schema() -> Json:
    """JSON Schema of an experiment: type, default and meaning of every table and key."""
    made = _inlined(Experiment.model_json_schema(ref_template="{model}"))
    _describe(made, Experiment)
    properties = made["properties"]
    for table in ("algorithm", "partition", "model", "cohort", "read", "candidates", "task"):
        properties[table] |= _choice(table)
    stages: list[Json] = [{"type": "string", "enum": [*catalogue()["uplink"]]}, _choice("uplink")]
    steps = {"type": "array", "items": {"anyOf": stages}}
    gates = {"client": steps, "server": steps, "denominator": {"type": "number"}}
    sums = {"type": "object", "properties": gates, "additionalProperties": False}
    properties["uplink"]["anyOf"] = [steps, sums]
    properties["privacy"]["properties"]["schedule"] |= _choice("schedule")
    source = properties["data"]["properties"]["source"]
    source["anyOf"] = [{"type": source.pop("type"), "enum": source.pop("enum")}, NAME_OF_OWN]
    properties["loss"]["anyOf"][0] |= {"properties": {"name": NAME_OF_OWN}, "required": ["name"]}
    return {"$schema": DIALECT, **made, "title": "An experiment of sordino"}


def _choice(table: str) -> Json:
    """JSON Schema of a table that names a choice: one form for each choice, with exactly its parameters."""
    key, choices = KEYS.get(table, "name"), catalogue()[table]
    forms: list[Json] = [
        {
            "title": name,
            "description": entry["summary"],
            "type": "object",
            "properties": {key: {"const": name}, **{k: _parameter(v) for k, v in entry["parameters"].items()}},
            "required": [key, *(k for k, v in entry["parameters"].items() if v.get("required"))],
            "additionalProperties": False,
        }
        for name, entry in choices.items()
    ]
    if table in OWN_PARTS:
        forms.append({"title": "your own", "type": "object", "properties": {key: NAME_OF_OWN}, "required": [key]})
    return {"type": "object", "required": [key], "anyOf": forms}


def _parameter(entry: Json) -> Json:
    default = {} if entry.get("default") is None else {"default": entry["default"]}
    return {**entry["schema"], "description": entry["meaning"], **default}


def _inlined(made: Json) -> Json:
    """The JSON Schema with each reference replaced by the section that it names."""
    known = made.pop("$defs", {})

    def put(value: Any) -> Any:
        if isinstance(value, dict):
            there = known[value["$ref"]] if "$ref" in value else {}
            return {name: put(part) for name, part in {**there, **value}.items() if name not in ("$ref", "title")}
        return [put(part) for part in value] if isinstance(value, list) else value

    found: Json = put(made)
    return found


def field_meanings(section: type[Section]) -> dict[str, str]:
    """The meaning of each key of a section: the text below its field."""
    (written,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(written, ast.ClassDef)
    return {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in pairwise(written.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


def _describe(made: Json, section: type[Section]) -> None:
    for name, words in field_meanings(section).items():
        made["properties"][name]["description"] = words
        kind = section.model_fields[name].annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            _describe(made["properties"][name], kind)
