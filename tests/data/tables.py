"""Tables with a schema, and rows that differ."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sordino.data import schema
from sordino.errors import SordinoError

Row = dict[str, Any]


DECLARED = """
[columns]
place = { kind = "number", range = [0, 100] }
age = { kind = "number", range = [0, 120] }
ward = { kind = "levels", levels = ["A", "B", "rest"], other = "rest" }
status = { kind = "levels", levels = ["positive", "negative"] }
smokes = { kind = "boolean" }
note = { kind = "ignored" }
clinic = { kind = "group", names = ["South", "North"] }
outcome = { kind = "label", classes = ["well", "ill", "worse"] }
"""


def saved(folder: Path, rows: Sequence[Row], name: str = "visits.csv") -> Path:
    with open(folder / name, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder / name


def table(count: int = 40, **changes: Any) -> list[Row]:
    rows = [
        {
            "place": i,
            "age": 20 + i,
            "ward": "AB"[i % 2],
            "status": ("positive", "negative")[i // 2 % 2],
            "smokes": ("true", "false")[i // 3 % 2],
            "note": f"remark {i}",
            "clinic": ("North", "South")[i % 2],
            "outcome": ("well", "ill")[i // 2 % 2],
        }
        for i in range(count)
    ]
    return [row | changes for row in rows]


def refused(load: Callable[[], object]) -> SordinoError:
    with pytest.raises(SordinoError) as caught:
        load()
    return caught.value


# what is declared -----------------------------------------------------------------------------------------------------
def declared(text: str = DECLARED) -> schema.TableSchema:
    return schema.parsed(text)
