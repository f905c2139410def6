"""Commands that look and train nothing: on runs that exist (list, show, watch, predict); and on what an experiment can
name (algorithms, schema, and check of a user's own algorithm, model or other part)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.markup import escape

from sordino.branches import when_used
from sordino.cli import Encoding, Json, Screen, foreign, note, say, visible, write
from sordino.errors import ConfigError, SordinoError

if TYPE_CHECKING:
    from sordino.receipts.folder import RunFolder
    from sordino.runs.listing import RunStatus, WatchStart


def list_(place: Annotated[Path, typer.Argument(help="Folder of runs.")] = Path("runs"), as_json: Json = False) -> None:
    """List the runs in a folder: their rounds, scores and guarantees."""
    with when_used("numpy"):  # only statements of many clients count with it
        from sordino.runs.listing import adding_up, listed

    found = listed(place)
    if as_json:
        say([entry.to_json() for entry in found])
    elif not found:
        typer.echo(f"no runs in {place}")
    else:
        from rich.table import Column, Table

        screen, rows = Screen(), [entry.words() for entry in found]
        if screen.width < WIDE:  # the guarantee is long, and a column of its own would cut it into pieces
            for row in rows:
                row["score, promise"] = "\n".join(filter(None, (row.pop("score"), row.pop("promise"))))
        table = Table(*(Column(name, overflow="fold") for name in rows[0]), show_lines=screen.width < WIDE)
        for row in rows:
            table.add_row(*map(escape, row.values()))
        screen.print(table)
        note(screen, adding_up(found))


def show(folder: Path, as_json: Json = False) -> None:
    """Show the result and the guarantees of a finished run."""
    from sordino.cli.tables import summary
    from sordino.receipts.folder import RunFolder

    run = RunFolder(folder)
    run.check()
    if as_json:
        say(whole_run(run))
    else:
        promised = run.receipt()
        summary(Screen(), run.metrics(), promised, prepared(folder))


def whole_run(run: RunFolder) -> dict[str, object]:
    """Metrics, preparation and receipt of a run, as JSON."""
    promised = run.receipt()
    return {
        "metrics": [row.to_json() for row in run.metrics()],
        "preparation": [row.to_json() for row in run.prepared()],
        "privacy": promised.to_json(),
    }


def prepared(folder: Path) -> RenderableType:
    """Table of a run's preparation (phases before round 1); if its data are gone, a sentence that says so."""
    from sordino.receipts.folder import RunFolder

    if not RunFolder(folder).prepared():
        return ""
    with when_used("torch"):
        from sordino.cli.tables import preparation
        from sordino.results.preparation_facts import gather

    try:
        found = gather(folder, pictures=False)
    except SordinoError as error:
        return f"What came before round 1 cannot be told: {escape(error.what)}"
    return "" if found is None else preparation(found)


WIDE = 120  # columns of a terminal from which a guarantee gets a column of its own
EVERY = 1.0  # seconds between two looks, and ten times what a look takes
EXIT = {"finished": 0, "budget spent": 0, "stopped": 130, "killed": 1}


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    once: Annotated[bool, typer.Option("--once", help="Print the state in one line, then exit.")] = False,
    as_json: Json = False,
) -> None:
    """Follow a run of another process until it ends. Exit code: 0 finished, 130 stopped and resumable, 1 killed."""
    from sordino.receipts.folder import RunFolder
    from sordino.runs.listing import WatchStart, beginning, look, rate

    folder = RunFolder(run)
    folder.check()
    console = Screen(highlight=False, soft_wrap=True, markup=False)
    if not folder.lock_file.exists():
        time.sleep(EVERY)  # it may just have been founded
    seen = look(folder)
    since = beginning(folder) or WatchStart(time.time(), seen.round)
    if as_json:
        sites = {name: now._asdict() for name, now in seen.sites.items()}
        values = seen._asdict() | {
            "score": seen.score.to_json(),
            "sites": sites,
            "rounds_per_second": rate(seen, since),
        }
        say(values)
        return
    if not once:
        with _shown(console) as show:
            while seen.state == "running":
                show(seen, since)
                begun = time.monotonic()
                time.sleep(EVERY)
                seen = look(folder)
                time.sleep(max(0.0, 10 * (time.monotonic() - begun - EVERY)))
    console.print(line(seen, since))
    if seen.state in ("stopped", "killed"):
        between = folder.environment.site
        program = "join" if folder.environment.clients is not None else "serve"
        again = f"sordino {program}, as before" if between else f"sordino resume {quote(str(run))}"
        console.print(f"Continue with: {again}")
    if not once:
        raise typer.Exit(EXIT[seen.state])


def line(seen: RunStatus, since: WatchStart) -> str:
    from sordino.cli.progress import left
    from sordino.runs.listing import rate

    speed = rate(seen, since) if seen.state == "running" else 0.0
    parts = [
        f"round {seen.round}/{seen.rounds}",
        seen.state,
        _reached(seen),
        connected(seen),
        f"{speed:.2g} rounds/s" if speed else "",
        left((seen.rounds - seen.round) / speed) if speed else "",
        seen.promise,
    ]
    return "  ".join(part for part in parts if part)


def connected(seen: RunStatus) -> str:
    """Number of connected sites of a running run, with the names of absent ones; in a site's own folder, that site's
    state.
    """
    if seen.state != "running" or not seen.sites:
        return ""
    if (own := seen.sites.get("")) is not None:  # of a site's own folder
        return own.words
    gone = [f"{name} {now.words}" for name, now in seen.sites.items() if not now.connected]
    there = f"{len(seen.sites) - len(gone)}/{len(seen.sites)} sites connected"
    return there + (f" ({', '.join(gone)})" if gone else "")


def _reached(seen: RunStatus) -> str:
    from sordino.metrics import bytes_text

    return "  ".join(part for part in (seen.score.in_words, bytes_text(seen.bytes)) if part)


@contextmanager
def _shown(console: Console) -> Iterator[Callable[[RunStatus, WatchStart], None]]:
    from sordino.cli.progress import is_live, rounds_bar

    if not is_live(console):
        last: tuple[int, str] | None = None

        def tell(seen: RunStatus, since: WatchStart) -> None:
            nonlocal last
            if (now := (seen.round, connected(seen))) != last:
                console.print(line(seen, since))
                last = now

        yield tell
        return
    with rounds_bar(console) as bar:
        task = bar.add_task("", total=None, reached="")

        def draw(seen: RunStatus, since: WatchStart) -> None:
            reached = foreign(f"{_reached(seen)}  {connected(seen)}".rstrip())  # a live display goes past a Screen
            bar.update(task, total=seen.rounds, completed=seen.round, reached=reached)

        yield draw


def predict(
    run: Annotated[Path, typer.Argument(help="A run folder, or a copy of its model.json and model.safetensors.")],
    rows: Annotated[
        Path,
        typer.Argument(metavar="NEW", help="A CSV or parquet table; for images a folder, a file or a parquet table."),
    ],
    out: Annotated[Path | None, typer.Option(help="Write the predictions into this CSV file.")] = None,
    score: Annotated[bool, typer.Option("--score", help="Print scores; the true labels are in NEW.")] = False,
    own: Annotated[
        Path | None,
        typer.Option(
            metavar="OWN",
            help="Labelled rows of one client, from which its personal model is made, on this machine.",
        ),
    ] = None,
    encoding: Encoding = None,
    with_code: Annotated[
        bool, typer.Option("--with-code", help="Import a user-defined model, which runs its file.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Predict new rows with a trained model. As CSV: each row's class and all probabilities, or its number."""
    from sordino.results.prediction import predict as predicted

    found = predicted(run, rows, score, with_code, own, encoding)
    if out is not None:
        write(out, found.to_csv())
    written = {"out": str(out)} if out is not None else {"predictions": list(found.rows)}
    if as_json:
        typer.echo(json.dumps({"rows": len(found), **found.described, **written, "notes": found.notes}))
        return
    if out is None:
        csv = found.to_csv()
        typer.echo(visible(csv) if sys.stdout.isatty() else csv, nl=False)  # names of classes may be a stranger's
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    note(console, found.notes)
    for line in found.lines():
        console.print(foreign(line))
    if out is not None:
        console.print(f"{len(found)} predictions are in {escape(str(out))}")


def algorithms(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Algorithm to describe: a name, or module:Class.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the algorithms; with NAME, explain its parameters and their defaults."""
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
            text = escape(v.says) if v.verdict == "holds" else escape(v.why)
            fix = f"\n[bold]fix[/bold] {escape(v.fix)}" if v.fix else ""
            table.add_row(v.law, f"[{STYLES[v.verdict]}]{v.verdict}[/]", text + fix)
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
