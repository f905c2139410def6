"""Commands that train: new, run, resume, compare."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from sordino.branches import loading, part
from sordino.cli import (
    Figures,
    Json,
    Quiet,
    Screen,
    Track,
    Verbose,
    What,
    check_absent,
    experiment_and_changes,
    note,
    say,
    unwritable,
    write,
)
from sordino.errors import ConfigError

if TYPE_CHECKING:
    from sordino.cli.bench import Profile
    from sordino.config import Experiment
    from sordino.results.comparison import Follow, NextRun
    from sordino.runs.play import Ended, Progress


def new(folder: Annotated[Path, typer.Argument(help="Folder for experiment.toml and task.py.")]) -> None:
    """Start a project: one commented experiment and a model of your own."""
    files = {folder / "experiment.toml": EXPERIMENT, folder / "task.py": TASK}
    for path in files:
        check_absent(path)
    with unwritable(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        write(path, text)
        typer.echo(str(path))


def run(
    what: What = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="key=value", help="Same as a bare key=value.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/DATE-NAME.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all randomness in a simulation.")] = None,
    chaos: Annotated[
        str | None,
        typer.Option(
            metavar="drop=0.2,slow=0.1,crash@7", help="Rehearse faults: lost and late clients, a killed process."
        ),
    ] = None,
    prepared: Annotated[Path | None, typer.Option(metavar="RUN", help="Reuse the preparation of another run.")] = None,
    track: Track = None,
    dry: Annotated[
        bool,
        typer.Option("--dry-run", help="Check everything, print the plan and the files of the run; write nothing."),
    ] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Print a time profile at the end.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run a federation. Without arguments: real handwritten digits on 20 clients, private, in under a minute."""
    from sordino import config

    file, overrides = experiment_and_changes(what or [])
    overrides += set_ or []
    if seed is not None:
        overrides.append(f"seed={seed}")
    crash = _faults(chaos, overrides)
    experiment = config.load(Path(file) if file is not None else None, overrides)

    if dry:
        _say_only(experiment, out, prepared, what or [], as_json, quiet)
        return

    def go(watch: Any) -> Ended:
        from sordino.runs.run import fresh_folder, start

        return start(experiment, out if out is not None else fresh_folder(experiment.name), watch, crash, prepared)

    show_run(go, track or [], as_json, quiet, profile=profile)


def _say_only(
    experiment: Experiment, out: Path | None, prepared: Path | None, words: list[str], as_json: bool, quiet: bool
) -> None:
    """Print the plan of a dry run, without starting the run; refuse what the run itself would refuse."""
    with loading():
        from sordino.runs.forecast import Forecast
        from sordino.runs.new_folder import choices, would_write
        from sordino.runs.run import checked, fresh_folder

    folder = out if out is not None else fresh_folder(experiment.name)
    simulation = checked(experiment, folder, prepared, dry=True)
    settled = simulation.setup.experiment
    forecast, files = Forecast(simulation), [str(path) for path in would_write(folder, simulation.setup)]
    row, decided = forecast.row("as asked", words, timed=True), choices(experiment.engine, settled.engine, settled)
    if as_json:
        promised = [one.to_json() for one in forecast.planner.guarantees]
        values = {"dry_run": True, "folder": str(folder), "would_write": files, "decided": decided}
        values |= {"remarks": simulation.remarks}
        say({**values, "answer": row.to_json(), "guarantees": promised})
    elif not quiet:
        from sordino.cli import plan_tables as planned
        from sordino.cli.tables import guarantees

        console = Screen()
        simulated = not settled.privacy.real
        planned.facts(console, row, forecast.timing, simulated)
        console.print(guarantees(forecast.planner.guarantees, simulated))
        for line in (*decided, *simulation.remarks):
            console.print(f"· {escape(line)}", highlight=False)
        console.print(f"A run would write, and this one did not: {escape(', '.join(files))}", highlight=False)


def _faults(chaos: str | None, overrides: list[str]) -> int | None:
    """Parse --chaos: add its faults to the settings of [chaos], and return the round in which to kill the process, if
    any.
    """
    crash = None
    for word in chaos.split(",") if chaos else ():
        name, sign, value = word.strip().partition("@" if "@" in word else "=")
        if name == "crash" and sign == "@" and value.isdecimal() and int(value) > 0:
            crash = int(value)
        elif name in ("drop", "slow") and sign == "=":
            overrides.append(f"chaos.{name}={value}")
        else:
            raise ConfigError(
                f"--chaos does not know {word!r}",
                fix="write drop=SHARE, slow=SHARE or crash@ROUND, such as --chaos drop=0.2,crash@7",
                code="wrong-usage",
            )
    return crash


def resume(
    folder: Path,
    fallback: Annotated[
        bool, typer.Option("--fallback", help="Ignore a damaged newest checkpoint and use the one before.")
    ] = False,
    moved: Annotated[
        bool,
        typer.Option("--moved", help="With real noise: this folder was moved or restored."),
    ] = False,
    track: Track = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Continue a run that was stopped or killed: the result is the same, byte for byte."""

    def go(watch: Any) -> Ended:
        from sordino.runs.run import resume as continue_

        return continue_(folder, watch, fallback, moved)

    show_run(go, track or [], as_json, quiet)


def _profile() -> Profile:
    from sordino.cli.bench import Profile

    return Profile()


def show_run(go: Any, track: list[str], as_json: bool, quiet: bool, again: str = "", profile: bool = False) -> None:
    """Runs `go`, a new or a resumed run, and prints its result. `again`: the command that continues a stopped run,
    where that is not `resume`; `profile`: prints where its time went.
    """
    with loading():
        from sordino.runs.ranks import follow, following

    if following():  # under torchrun the first rank runs, the others do what it says
        follow()
        return
    from sordino.cli.looking import prepared, whole_run
    from sordino.cli.progress import progress
    from sordino.receipts.folder import RunFolder
    from sordino.runs.trackers import tracked

    console = Console(stderr=True, quiet=quiet or as_json)
    with contextlib.ExitStack() as stack:
        seen = stack.enter_context(_profile()) if profile else None
        result = tracked(go, track, stack.enter_context(progress(console)))
    if as_json:
        found = {"folder": str(result.folder), **whole_run(RunFolder(result.folder)), "notes": result.notes}
        say(found | ({"seconds": seen.shares} if seen is not None else {}))
    elif not quiet:
        from sordino.cli.tables import summary

        out = Screen()
        summary(out, result.metrics, result.receipt, prepared(result.folder))
        note(out, result.notes)
        if seen is not None:
            from sordino.cli.tables import times

            out.print(times(seen, result.metrics))
        out.print(f"Everything is in [bold]{escape(str(result.folder))}[/bold].")
    if result.interrupted:
        with contextlib.suppress(OSError):  # a terminal that hung up reads no more
            Console(stderr=True, soft_wrap=True, highlight=False).print(
                "Stopped at a safe point. Continue with: "
                + (again or f"sordino resume {escape(quote(str(result.folder)))}")
            )
        raise typer.Exit(130)


EXPERIMENT = """\
# Run it from this folder:  sordino run experiment.toml
# Change anything:          sordino run experiment.toml rounds=5
rounds = 30
seed = 0                        # of everything random in a simulation

[data]
source = "digits"               # real 8x8 images that ship with sordino; or:
# source = "tabular"            # path = "table.csv", label = "column", group = "column that names the client",
#                             # schema = "table.schema.toml" (`sordino data schema table.csv --label column` drafts it)
# source = "images"             # path = a folder of parquet files in the Hugging Face image format

[partition]
scheme = "dirichlet"            # iid, dirichlet, shards, classes, active, quantity, long_tail, power_law,
                                # natural (by data.group)
clients = 20
alpha = 0.5                     # smaller: clients differ more

[model]
name = "task:Net"               # class Net in task.py; or logistic, mlp, cnn, cnn_norm, cnn_wide, vgg16

[cohort]
name = "everyone"               # or {name = "round_robin", size = 5}, "random", "poisson" (rate = 0.1)

[algorithm]
name = "gaussian_gdp"           # `sordino algorithms` lists all with their parameters
clip = 1.0                      # largest norm of one example's gradient
lr = 1.0

[privacy]
epsilon = 8.0                   # of one example of one client, over the whole run; leave it out with
                                # fedavg, fedprox, scaffold
delta = 1e-5                    # below 1 / number of examples
noise = "counter"               # a seeded simulation; "system" draws real noise
"""

TASK = '''\
"""The model. Any torch.nn.Module will do; use GroupNorm where you would use BatchNorm.

If you come from Flower: Net is as you know it. load_data is [data] and [partition] in experiment.toml, train is
[algorithm], and test is done for you, on all test examples and client by client; so a task.py of yours works here, and
its other functions are not called.
"""

from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:  # images arrive as [batch, channels, height, width], normalised
        return self.layers(x)
'''


class Format(StrEnum):
    """Format in which a comparison is printed."""

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
    """Callback for several runs: prints each run's name and the time left, then shows its rounds."""
    from sordino.cli.progress import left, progress

    @contextmanager
    def follow(run: NextRun) -> Iterator[Callable[[Progress], None]]:
        rest = "" if run.left is None else f" (all together: {left(run.left)})"
        console.print(f"{run}{rest}", highlight=False, markup=False)
        with progress(console) as watch:
            yield watch

    return follow
