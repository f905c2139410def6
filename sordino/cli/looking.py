"""The verbs that look at runs: list, show, report, and at what there is: algorithms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.markup import escape

from sordino.cli.options import Figures, Json
from sordino.cli.screen import Screen, say

if TYPE_CHECKING:
    from sordino.runs.folder import RunFolder


def list_(
    place: Annotated[Path, typer.Argument(help="A folder of runs.")] = Path("runs"), as_json: Json = False
) -> None:
    """The runs in a folder: how far, how good, what they promise."""
    from sordino.runs.listing import listed

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


def show(folder: Path, as_json: Json = False) -> None:
    """The result and the guarantees of a finished run."""
    from sordino.report.tables import summary
    from sordino.runs.folder import RunFolder

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
    from sordino.runs.folder import RunFolder

    if not RunFolder(folder).prepared():
        return ""
    from sordino.report.preparation import gather
    from sordino.report.tables import preparation

    try:
        found = gather(folder, pictures=False)
    except SordinoError as error:
        return f"What came before round 1 cannot be told: {escape(error.what)}"
    return "" if found is None else preparation(found)


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    evaluator: Annotated[
        bool, typer.Option("--evaluator", help="With real noise: also what only the evaluator may see, in RUN/private.")
    ] = False,
    figures: Figures = None,
) -> None:
    """One self-contained page per run: curves, guarantees in words, spending, partition. Opens from disk, needs no
    network.
    """
    from sordino.report.figures import available, of_run
    from sordino.report.run_facts import gather
    from sordino.report.run_page import write

    if figures is not None:
        available()
    for folder in folders:
        facts = gather(folder, evaluator)
        written = [write(folder, facts=facts, evaluator=evaluator)]
        if figures is not None:
            written += of_run(facts, folder / "figures", figures)
        for path in written:
            Screen().print(str(path), highlight=False, soft_wrap=True, markup=False)
        if open_:
            typer.launch(str(written[0].resolve()))


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
        say(listed)
        return
    table = Table(show_lines=True)
    for column in ("algorithm", "what", "parameters"):
        table.add_column(column)
    for name, entry in listed.items():
        shown = ", ".join(f"{k}={v}" for k, v in entry["parameters"].items() if v is not None)
        table.add_row(f"[bold]{name}[/bold]", escape(entry["summary"]), escape(shown))
    Screen().print(table)
