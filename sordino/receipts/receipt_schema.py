"""JSON Schema of privacy.json, for programs that read receipts: made from the types that a run writes, and from their
descriptions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from sordino.accounting.claims import AN_EVENT
from sordino.accounting.events import KINDS, Json
from sordino.receipts.run_files import Receipt

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TITLE = "privacy.json: what a run of sordino promised and spent, to whom, under which assumptions"
LINK = {"$ref": "#/$defs/Event"}
INSIDE: Mapping[str, Json] = {  # the types that fields of events have
    "float": {"type": "number"},
    "int": {"type": "integer"},
    "str": {"type": "string"},
    "Event": LINK,
    "tuple[Event, ...]": {"type": "array", "items": LINK},
}


def receipt_schema() -> Json:
    """JSON Schema of privacy.json. Fields that it does not name are not allowed."""
    made = Receipt.model_json_schema(mode="validation")
    shapes = made.pop("$defs")
    known = shapes["Guarantee"]["properties"]
    receipt = {"$schema": DIALECT, **made, "title": TITLE}
    for shape in (receipt, *shapes.values()):
        shape["additionalProperties"] = False
        shape["properties"] = {  # a row of a phase, and a subject, mean what a guarantee means
            field: {"description": known.get(field, kind).get("description", ""), **_written(kind)}
            for field, kind in shape["properties"].items()
        }
    whole: Json = _linked({**receipt, "$defs": {**shapes, "Event": {"oneOf": list(_events())}}})
    return whole


def _written(kind: Json) -> Json:
    """The type of a field in a file: a value that equals its default is left out, so null is not among its types."""
    kept = {name: value for name, value in kind.items() if name not in ("title", "default")}
    if "default" in kind and kind["default"] is None:
        kept["anyOf"] = [one for one in kind["anyOf"] if one != {"type": "null"}]
    return kept


def _events() -> Iterator[Json]:
    for kind, made in KINDS.items():
        parts = {field.name: INSIDE[str(field.type)] for field in fields(made)}
        yield {
            "type": "object",
            "description": made.meaning,
            "properties": {"kind": {"const": kind}, **parts},
            "required": ["kind", *parts],
            "additionalProperties": False,
        }


def _linked(part: Any) -> Any:
    """The schema with a reference in place of every event."""
    if part == AN_EVENT:
        return LINK
    if isinstance(part, dict):
        return {name: _linked(inner) for name, inner in part.items()}
    return [_linked(inner) for inner in part] if isinstance(part, list) else part
