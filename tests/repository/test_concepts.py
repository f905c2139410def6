"""What somebody needs to know to write SCAFFOLD: the list in the guide, held against the file."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import sordino

FILE = Path(sordino.__file__).parent / "algorithms" / "scaffold.py"
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "own-algorithm.md"
MOST = 12


def used(source: str) -> set[str]:
    """Names of the library that a file imports, the questions that it answers, and what it asks of what it is given."""
    nodes = list(ast.walk(ast.parse(source)))
    imported = {a.name for n in nodes if isinstance(n, ast.ImportFrom) and n.module for a in n.names if _ours(n.module)}
    answered = {n.name for n in nodes if isinstance(n, ast.FunctionDef)}
    own = {n.target.id for n in nodes if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    foreign = {n.value.id for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)} & {"torch"}
    asked = {
        n.attr
        for n in nodes
        if isinstance(n, ast.Attribute) and not (isinstance(n.value, ast.Name) and n.value.id in foreign)
    }
    return imported | answered | (asked - own)


def _ours(module: str) -> bool:
    return module.partition(".")[0] == "sordino"


def listed(page: str) -> list[str]:
    """The rows of the table under the last heading."""
    section = page[page.index("## When a step is not enough") :]
    return [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| |")]


def missing(source: str, page: str) -> set[str]:
    return used(source) - set(re.findall(r"`([a-zA-Z_]+)`", "\n".join(listed(page))))


def test_the_guide_names_all_that_scaffold_needs_in_twelve_rows() -> None:
    page = GUIDE.read_text(encoding="utf-8")
    assert missing(FILE.read_text(encoding="utf-8"), page) == set()
    assert 0 < len(listed(page)) <= MOST


def test_a_word_more_is_noticed() -> None:
    page, source = GUIDE.read_text(encoding="utf-8"), FILE.read_text(encoding="utf-8")
    assert missing(source.replace("task.init(0)", "task.stacks(0)"), page) == {"stacks"}
    assert missing(source, page.replace("`Received`", "Received")) == {"Received"}
    assert missing(source.replace("def zero", "def passes"), page) == {"passes"}
