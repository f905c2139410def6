"""What is printed, and how long it takes."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time

import pytest
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from sordino import cli
from sordino.cli import Screen


def of(rows: int) -> Table:
    table = Table(title="Spent")
    table.add_column("client")
    table.add_column("spent", justify="right")
    for i in range(rows):
        table.add_row(escape(f"[c{i}]"), str(i))
    return table


def printed(table: Table, terminal: bool) -> str:
    out = io.StringIO()
    Screen(file=out, force_terminal=terminal, width=60).print(table)
    return out.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_table_that_nobody_reads_as_a_whole_is_plain(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "MANY", 3)
    lines = printed(of(4), terminal).splitlines()
    assert lines == ["Spent", "client  spent", "[c0]        0", "[c1]        1", "[c2]        2", "[c3]        3"]
    assert ("┃" in printed(of(3), terminal)) == terminal


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("rows", [2, 5])
def test_no_word_moves_the_cursor(rows: int, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a table, drawn or plain, in a text with styles and in one without."""
    monkeypatch.setattr(cli, "MANY", 3)
    table = of(rows)
    table.add_row("\x1b[2J\u202eone\x9b8m\r", "\t2")
    for shown in (table, Text("\x1b[2J\u202eone\x9b8m"), "[bold]\x1b[2J\u202eone\x9b8m[/bold]"):
        out = io.StringIO()
        Screen(file=out, force_terminal=terminal, width=60).print(shown)
        words = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())  # the styles of a terminal
        assert "?[2J?one?8m" in words
        assert words.replace("\n", "").isprintable()


@pytest.mark.slow
def test_the_algorithms_fit_a_terminal() -> None:
    asked = [sys.executable, "-m", "sordino", "algorithms"]
    wide = os.environ | {"FORCE_COLOR": "1", "COLUMNS": "80"}
    shown = subprocess.run(asked, env=wide, capture_output=True, text=True, check=True).stdout
    assert max(map(len, Text.from_ansi(shown).plain.splitlines())) == 80


@pytest.mark.slow
def test_twenty_thousand_rows_take_seconds_and_no_minutes() -> None:
    table = of(20_000)
    began = time.process_time()
    assert len(printed(table, False).splitlines()) == 20_002
    assert time.process_time() - began < 2  # 0.2 s; drawn, it is 8


def test_markup_is_read_only_in_columns_that_have_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it took most of the time of a table of a hundred thousand clients."""
    read: list[str] = []

    class Counted(Text):
        @classmethod
        def from_markup(cls, text: str, **options: object) -> Text:  # type: ignore[override]
            read.append(text)
            return Text.from_markup(text)

    monkeypatch.setattr(cli, "Text", Counted)
    table = Table("client", Column("spent", justify="right"), "note", title="Spent")
    table.add_row(escape("[c0]"), "0", ":dog: 1")
    table.add_row(escape("[c1]"), "1", escape("[bold]"))
    assert list(cli.lines(table)) == [
        "Spent", "client  spent  note", "[c0]        0  🐶 1", "[c1]        1  [bold]",
    ]  # fmt: skip
    assert len(read) == 4
