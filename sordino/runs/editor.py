"""The experiment file as a JSON Schema, for editors that complete keys and say what they mean."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import Any

from sordino.accounting.events import Json
from sordino.config import Experiment, Section
from sordino.runs.catalogue import KEYS, catalogue

DIALECT = "http://json-schema.org/draft-07/schema#"  # the one that TOML editors read
# module:Class
NAME_OF_OWN: Json = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$"}
OWN_PARTS = ("algorithm", "model", "partition", "cohort")


def schema() -> Json:
    """Every table and key of an experiment: its type, its default, its meaning."""
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
    """A table that chooses something, and then takes exactly what that takes."""
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
    """Without references: every section stands where it belongs."""
    known = made.pop("$defs", {})

    def put(value: Any) -> Any:
        if isinstance(value, dict):
            there = known[value["$ref"]] if "$ref" in value else {}
            return {name: put(part) for name, part in {**there, **value}.items() if name not in ("$ref", "title")}
        return [put(part) for part in value] if isinstance(value, list) else value

    found: Json = put(made)
    return found


def meanings(section: type[Section]) -> dict[str, str]:
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
    for name, words in meanings(section).items():
        made["properties"][name]["description"] = words
        kind = section.model_fields[name].annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            _describe(made["properties"][name], kind)
