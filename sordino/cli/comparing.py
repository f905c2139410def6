"""`sordino compare`: several experiments, or several values of a parameter, over the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from sordino.branches import part
from sordino.cli.options import Figures, Json, Quiet, Verbose
from sordino.cli.screen import Screen, say

if TYPE_CHECKING:
    from sordino.results.comparison import Follow, NextRun
    from sordino.runs.play import Progress


class Format(StrEnum):
    text = "text"
    csv = "csv"
    latex = "latex"
    json = "json"
    html = "html"


def compare(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="A.toml B.toml ... [key=value ...]", help="Experiment files, and settings for all of them."
        ),
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="key=a,b,...", help="Same as a bare key=value; each of several values makes a method."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds: 0, 1, ...")] = 3,
    out: Annotated[Path, typer.Option(help="Folder of the runs; finished ones are not repeated.")] = Path(
        "runs/compare"
    ),
    target: Annotated[
        float | None, typer.Option(help="Target accuracy for rounds and bytes; default: one that all methods reach.")
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="Format of the table; html writes OUT/comparison.html.")
    ] = Format.text,
    open_: Annotated[bool, typer.Option("--open", help="Write the page and show it in the browser.")] = False,
    figures: Figures = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run several experiments over the same seeds and compare their final rounds, never their best ones."""
    from sordino.results.comparison import compare as run_all
    from sordino.results.comparison_table import FORMATS, text

    if figures is not None:
        part("figures", "available")()  # before the runs, not after them
    files, changes = [Path(word) for word in what if "=" not in word], [word for word in what if "=" in word]
    form, page = Format.json if as_json else form, form is Format.html or open_
    try:
        found = run_all(files, seeds, out, changes + (set_ or []), target, _follow(Console(stderr=True, quiet=quiet)))
    except KeyboardInterrupt:
        Console(stderr=True).print("Stopped at a safe point. The same command continues from there.")
        raise typer.Exit(130) from None
    if form is Format.text and not quiet:
        Screen().print(text(found.table))
        for line in found.choosing:
            Screen().print(f"· {escape(line)}", highlight=False)
    elif form is Format.json:
        say([row.to_json() for row in found.table])
    elif form not in (Format.text, Format.html):
        typer.echo(FORMATS[form](found.table), nl=False)
    # paths go where they do not mix with a table that is meant for another program
    place = Console(stderr=form not in (Format.text, Format.html))
    written = ([found.report()] if page else []) + (found.figures(figures) if figures is not None else [])
    for path in written:
        place.print(str(path), highlight=False, soft_wrap=True, markup=False)
    if open_:
        typer.launch(str(written[0].resolve()))


def _follow(console: Console) -> Follow:
    """Print the name of each run and the time that is left, then show its rounds."""
    from sordino.cli.progress import left, progress

    @contextmanager
    def follow(run: NextRun) -> Iterator[Callable[[Progress], None]]:
        rest = "" if run.left is None else f" (all together: {left(run.left)})"
        console.print(f"{run}{rest}", highlight=False, markup=False)
        with progress(console) as watch:
            yield watch

    return follow
