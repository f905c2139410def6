"""Output of commands: tables for people, plain lines for other programs, one JSON object where --json was given."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sordino.errors import RunError

MANY = 200  # rows of a table with lines: drawing more takes long
MARKS = re.compile(r"[\[\\:]")  # styles, escapes and emoji
LONG = 100_000  # columns of a pipe: no line is folded, no name is cut


class Screen(Console):
    """Console that draws tables with lines on a terminal, and as plain text in a pipe or file: one line for each row,
    of any length.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not self.is_terminal:
            self.width = LONG

    def print(self, *objects: Any, **options: Any) -> None:
        if len(objects) == 1 and isinstance(objects[0], Table) and objects[0].row_count > MANY:
            self.file.write("".join(f"{line}\n" for line in lines(objects[0])))
            return
        super().print(*(objects if self.is_terminal else [_plain(each) for each in objects]), **options)


def lines(table: Table) -> Iterator[str]:
    """Render a table as plain lines, every column as wide as its widest cell."""
    if table.title:
        yield str(table.title)
    cells = [[str(column.header), *_words(list(map(str, column.cells)))] for column in table.columns]
    sides = (">" if column.justify == "right" else "<" for column in table.columns)
    row = "  ".join(f"{{:{side}{max(map(len, column))}}}" for side, column in zip(sides, cells, strict=True))
    yield from (line.rstrip() for line in map(row.format, *cells))


def _words(cells: list[str]) -> list[str]:
    """Cells without their markup. Parsing markup takes most of the time, so a column without markup signs is left as it
    is.
    """
    return [Text.from_markup(cell).plain for cell in cells] if MARKS.search("\n".join(cells)) else cells


def _plain(shown: Any) -> Any:
    if isinstance(shown, Table):
        shown.box, shown.show_lines, shown.title_justify = None, False, "left"
        for column in shown.columns:
            column.max_width = None
    if isinstance(shown, Padding):
        return _plain(shown.renderable)
    if isinstance(shown, Group):
        made: list[RenderableType] = [_plain(each) for each in shown.renderables]
        return Group(*made)
    return shown


def titled(title: str, *columns: str, left: int = 1) -> Table:
    """Table with a title; the columns after the first `left` ones hold numbers and are aligned right."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < left else "right")
    return table


def note(console: Console, remarks: Iterable[str]) -> None:
    """Print remarks, each as a note."""
    for remark in remarks:
        console.print(f"[yellow]note[/yellow] {escape(remark)}")


def say(facts: object) -> None:
    """Print an object as JSON, with unrounded numbers."""
    typer.echo(json.dumps(facts))


def write(path: Path, text: str, new: bool = False) -> None:
    """Write a text file; a `new` one never takes the place of another."""
    if new:
        check_absent(path)
    with unwritable(path), path.open("x" if new else "w", encoding="utf-8") as file:
        file.write(text)


def check_absent(path: Path) -> None:
    """Refuse to write to a path where a file exists."""
    if path.exists():
        raise RunError(
            f"{path} already exists",
            why="sordino does not overwrite a file that may be yours",
            fix="choose another place, or move the file away",
            code="file-exists",
        )


@contextmanager
def unwritable(path: Path) -> Iterator[None]:
    """Context manager that turns the system's refusal to write into an error with a fix."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {path}",
            why=error.strerror or str(error),
            fix="choose a folder that you may write to",
            code="not-writable",
        ) from None


def json_asked() -> bool:
    """True where --json is given: errors are printed as JSON, too."""
    words = sys.argv[1:]
    return "--json" in (words[: words.index("--")] if "--" in words else words)
