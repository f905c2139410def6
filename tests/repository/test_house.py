"""The floor plan: what the pages show is what the imports say."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

import sordino

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import house  # noqa: E402
import house_size  # noqa: E402

MOST_FILES = 12  # on the top floor


@pytest.mark.slow
def test_the_plan_that_is_shown_is_drawn_from_the_imports() -> None:
    for page, brief in (("README.md", True), ("docs/adr/012-the-house.md", False)):
        assert f"```text\n{house.drawing(brief)}\n```" in (ROOT / page).read_text(encoding="utf-8"), page
    assert set(house.MAIN.split()) <= set(house.rooms())


def test_the_top_floor_is_small_and_every_room_says_what_it_holds() -> None:
    files = list(house.PACKAGE.glob("*.py"))
    assert len(files) <= MOST_FILES
    assert all(house.rooms().values())


@pytest.mark.slow
def test_the_import_contract_is_the_plan() -> None:
    written = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layers = [{part.strip().removeprefix("sordino.") for part in layer.split("|")} for layer in written[0]["layers"]]
    assert layers == [set(floor) for floor in house.floors()]


def test_no_room_hides_a_function_of_the_package() -> None:
    """A module that is imported takes the place of what has its name."""
    assert not set(house.rooms()) & set(sordino.__all__)


def test_a_circle_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(house, "imports", lambda: {"data": {"tasks"}, "tasks": {"data"}})
    with pytest.raises(ValueError, match="circle"):
        house.floors()


def test_docstrings_comments_and_blanks_are_no_code(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text(
        '"""Said."""\n\nimport os  # why\n\n\ndef f(\n    x,\n):\n    """Said."""\n    # why\n    return """two\nlines"""\n'
    )
    assert (house_size.code_lines(file), house_size.import_lines(file)) == (6, 1)


def test_nothing_asks_a_plug_in_by_name() -> None:
    """Algorithms and readers declare what they answer: nobody looks whether they have a name."""
    asked = []
    for file in house.PACKAGE.rglob("*.py"):
        for node in house.nodes(file):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("hasattr", "getattr")
            ):
                of = ast.unparse(node.args[0])
                if of.rpartition(".")[2] in ("algorithm", "_algorithm", "read", "reader", "phase", "training"):
                    asked.append(f"{file.name}: {ast.unparse(node)}")
    assert asked == []


# algorithms/: each paper's file names its own states (Server, Client, Up); the others are told apart by their room
ONE_FILE_PER_PAPER = ("algorithms", "synthesis")


def public_classes() -> dict[str, set[str]]:
    """The files that define a class of this name."""
    places: dict[str, set[str]] = {}
    for file in house.PACKAGE.rglob("*.py"):
        place = file.relative_to(house.PACKAGE)
        for node in house.parsed(file).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, set()).add(place.as_posix())
    return places


def test_no_two_classes_share_a_name() -> None:
    several = {
        name: sorted(files)
        for name, files in public_classes().items()
        if len(files) > 1 and not all(file.startswith(ONE_FILE_PER_PAPER) for file in files)
    }
    assert several == {}


def test_the_glossary_is_short_and_its_words_are_those_of_the_code() -> None:
    rows = [
        line.split("|")[1:-1]
        for line in (ROOT / "docs/glossary.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| word")
    ]
    words = [word.strip() for word, _ in rows]
    assert 10 < len(words) <= 30
    assert words == sorted(set(words))
    code = " ".join(file.read_text(encoding="utf-8").lower() for file in house.PACKAGE.rglob("*.py"))
    assert [word for word in words if not re.search(rf"\b{word}", code)] == []


# one rule for the rooms whose docstrings are in order; the lead adds the others
PREPOSITIONS = {"As", "At", "By", "For", "From", "In", "Of", "To", "With"}


def test_docstrings_stand_without_the_name_of_the_thing() -> None:
    riddles = []
    for file in house.PACKAGE.rglob("*.py"):
        place = file.relative_to(house.PACKAGE).as_posix()
        for node in house.nodes(file):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                first = (ast.get_docstring(node) or "").split(" ")[0]
                if first in PREPOSITIONS:
                    riddles.append(f"{place}: {node.name}")
    assert riddles == []


@pytest.mark.parametrize("module", ["keys", "tree", "ledger", "privacy.uplink"])
def test_the_examples_in_docstrings_hold(module: str) -> None:
    outcome = doctest.testmod(importlib.import_module(f"sordino.{module}"))
    assert outcome.attempted > 3
    assert outcome.failed == 0
