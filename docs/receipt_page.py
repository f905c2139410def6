"""The page about the receipt, from the types that write it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from marking import joined, plain, table

from sordino.receipts import receipt_schema


def receipt() -> str:
    schema = receipt_schema()
    shapes = schema["$defs"]
    parts = [
        "# privacy.json",
        "The receipt of a run: what it promised and spent, to whom, under which assumptions. This page is made from "
        "the types that write it; `sordino privacy schema` prints the same as a JSON Schema. A receipt has "
        "no other fields, and a field that says no more than its default is left out. "
        "[Verify, sign, share](../guide/verify.md) says what the file proves and what not.",
        table(("field", "type", "", "meaning"), shape_rows(schema)),
    ]
    events = shapes.pop("Event")["oneOf"]
    for name, shape in sorted(shapes.items()):
        parts += [f"## {name}", plain(shape["description"]), table(("field", "type", "", "meaning"), shape_rows(shape))]
    rows = [
        (f"`{one['properties']['kind']['const']}`", event_fields(one["properties"]), plain(one["description"]))
        for one in events
    ]
    return joined(
        *parts,
        "## Event",
        "What happened to the data. Its `kind` says what else it has.",
        table(("kind", "fields", "meaning"), rows),
    )


def shape_rows(shape: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    return [
        (f"`{name}`", shape_type(kind), "" if name in shape["required"] else "optional", plain(kind["description"]))
        for name, kind in shape["properties"].items()
    ]


def event_fields(properties: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}` ({shape_type(kind)})" for name, kind in properties.items() if name != "kind")


def shape_type(kind: Mapping[str, Any]) -> str:
    """The type of a field, in words."""
    if "anyOf" in kind:
        return " or ".join(dict.fromkeys(map(shape_type, kind["anyOf"])))
    if "$ref" in kind:
        name = kind["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in kind:
        return ", ".join(f"`{choice}`" for choice in kind["enum"])
    if "const" in kind:
        return f"`{json.dumps(kind['const'])}`"
    if kind["type"] == "array":
        return f"list of {shape_type(kind['items'])}" if "items" in kind else "list"
    if kind["type"] == "object":
        return f"names with {shape_type(kind['additionalProperties'])}"
    return str(kind["type"])
