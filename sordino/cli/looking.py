"""The verbs that look at runs: list, show, and at what there is: algorithms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.markup import escape

from sordino.cli.options import Json
from sordino.cli.screen import Screen, say
from sordino.later import when_used

if TYPE_CHECKING:
    from sordino.receipts.folder import RunFolder


def list_(
    place: Annotated[Path, typer.Argument(help="A folder of runs.")] = Path("runs"), as_json: Json = False
) -> None:
    """The runs in a folder: how far, how good, what they promise."""
    from sordino.runs.listing import adding_up, listed

    found = listed(place)
    if as_json:
        say([entry.told() for entry in found])
    elif not found:
        typer.echo(f"no runs in {place}")
    else:
        from rich.table import Table

        table = Table(*found[0].words())
        for entry in found:
            table.add_row(*map(escape, entry.words().values()))
        Screen().print(table)
        for note in adding_up(found):
            Screen().print(f"[yellow]note[/yellow] {escape(note)}")


def show(folder: Path, as_json: Json = False) -> None:
    """The result and the guarantees of a finished run."""
    from sordino.receipts.folder import RunFolder
    from sordino.results.tables import summary

    run = RunFolder(folder)
    run.check()
    if as_json:
        say(told(run))
    else:
        promised = run.receipt()
        summary(Screen(), run.metrics(), promised, prepared(folder))


def told(run: RunFolder) -> dict[str, object]:
    """All that a run says in numbers."""
    promised = run.receipt()
    return {
        "metrics": [row.to_json() for row in run.metrics()],
        "preparation": [row.to_json() for row in run.prepared()],
        "privacy": promised.to_json(),
    }


def prepared(folder: Path) -> RenderableType:
    """What came before the first round; where the data it is told from are gone, why."""
    from sordino.errors import SordinoError
    from sordino.receipts.folder import RunFolder

    if not RunFolder(folder).prepared():
        return ""
    with when_used("torch"):
        from sordino.results.preparation import gather
        from sordino.results.tables import preparation

    try:
        found = gather(folder, pictures=False)
    except SordinoError as error:
        return f"What came before round 1 cannot be told: {escape(error.what)}"
    return "" if found is None else preparation(found)


def algorithms(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One of them, or module:Class: all that can be said of it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The algorithms, a line each; with a name, its parameters, their defaults and meanings."""
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

    table = Table()
    for column in ("algorithm", "what"):
        table.add_column(column)
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
    out: Annotated[Path | None, typer.Option(help="Write it there; what is there is never overwritten.")] = None,
) -> None:
    """Print the JSON Schema of the experiment file: editors complete keys with it, and say what each one means."""
    from sordino.runs.editor import schema as of_experiments

    if out is None:
        say(of_experiments())
        return
    from sordino.cli.data import write_new

    write_new(out, json.dumps(of_experiments(), indent=1) + "\n")
    typer.echo(f"{out}: begin an experiment with the line  #:schema ./{out.name}")
