"""`sordino watch`: a run seen from another terminal. It reads files and looks whether the lock is held; it opens no
ledger and holds nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sordino.cli.options import Json
from sordino.cli.screen import say

if TYPE_CHECKING:
    from sordino.runs.watched import Seen, WatchStart

EVERY = 1.0  # seconds between two looks, and ten times what a look takes
EXIT = {"finished": 0, "budget spent": 0, "stopped": 130, "killed": 1}


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    once: Annotated[bool, typer.Option("--once", help="One line on how it stands, then go.")] = False,
    as_json: Json = False,
) -> None:
    """Follow a run that goes on elsewhere until it ends. Exit code: 0 finished, 130 stopped and resumable, 1 killed."""
    from sordino.receipts.folder import RunFolder
    from sordino.runs.watched import WatchStart, beginning, look, rate

    folder = RunFolder(run)
    folder.check()
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if not folder.lock_file.exists():
        time.sleep(EVERY)  # it may just have been founded
    seen = look(folder)
    since = beginning(folder) or WatchStart(time.time(), seen.round)
    if as_json:
        sites = {name: now._asdict() for name, now in seen.sites.items()}
        told = seen._asdict() | {"score": seen.score.to_json(), "sites": sites, "rounds_per_second": rate(seen, since)}
        say(told)
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
        again = f"sordino {program}, as before" if between else f"sordino resume {run}"
        console.print(f"Continue with: {again}")
    if not once:
        raise typer.Exit(EXIT[seen.state])


def line(seen: Seen, since: WatchStart) -> str:
    from sordino.cli.progress import left
    from sordino.runs.watched import rate

    speed = rate(seen, since) if seen.state == "running" else 0.0
    said = [
        f"round {seen.round}/{seen.rounds}",
        seen.state,
        _reached(seen),
        connected(seen),
        f"{speed:.2g} rounds/s" if speed else "",
        left((seen.rounds - seen.round) / speed) if speed else "",
        seen.promise,
    ]
    return "  ".join(part for part in said if part)


def connected(seen: Seen) -> str:
    """Who is there, of a run between sites that goes on; those who are not, by name."""
    if seen.state != "running" or not seen.sites:
        return ""
    if (own := seen.sites.get("")) is not None:  # of a site's own folder
        return own.words
    gone = [f"{name} {now.words}" for name, now in seen.sites.items() if not now.connected]
    there = f"{len(seen.sites) - len(gone)}/{len(seen.sites)} sites connected"
    return there + (f" ({', '.join(gone)})" if gone else "")


def _reached(seen: Seen) -> str:
    from sordino.results.tables import bytes_text

    return "  ".join(part for part in (seen.score.told, bytes_text(seen.bytes)) if part)


@contextmanager
def _shown(console: Console) -> Iterator[Callable[[Seen, WatchStart], None]]:
    from sordino.cli.progress import is_live, rounds_bar

    if not is_live(console):
        last: tuple[int, str] | None = None

        def tell(seen: Seen, since: WatchStart) -> None:
            nonlocal last
            if (now := (seen.round, connected(seen))) != last:
                console.print(line(seen, since))
                last = now

        yield tell
        return
    with rounds_bar(console) as bar:
        task = bar.add_task("", total=None, reached="")

        def draw(seen: Seen, since: WatchStart) -> None:
            bar.update(
                task, total=seen.rounds, completed=seen.round, reached=f"{_reached(seen)}  {connected(seen)}".rstrip()
            )

        yield draw
