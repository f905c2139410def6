"""`sordino reproduce`: the tables that compare this library with what was published."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from sordino.cli.options import Json, Quiet, Verbose
from sordino.cli.screen import Screen, say
from sordino.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from sordino.results.published.running import QuickResult
    from sordino.results.published.tables import PublishedTable


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The table to run; without one, what there is.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run one row of each table, cut to seconds; keep nothing.")
    ] = False,
    row: Annotated[str | None, typer.Option(help="Only this row of the table NAME, as the table spells it.")] = None,
    seed: Annotated[int | None, typer.Option(help="Only this seed.")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Run what is kept of the row once more and compare; change nothing.")
    ] = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="Say what is missing and how long it takes.")] = False,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Write the pages again from the runs that are kept; run nothing.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="The folder that holds mnist/, cifar10/ and cifar100/. [default: ../shared/data]"),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side.")] = 2,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """The tables of `experiments/`: published numbers beside ours. With a name, run what is missing of one."""
    from sordino.results.published import tables

    if quick + dry + rewrite + again > 1:
        raise ConfigError(
            "--quick, --dry-run, --rewrite and --again exclude each other",
            why="the first runs cut rows, the second says what is missing, the third writes pages, the last compares",
            fix="give one of them",
            code="options-exclude",
        )
    if ((seed is not None or again) and row is None) or (row is not None and (name is None or quick or rewrite)):
        raise ConfigError(
            "--row belongs to one table, and --seed and --again to one row",
            why="a whole table takes hours, and a seed alone names no run",
            fix="sordino reproduce NAME --row ROW [--seed SEED] [--again]",
            code="options-exclude",
        )
    root = tables.place()
    chosen = tables.every(root) if name is None else [tables.named(root, name)]
    if row is not None:
        chosen[0].row(row)  # refuses a name that is none
    if again and row is not None:
        _again(chosen[0], row, seed, jobs, data, as_json, quiet)
        return
    if quick:
        _quick(chosen, jobs, data, as_json, quiet)
        return
    if rewrite:
        from sordino.results.published.written import write

        for table in chosen:
            write(table)
    elif name is not None and not dry:
        from sordino.results.published.running import run_missing

        console = Console(stderr=True, quiet=quiet or as_json, highlight=False, soft_wrap=True)
        chosen = [run_missing(chosen[0], jobs, data, lambda line: console.print(escape(line)), row, seed)]
    if as_json:
        told = [_told(table) for table in chosen]
        say(told if name is None else told[0])
    elif not quiet:
        out = Screen(highlight=False)
        for table in chosen:
            _show(out, table, whole=name is not None)
        if name is None:
            out.print("`sordino reproduce NAME` runs what is missing of one; with --dry-run it shows all its rows.")


def _show(out: Screen, table: PublishedTable, whole: bool) -> None:
    """One table. Not whole: only rows that somebody else has a number for."""
    from sordino.results.published.written import in_all, lasting

    left, wanted = len(table.missing()), sum(row.seeds for row in table.rows)
    about = f", about {lasting(table.sheet.minutes)} each" if table.sheet.minutes is not None else ""
    tries = len(table.untuned())
    trials = f"; before them {tries} to choose {table.sheet.tune.key}" if table.sheet.tune is not None and tries else ""
    out.print(f"\n[bold]{escape(table.name)}[/bold]: {escape(table.sheet.source)}")
    more = f"; what is missing takes{in_all(table).removeprefix(',')}" if in_all(table) else ""
    asked = f"sordino reproduce {escape(table.name)}"
    if table.rows:
        out.print(f"{asked}: {wanted - left} of {wanted} runs are kept{about}{trials}{more}")
    for program in table.sheet.program:
        there = "missing" if program in table.unwritten() else "there"
        out.print(f"{asked}: {program.file} writes {program.writes}, {there}; about {lasting(program.minutes)}")
    for head, text in (("published", table.sheet.published), ("yardstick", table.sheet.yardstick)):
        if text:
            out.print(f"{head}: {escape(text)}")
    if whole and table.sheet.claim:
        out.print(_claims(table))
    if (whole and table.rows) or any(row.published or row.yardstick for row in table.rows):
        out.print(_rows(table, whole))


def _rows(table: PublishedTable, whole: bool) -> Table:
    from rich.table import Table

    from sordino.results.published.tables import spread
    from sordino.results.published.written import NOTHING, minutes, others

    shown = Table()
    columns = ("row", "seeds", "published", "yardstick", "ours", f"mean of last {table.sheet.last}", "minutes", "why")
    for column in columns:
        shown.add_column(column)
    for row in table.rows:
        if whole or row.published or row.yardstick:
            runs = table.of(row)
            ours = [spread([getattr(run, what) for run in runs]) if runs else NOTHING for what in ("final", "last")]
            facts = (row.name, f"{len(runs)} of {row.seeds}", others(row, "published"), others(row, "yardstick"))
            shown.add_row(*map(escape, (*facts, *ours, minutes(table, row), row.why)))
    return shown


def _claims(table: PublishedTable) -> Table:
    from rich.table import Table

    from sordino.results.published.written import shown

    said = Table("what is asked", "published", "ours", "why")
    for claim in table.sheet.claim:
        said.add_row(*map(escape, (claim.asks, claim.published, shown(table, claim), claim.why)))
    return said


def _told(table: PublishedTable) -> dict[str, Any]:
    """Everything of a table as numbers."""
    from sordino.results.published.written import shown

    sheet = table.sheet
    return {
        "name": table.name,
        "source": sheet.source,
        "published": sheet.published,
        "yardstick": sheet.yardstick,
        "command": f"sordino reproduce {table.name}",
        "experiment": str(table.experiment()) if table.rows else None,
        "minutes_about": sheet.minutes,
        "missing": len(table.missing()),
        "minutes_left": table.left(),
        "untuned": len(table.untuned()),
        "claims": [claim.model_dump() | {"ours": shown(table, claim)} for claim in sheet.claim],
        "programs": [one.model_dump() | {"missing": one in table.unwritten()} for one in sheet.program],
        "rows": [
            row.model_dump()
            | {"runs": [run.model_dump(exclude={"curve"}, exclude_unset=True) for run in table.of(row)]}
            for row in table.rows
        ],
    }


def _quick(chosen: list[PublishedTable], jobs: int, data: Path | None, as_json: bool, quiet: bool) -> None:
    from dataclasses import asdict

    from sordino.results.published.running import run_quick

    out = Screen(highlight=False)
    found: list[QuickResult] = []
    for result in run_quick(chosen, jobs, data):
        found.append(result)
        if not as_json and not quiet:
            out.print(_line(result), soft_wrap=True)
    if as_json:
        say({"cut": True, "rows": [asdict(result) for result in found]})
    elif not quiet:
        out.print("These rows are cut to see that they run: their accuracies mean nothing, and nothing was kept.")
    if code := max((result.exit_code for result in found), default=0):
        raise typer.Exit(code)


def _again(
    table: PublishedTable, row: str, seed: int | None, jobs: int, data: Path | None, as_json: bool, quiet: bool
) -> None:
    from sordino.results.published.running import run_again

    found = []
    for run in run_again(table, table.row(row), seed, jobs, data):
        found.append(run)
        if not as_json and not quiet:
            Screen(highlight=False).print(escape(str(run)), soft_wrap=True)
    if as_json:
        sides = [{"kept": run.kept, "now": run.now} for run in found]
        say(
            [
                {"same": one.same} | {k: v.model_dump() for k, v in both.items()}
                for one, both in zip(found, sides, strict=True)
            ]
        )
    if not all(run.same for run in found):
        raise typer.Exit(1)


def _line(result: QuickResult) -> str:
    asked = escape(f"{result.table}, {result.row}, cut to {' '.join(result.cut)}")
    if result.accuracy is None:
        return f"[red]not run[/red] {asked}: {escape(str(result.refused))}"
    return f"{asked}: {result.accuracy:.1f} % after {result.seconds:.0f} s"
