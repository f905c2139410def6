"""`sordino predict`: a trained model, used on new rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from sordino.cli.options import Encoding, Json


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder, or a copy of its model.json and model.safetensors.")],
    rows: Annotated[
        Path,
        typer.Argument(metavar="NEW", help="A CSV or parquet table; of images a folder, a file or a parquet table."),
    ],
    out: Annotated[Path | None, typer.Option(help="Write the predictions into this CSV file.")] = None,
    score: Annotated[
        bool, typer.Option("--score", help="The true labels are in NEW: print how well they were found.")
    ] = False,
    own: Annotated[
        Path | None,
        typer.Option(
            metavar="OWN",
            help="Labelled rows of one client: first make the model its own, as in the run. They stay here.",
        ),
    ] = None,
    encoding: Encoding = None,
    with_code: Annotated[
        bool, typer.Option("--with-code", help="Import a model of somebody's own, which runs its file.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Use a trained model: the class of each new row, and the probability of every class, as CSV; or its number."""
    from sordino.results.prediction import predict as predicted

    found = predicted(run, rows, score, with_code, own, encoding)
    if out is not None:
        _write(out, found.to_csv())
    told = {"out": str(out)} if out is not None else {"predictions": list(found.rows)}
    if as_json:
        typer.echo(json.dumps({"rows": len(found), **found.described, **told, "notes": found.notes}))
        return
    if out is None:
        typer.echo(found.to_csv(), nl=False)
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    for note in found.notes:
        console.print(f"[yellow]note[/yellow] {escape(note)}")
    for line in found.told():
        console.print(escape(line))
    if out is not None:
        console.print(f"{len(found)} predictions are in {escape(str(out))}")


def _write(out: Path, text: str) -> None:
    from sordino.errors import DataError

    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"cannot write {out}", why=error.strerror or str(error), fix="choose another --out", code="not-writable"
        ) from None
