"""`sordino watch`: a run seen from another terminal. It reads files and looks whether the lock is held; it opens no
ledger and holds nothing.
"""

from __future__ import annotations

import datetime
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console

from sordino.cli.options import Json

if TYPE_CHECKING:
    from sordino.evaluate.rows import Scores
    from sordino.runs.folder import RunFolder

EVERY = 1.0  # seconds between two looks, and ten times what a look takes
EXIT = {"finished": 0, "budget spent": 0, "stopped": 130, "killed": 1}


class Seen(NamedTuple):
    state: str  # running, or one of EXIT
    round: int
    rounds: int
    score: Scores  # of the last evaluated round
    bytes: int
    at: float  # when the last row was written
    promise: str  # once there is a receipt


class WatchStart(NamedTuple):
    """Since when rounds are counted: the begin of the run, or of the watching where the run was stopped in between."""

    at: float
    round: int


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    once: Annotated[bool, typer.Option("--once", help="One line on how it stands, then go.")] = False,
    as_json: Json = False,
) -> None:
    """Follow a run that goes on elsewhere until it ends. Exit code: 0 finished, 130 stopped and resumable, 1 killed."""
    from sordino.runs.folder import RunFolder

    folder = RunFolder(run)
    folder.check()
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if not folder.lock_file.exists():
        time.sleep(EVERY)  # it may just have been founded
    seen = look(folder)
    since = beginning(folder) or WatchStart(time.time(), seen.round)
    if as_json:
        told = seen._asdict() | {"score": seen.score.to_json(), "rounds_per_second": rate(seen, since)}
        typer.echo(json.dumps(told))
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
        console.print(f"Continue with: sordino resume {run}")
    if not once:
        raise typer.Exit(EXIT[seen.state])


def look(run: RunFolder) -> Seen:
    """How a run stands, from what it has written."""
    from sordino.evaluate.measures import last_scored
    from sordino.evaluate.rows import Scores
    from sordino.runs.listing import promised

    alive = run.in_use  # asked before anything is read: who ends after this is seen to have ended at the next look
    planned, rows, file = run.experiment.rounds, run.metrics(), run.metrics_file
    receipt = run.receipt() if run.receipt_file.exists() else None
    if receipt is not None and receipt.rounds < len(rows):
        receipt = None  # of an earlier stop; the run has gone on since
    if alive:
        state = "running"
    elif receipt is None:
        state = "killed"
    elif len(rows) >= planned:
        state = "finished"
    else:
        state = "budget spent" if _says_spent(run.notes()) else "stopped"
    last = last_scored(rows)
    return Seen(
        state,
        len(rows),
        planned,
        Scores() if last is None else Scores(accuracy=last.accuracy, loss=last.loss),
        sum(row.bytes for row in rows),
        file.stat().st_mtime if file.exists() else 0.0,
        promised(receipt) if receipt is not None and not alive else "",
    )


def beginning(run: RunFolder) -> WatchStart | None:
    """The time when a run began that was never resumed: every start touches the lock, so it is as old as the run."""
    started = run.environment.started
    try:
        begun, touched = datetime.datetime.fromisoformat(started), run.lock_file.stat().st_mtime
    except (OSError, ValueError):
        return None
    return WatchStart(begun.timestamp(), 0) if abs(touched - begun.timestamp()) < 10 else None


def rate(seen: Seen, since: WatchStart) -> float:
    """Rounds per second, 0 while unknown."""
    passed = seen.at - since.at
    return max(0.0, (seen.round - since.round) / passed) if passed > 0 else 0.0


def line(seen: Seen, since: WatchStart) -> str:
    from sordino.cli.progress import left

    speed = rate(seen, since) if seen.state == "running" else 0.0
    said = [
        f"round {seen.round}/{seen.rounds}",
        seen.state,
        _reached(seen),
        f"{speed:.2g} rounds/s" if speed else "",
        left((seen.rounds - seen.round) / speed) if speed else "",
        seen.promise,
    ]
    return "  ".join(part for part in said if part)


def _reached(seen: Seen) -> str:
    from sordino.report.tables import bytes_text

    return "  ".join(part for part in (seen.score.told, bytes_text(seen.bytes)) if part)


def _says_spent(notes: list[str]) -> bool:
    return bool(notes) and notes[-1].startswith("stopped before round")


@contextmanager
def _shown(console: Console) -> Iterator[Callable[[Seen, WatchStart], None]]:
    from sordino.cli.progress import is_live, rounds_bar

    if not is_live(console):
        last = math.nan

        def tell(seen: Seen, since: WatchStart) -> None:
            nonlocal last
            if seen.round != last:
                console.print(line(seen, since))
                last = seen.round

        yield tell
        return
    with rounds_bar(console) as bar:
        task = bar.add_task("", total=None, reached="")

        def draw(seen: Seen, since: WatchStart) -> None:
            bar.update(task, total=seen.rounds, completed=seen.round, reached=_reached(seen))

        yield draw
