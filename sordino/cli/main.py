"""The verbs. Each loads what it needs when it runs, so that --help is instant.

Exit codes: 0 done, 1 unexpected, 2 configuration, 3 data, 4 privacy refusal, 5 ledger, 6 run folder, 7 message, 130 interrupted (resumable).
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from sordino.cli.privacy import app as privacy_app
from sordino.errors import SordinoError
from sordino.version import __version__

if TYPE_CHECKING:
    from sordino.training import Result

app = typer.Typer(
    name="sordino",
    help="Private federated learning with honest guarantees.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.add_typer(privacy_app, name="privacy")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def new(folder: Annotated[Path, typer.Argument(help="Where to write experiment.toml and task.py.")]) -> None:
    """Start a project: one commented experiment and a model of your own."""
    from sordino.starter import write

    for path in write(folder):
        typer.echo(str(path))


@app.command()
def run(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="[EXPERIMENT.toml] [key=value ...]", help="An experiment, and what to change in it."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="key=value", help="The same as a bare key=value.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; default runs/DATE-NAME.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything that is random in a simulation.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a federation. Without arguments: real handwritten digits on 20 clients, private, in under a minute."""
    from sordino import config

    words = what or []
    files = [word for word in words if "=" not in word]
    if len(files) > 1:
        raise typer.BadParameter(f"one experiment at a time, got {', '.join(files)}")
    overrides = [word for word in words if "=" in word] + (set_ or [])
    if seed is not None:
        overrides.append(f"seed={seed}")
    experiment = config.load(Path(files[0]) if files else None, overrides)

    def go(watch: Any) -> Result:
        from sordino.training import fresh_folder, start

        return start(experiment, out if out is not None else fresh_folder(experiment.name), watch)

    _show_run(go, as_json, quiet)


@app.command()
def resume(
    folder: Path,
    fallback: Annotated[bool, typer.Option("--fallback", help="Set a damaged newest checkpoint aside.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Continue a run that was stopped or killed: same bytes as if it had never stopped."""

    def go(watch: Any) -> Result:
        from sordino.training import resume as continue_

        return continue_(folder, watch, fallback)

    _show_run(go, as_json, quiet)


@app.command()
def show(folder: Path, as_json: Json = False) -> None:
    """The result and the guarantees of a finished run."""
    from sordino.errors import RunError
    from sordino.report.tables import summary

    receipt, metrics = folder / "privacy.json", folder / "metrics.jsonl"
    if not receipt.is_file() or not metrics.is_file():
        raise RunError(
            f"{folder} holds no finished run",
            why="privacy.json or metrics.jsonl is missing",
            fix=f"`sordino resume {folder}`",
            code="not-a-run",
        )
    rows = [json.loads(line) for line in metrics.read_text().split("\n")[:-1]]
    if as_json:
        typer.echo(json.dumps({"metrics": rows, "privacy": json.loads(receipt.read_text())}))
    else:
        summary(Console(), rows, json.loads(receipt.read_text()))


class Format(StrEnum):
    text = "text"
    csv = "csv"
    latex = "latex"
    json = "json"


@app.command()
def compare(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="A.toml B.toml ... [key=value ...]", help="Experiments, and what to set in all of them."
        ),
    ],
    seeds: Annotated[int, typer.Option(help="Of each experiment: 0, 1, ...")] = 3,
    out: Annotated[Path, typer.Option(help="Where the runs go; what is finished there is not run again.")] = Path(
        "runs/compare"
    ),
    target: Annotated[
        float | None, typer.Option(help="Accuracy for rounds- and bytes-to-target; default: what all reach.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="Of the table.")] = Format.text,
    quiet: Quiet = False,
) -> None:
    """Run several experiments over the same seeds and compare their ends, never their best rounds."""
    from sordino.comparing import compare as run_all
    from sordino.comparing import table
    from sordino.report.compared import FORMATS, text

    files = [Path(word) for word in what if "=" not in word]
    if len(files) < 2:
        raise typer.BadParameter("a comparison needs at least two experiment files")
    told = Console(stderr=True, quiet=quiet)
    methods = run_all(
        files, seeds, out, [word for word in what if "=" in word], lambda line: told.print(line, highlight=False)
    )
    rows = table(methods, target)
    if form is Format.text:
        Console().print(text(rows))
        typer.echo(
            "Tuning is not accounted for: choosing among these on the same data costs privacy that no row shows."
        )
    else:
        typer.echo(json.dumps(rows) if form is Format.json else FORMATS[form](rows), nl=False)


@app.command("list")
def list_(
    place: Annotated[Path, typer.Argument(help="A folder of runs.")] = Path("runs"), as_json: Json = False
) -> None:
    """The runs in a folder: how far, how good, what they promise."""
    from rich.table import Table

    from sordino.report.runs import Listed, listed

    found = listed(place)
    if as_json:
        typer.echo(json.dumps([entry._asdict() for entry in found]))
        return
    if not found:
        typer.echo(f"no runs in {place}")
        return
    table = Table()
    for column in Listed._fields:
        table.add_column(column)
    for entry in found:
        table.add_row(*map(escape, entry))
    Console().print(table)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """One self-contained page per run: curves, guarantees in words, spending, partition. Opens from disk, needs no network."""
    from sordino.report.html import write

    for folder in folders:
        target = write(folder)
        Console().print(str(target), highlight=False, soft_wrap=True)
        if open_:
            typer.launch(str(target.resolve()))


@app.command()
def algorithms(as_json: Json = False) -> None:
    """The algorithms and their parameters with defaults."""
    import inspect

    from rich.table import Table

    from sordino.algorithms import ALGORITHMS
    from sordino.config import parameters

    listed: dict[str, dict[str, Any]] = {}
    for name, made in ALGORITHMS.items():
        source = inspect.getmodule(made)
        summary = (made.__doc__ or "").strip().splitlines()[0]
        if inspect.isclass(made) and source is not None:
            summary = (source.__doc__ or "").strip().splitlines()[0]
        fields = {field: None if default is ... else default for field, (_, default) in parameters(made).items()}
        listed[name] = {"summary": summary, "parameters": fields}
    if as_json:
        typer.echo(json.dumps(listed))
        return
    table = Table(show_lines=True)
    for column in ("algorithm", "what", "parameters"):
        table.add_column(column)
    for name, entry in listed.items():
        shown = ", ".join(f"{k}={v}" for k, v in entry["parameters"].items() if v is not None)
        table.add_row(f"[bold]{name}[/bold]", escape(entry["summary"]), escape(shown))
    Console().print(table)


def _show_run(go: Any, as_json: bool, quiet: bool) -> None:
    from sordino.cli.progress import progress

    console = Console(stderr=True, quiet=quiet or as_json)
    with progress(console) as watch:
        result = go(watch)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "folder": str(result.folder),
                    "metrics": result.metrics,
                    "privacy": result.receipt,
                    "notes": result.notes,
                }
            )
        )
    elif not quiet:
        from sordino.report.tables import summary

        out = Console()
        summary(out, result.metrics, result.receipt)
        for note in result.notes:
            out.print(f"[yellow]note[/yellow] {escape(note)}")
        out.print(f"Everything is in [bold]{escape(str(result.folder))}[/bold].")
    if result.interrupted:
        Console(stderr=True).print(f"Stopped at a safe point. Continue with: sordino resume {result.folder}")
        raise typer.Exit(130)


def main() -> None:
    """The entry point: a user's mistake is one screen and an exit code, never a traceback."""
    try:
        app(standalone_mode=True)
    except SordinoError as error:
        console = Console(stderr=True, soft_wrap=True)
        console.print(f"[bold red]error[/bold red] {escape(error.what)}  [dim]({error.code})[/dim]")
        if error.why:
            console.print(f"  [bold]why[/bold] {escape(error.why)}")
        if error.fix:
            console.print(f"  [bold]fix[/bold] {escape(error.fix)}")
        sys.exit(error.exit_code)
