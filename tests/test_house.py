"""The floor plan: what the pages show is what the imports say."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import house  # noqa: E402

MOST_FILES = 12  # on the top floor


@pytest.mark.parametrize("page", ["README.md", "docs/adr/012-the-house.md"])
def test_the_plan_that_is_shown_is_drawn_from_the_imports(page: str) -> None:
    assert f"```text\n{house.drawing()}\n```" in (ROOT / page).read_text(encoding="utf-8")


def test_the_top_floor_is_small_and_every_room_says_what_it_holds() -> None:
    files = list(house.PACKAGE.glob("*.py"))
    assert len(files) <= MOST_FILES
    assert all(house.rooms().values())


def test_the_import_contract_is_the_plan() -> None:
    written = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layers = [{part.strip().removeprefix("sordino.") for part in layer.split("|")} for layer in written[0]["layers"]]
    assert layers == [set(floor) for floor in house.floors()]


def test_a_circle_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(house, "imports", lambda: {"data": {"tasks"}, "tasks": {"data"}})
    with pytest.raises(ValueError, match="circle"):
        house.floors()


def test_nothing_asks_a_plug_in_by_name() -> None:
    """Algorithms and readers declare what they answer: nobody looks whether they have a name."""
    asked = []
    for file in house.PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("hasattr", "getattr"):
                of = ast.unparse(node.args[0])
                if of.rpartition(".")[2] in ("algorithm", "_algorithm", "read", "reader", "phase", "training"):
                    asked.append(f"{file.name}: {ast.unparse(node)}")
    assert asked == []
