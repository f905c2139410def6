"""`sordino compare`: several experiments over the same seeds."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sordino.cli.options import Quiet


class Format(StrEnum):
    text = "text"
    csv = "csv"
    latex = "latex"
    json = "json"


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
