"""The floor plan of the package, drawn from its imports: `python docs/house.py` prints it, and a test holds it against
the pages that show it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "sordino"

# the rooms that a newcomer looks for
MAIN = "attacks audits sites runs secagg engine receipts algorithms privacy ledger accounting"


@cache
def parsed(file: Path) -> ast.Module:
    """The code of a file, read once."""
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def nodes(file: Path) -> list[ast.AST]:
    return list(ast.walk(parsed(file)))


def rooms() -> dict[str, str]:
    """Every folder and every file of the top floor, and its first sentence."""
    places = [path for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    shown = [path for path in sorted(places) if path.stem not in ("__init__", "__main__", "version")]
    return {path.stem: _first_sentence(path if path.is_file() else path / "__init__.py") for path in shown}


def _first_sentence(file: Path) -> str:
    said = ast.get_docstring(parsed(file)) or ""
    return said.partition("\n\n")[0].replace("\n", " ").partition(". ")[0].rstrip(".")


@cache
def imports() -> dict[str, set[str]]:
    """The rooms that each room takes something from."""
    known = rooms()
    found: dict[str, set[str]] = {name: set() for name in known}
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room in found:
            found[room] |= {name for name in _imported(file) if name in known and name != room}
    return found


def _imported(file: Path) -> Iterator[str]:
    for node in nodes(file):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.split(".")[0] == "sordino":
            parts = node.module.split(".")[1:]
            yield from parts[:1] or (alias.name for alias in node.names)


def floors() -> list[list[str]]:
    """The rooms by height: each stands on rooms of lower floors only. The ground comes last."""
    below, height = imports(), dict[str, int]()

    def measured(room: str, way: tuple[str, ...] = ()) -> int:
        if room in way:
            raise ValueError(f"a circle of imports: {' -> '.join((*way[way.index(room) :], room))}")
        if room not in height:
            height[room] = 1 + max((measured(name, (*way, room)) for name in below[room]), default=-1)
        return height[room]

    for room in below:
        measured(room)
    return [sorted(room for room, at in height.items() if at == floor) for floor in range(max(height.values()), -1, -1)]


def drawing(brief: bool = False) -> str:
    """One line for each room, the highest floor first, a gap between floors; brief: the main rooms, without gaps."""
    said = {room: text for room, text in rooms().items() if not brief or room in MAIN.split()}
    width = max(map(len, said)) + 4
    name = {room: f"{room}/" if (PACKAGE / room).is_dir() else f"{room}.py" for room in said}
    shown = ("\n".join(f"{name[room]:<{width}}{said[room]}" for room in floor if room in said) for floor in floors())
    return ("\n" if brief else "\n\n").join(lines for lines in shown if lines)


if __name__ == "__main__":
    print(drawing())
