"""YAML as registries and hubs want it. Every value is JSON, which is YAML too, but for texts of several lines.

Nothing here can read YAML: its readers build what a file names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping


def as_yaml(told: Mapping[str, object]) -> str:
    """Names and values, in their order."""
    return "".join(f"{line}\n" for line in _lines(told))


def _lines(told: Mapping[str, object]) -> Iterator[str]:
    for name, value in told.items():
        if isinstance(value, Mapping) and value:
            yield f"{name}:"
            yield from (f"  {line}" for line in _lines(value))
        elif isinstance(value, str) and "\n" in value:
            yield f"{name}: |-"
            yield from (f"  {_printable(line)}" for line in value.split("\n"))
        else:
            yield f"{name}: {_value(value)}"


def _value(value: object) -> str:
    if isinstance(value, float):
        base, sign, power = repr(value).partition("e")
        return f"{base if '.' in base else base + '.0'}{sign}{power}"  # 1e-05 is a text to some readers
    return _printable(json.dumps(value, ensure_ascii=False))


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text)
