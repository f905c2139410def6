"""Commands on what an experiment can name: list algorithms, print the JSON Schema, and check a user's own algorithm,
model or other part.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from sordino.cli.options import Json
from sordino.cli.screen import Screen, say, write
from sordino.errors import ConfigError


def algorithms(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Algorithm to describe: a name, or module:Class.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the algorithms, a line each; of one, its parameters with defaults and meanings."""
    from sordino.runs.catalogue import catalogue, of_algorithm

    if name is not None:
        found = of_algorithm(name)
        say({"name": name, **found}) if as_json else _algorithm(name, found)
        return
    listed = catalogue()["algorithm"]
    if as_json:
        say(listed)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("algorithm", no_wrap=True, min_width=max(map(len, listed)))
    table.add_column("what", no_wrap=True, overflow="ellipsis")  # `algorithms NAME` has all of it
    for title, entry in listed.items():
        table.add_row(f"[bold]{title}[/bold]", escape(entry["summary"]))
    Screen().print(table)


def _algorithm(name: str, found: dict[str, Any]) -> None:
    from rich.table import Table

    console = Screen(highlight=False)
    console.print(f"[bold]{escape(name)}[/bold]: {escape(found['summary'])}")
    if found["base"]:
        console.print(f"It is {found['base']} behind gates and with defaults of its own.")
    for line in (line for line in (found["paper"], *found["notes"]) if line != found["summary"]):
        console.print(f"[dim]{escape(line)}[/dim]")
    table = Table()
    for column in ("parameter", "default", "type", "meaning"):
        table.add_column(column)
    for key, entry in found["parameters"].items():
        default = "required" if entry.get("required") else "none" if entry["default"] is None else str(entry["default"])
        table.add_row(key, escape(default), escape(entry["type"]), escape(entry["meaning"]))
    console.print(table)
    if found["protects"]:
        console.print("What one round promises with these defaults, once a budget or a multiplier sets the noise:")
        for line in found["protects"]:
            console.print(f"· {escape(line)}")
    else:
        console.print("It promises nothing by itself: a noisy read or uplink makes it private.")


def schema(
    out: Annotated[Path | None, typer.Option(help="Output file; never overwritten.")] = None,
) -> None:
    """Print the JSON Schema of experiment files: editors complete keys with it, and show what each one means."""
    from sordino.runs.catalogue import schema as of_experiments

    if out is None:
        say(of_experiments())
        return
    write(out, json.dumps(of_experiments(), indent=1) + "\n", new=True)
    typer.echo(f"{out}: begin an experiment with the line  #:schema ./{out.name}")


STYLES = {"holds": "green", "broken": "bold red", "not tried": "dim"}


def check(
    file: Annotated[Path, typer.Argument(metavar="MY_ALGORITHM.py", help="File with your algorithm or part.")],
    class_: Annotated[str | None, typer.Option("--class", help="Class to check, if the file has several.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="key=value", help="A parameter, such as algorithm.lr=0.05.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="Kind of a function: loss, metric, model or trainer.")
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(help="Shape of an example, such as 30 or 3x32x32, for a model; by default that of the digits."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check an algorithm, a model or another part of your own: whether it has the properties (laws) that the library
    relies on, in about ten seconds. Exit code 2 if one is broken."""
    from sordino.checks import check as try_all

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
        raise ConfigError(
            f"--inputs is {words!r}", fix="write sizes such as --inputs 30 or --inputs 3x32x32", code="wrong-usage"
        )
    return tuple(map(int, sizes)) or None
