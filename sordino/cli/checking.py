"""`sordino check`: the library's laws on an algorithm of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from sordino.cli.options import Json
from sordino.cli.screen import Screen, say

STYLES = {"holds": "green", "broken": "bold red", "not tried": "dim"}


def check(
    file: Annotated[Path, typer.Argument(metavar="MY_ALGORITHM.py", help="The file with your algorithm.")],
    class_: Annotated[str | None, typer.Option("--class", help="Which class, where the file has several.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="key=value", help="A parameter: algorithm.lr=0.05.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="What a function is: loss, metric or model.")] = None,
    inputs: Annotated[
        str | None,
        typer.Option(help="Of a model: the shape of an example, such as 30 or 3x32x32; that of the digits by default."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Try the library's laws on an algorithm, a model, or another part of your own: about ten seconds. Exit code 2
    where one is broken."""
    from sordino.laws import check as try_all

    with Console(stderr=True, quiet=as_json).status("reading") as status:
        report = try_all(file, class_, set_ or [], lambda law: status.update(f"the law {law!r}"), kind, _shape(inputs))
    verdicts, broken = report.verdicts, report.broken
    if as_json:
        say({"algorithm": report.algorithm, "holds": not broken, "laws": [v._asdict() for v in verdicts]})
    else:
        from rich.table import Table

        table = Table(show_lines=bool(broken))
        for column in ("law", "", "what it says, or why it is broken and what to do"):
            table.add_column(column)
        for v in verdicts:
            told = escape(v.says) if v.verdict == "holds" else escape(v.why)
            fix = f"\n[bold]fix[/bold] {escape(v.fix)}" if v.fix else ""
            table.add_row(v.law, f"[{STYLES[v.verdict]}]{v.verdict}[/]", told + fix)
        out = Screen()
        out.print(table)
        out.print(
            f"[bold red]{len(broken)} broken:[/] {', '.join(broken)}."
            if broken
            else f"All {len(verdicts)} laws hold. From the folder of the file: sordino run "
            f"{report.setting}={report.algorithm}",
            highlight=False,
            soft_wrap=True,
        )
    if broken:
        raise typer.Exit(2)


def _shape(words: str | None) -> tuple[int, ...] | None:
    sizes = words.split("x") if words is not None else []
    if not all(size.isdecimal() and int(size) for size in sizes):
        raise typer.BadParameter(f"--inputs takes sizes such as 30 or 3x32x32, not {words!r}")
    return tuple(map(int, sizes)) or None
