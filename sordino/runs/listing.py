"""List and watch runs from outside, from their files and locks alone: no data is loaded, no ledger is opened, nothing
is recomputed.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from sordino.accounting.events import Json
from sordino.accounting.facts import epsilon_text
from sordino.accounting.statement import Guarantee, strongest
from sordino.accounting.words import in_short
from sordino.errors import RunError, SordinoError
from sordino.metrics import RoundRow, Scores
from sordino.metrics.measures import last_scored
from sordino.receipts import Receipt
from sordino.receipts.folder import NO_RECEIPT, UNCOMPARED, RunFolder, no_folder, rows_of
from sordino.receipts.newest import training_rounds
from sordino.transport.run_events import RunEvent

NOT_OF_SCORES = "no epsilon covers scores"


class Listed(NamedTuple):
    """Summary of one run: state, rounds, score and strongest guarantee."""

    folder: str
    algorithm: str = ""
    rounds: int = 0  # done
    planned: int = 0
    state: Literal["finished", "resumable", "damaged", "unreadable"] = "damaged"
    accuracy: float | None = None  # of the last round that was scored
    loss: float | None = None
    score: str = ""  # what it is judged by, in words
    simulated: bool | None = None  # None: it cannot be read
    promise: str = ""  # the strongest finite row, with its subject; of a run that cannot be read, why
    guarantee: Guarantee | None = None  # that row
    data: tuple[str, ...] = ()  # where its rows come from

    def to_json(self) -> Json:
        row = None if self.guarantee is None else self.guarantee.to_json()
        return {**self._asdict(), "guarantee": row}

    def words(self) -> dict[str, str]:
        """Columns of this run's row in a table of runs, as text."""
        unknown = self.state in ("damaged", "unreadable")
        return {
            "folder": self.folder,
            "algorithm": self.algorithm,
            "rounds": "" if unknown else f"{self.rounds}/{self.planned}",
            "state": self.state,
            "score": self.score,
            "promise": self.promise,
        }


def listed(place: Path) -> list[Listed]:
    if not place.is_dir():
        raise RunError(
            f"{place} is not a folder",
            why=no_folder(place),
            fix="`sordino list FOLDER` shows the runs in a folder; `sordino show RUN` one run",
            code="no-folder",
        )
    folders = [path for path in sorted(place.iterdir()) if path.is_dir()]
    # runs of a comparison included
    found = [path for one in folders for path in (one, *([] if _closed(one) else sorted(one.glob("seed-*"))))]
    return [_one(path, str(path.relative_to(place))) for path in found if _closed(path) or RunFolder(path).begun]


def adding_up(found: Sequence[Listed]) -> list[str]:
    """Warnings about runs on the same data, whose privacy costs add up."""
    # one without a receipt has spent, too: it goes on, or was killed
    real = [one for one in found if one.simulated is False and (one.guarantee or not one.promise)]
    together: dict[tuple[str, ...], list[str]] = {}
    for data in dict.fromkeys(data for one in real for data in one.data):
        together.setdefault(tuple(one.folder for one in real if data in one.data), []).append(data)
    return [
        f"{len(runs)} runs with real noise read the same data ({', '.join(data)}): what they cost adds up, and no row "
        "shows the sum. One ledger for all (privacy.ledger) keeps count."
        for runs, data in together.items()
        if len(runs) > 1
    ]


def _closed(path: Path) -> bool:
    """True for a folder that this user may not read."""
    return path.is_dir() and not os.access(path, os.R_OK | os.X_OK)


def _one(folder: Path, name: str) -> Listed:
    files = RunFolder(folder)
    if _closed(folder):
        return Listed(name, state="unreadable", promise="you may not read it")
    try:
        files.check()
        experiment, rows = files.experiment, files.metrics()
        receipt = newest(files, rows)
    except SordinoError as error:
        return Listed(name, promise=f"{error.what}: {error.why}")
    except PermissionError as error:
        return Listed(name, state="unreadable", promise=f"{error.filename}: {error.strerror}")
    last = last_scored(rows)
    source, path = experiment.data.source, experiment.data.path or []
    places = [path] if isinstance(path, str) else path
    return Listed(
        name,
        str(experiment.algorithm.get("name", "")),
        len(rows),
        experiment.rounds,
        "finished" if receipt and len(rows) >= experiment.rounds else "resumable",
        None if last is None else last.accuracy,
        None if last is None else last.loss,
        "" if last is None else last.in_words,
        not experiment.privacy.real if receipt is None else receipt.simulated,
        "" if receipt is None else promised(receipt),
        None if receipt is None else strongest(receipt.guarantees),
        tuple(f"{source} {os.path.realpath(place)}" for place in places) or (source,),  # however it is spelled
    )


def newest(run: RunFolder, rows: Sequence[RoundRow] = ()) -> Receipt | None:
    """Receipt of all that a run has released until now; None where there is none yet. `rows`: of its rounds, which tell
    an old one where its ledger lies elsewhere.
    """
    try:
        found = run.receipt()
    except RunError as error:
        if error.code != NO_RECEIPT:
            raise
        return None
    return None if training_rounds(found) < len(rows) else found


def promised(receipt: Receipt) -> str:
    text = promise(receipt.guarantees, receipt.simulated)
    return f"{text}; {UNCOMPARED}" if UNCOMPARED in receipt.assumptions else text


def promise(rows: Sequence[Guarantee], simulated: bool) -> str:
    """The strongest guarantee as one line: epsilon, unit, neighbours, adversary, delta and status. It stands beside
    scores, which are exact answers about people's rows: with real noise it says that it is not about them.
    """
    row = strongest(rows)
    if row is None:
        printed = next((row.nominal_epsilon for row in rows if row.nominal_epsilon is not None), None)
        return "nothing promised" + ("" if printed is None else f"; nominal {epsilon_text(printed)} proves nothing")
    return in_short(row, simulated) + ("" if simulated else f"; {NOT_OF_SCORES}")


class SiteNow(NamedTuple):
    """State of a site, as the events of the run show it so far."""

    connected: bool = False
    since: str = ""  # UTC; nothing: it has not come yet
    takes_part: bool = False
    asked: int = 0  # the last round that was requested of it
    answered: int = 0  # and the last one that it answered
    why: str = ""

    @property
    def words(self) -> str:
        if not self.since:
            return self.why or "not there yet"
        return "connected" if self.connected else "not connected" + (f": {self.why}" if self.why else "")


class RunStatus(NamedTuple):
    """State of a run as its files show it."""

    state: str  # running, finished, budget spent, stopped or killed
    round: int
    rounds: int
    score: Scores  # of the last evaluated round
    bytes: int
    at: float  # when the last row was written
    promise: str  # once there is a receipt
    sites: Mapping[str, SiteNow] = {}  # by name, in a run between sites; of a site's own folder one without a name


class WatchStart(NamedTuple):
    """Time and round from which rounds per second are counted: the start of the run, or of watching it where the run
    was resumed.
    """

    at: float
    round: int


def events(run: RunFolder) -> list[RunEvent]:
    """Events between sites that this user may read."""
    whole = RunFolder(run.private).events_file
    return rows_of(whole, RunEvent) if whole.exists() else public_events(run)


def public_events(run: RunFolder) -> list[RunEvent]:
    """Events of a run between sites, as far as everybody may see them (see `sites.event_log`)."""
    return rows_of(run.events_file, RunEvent)


def look(run: RunFolder) -> RunStatus:
    """State, round and score of a run, from what it has written."""
    alive = run.in_use  # tested before reading: a run that ends during the reading is reported as ended next time
    planned, rows, file = run.experiment.rounds, run.metrics(), run.metrics_file
    happened = events(run)
    receipt = None if alive else newest(run, rows)
    last = last_scored(rows)
    return RunStatus(
        state(run, alive, rows, happened, receipt),
        len(rows) if run.environment.clients is None or not rows else rows[-1].round,  # a site may miss some
        planned,
        Scores() if last is None else last.judged,
        sum(row.bytes for row in rows),
        file.stat().st_mtime if file.exists() else 0.0,
        "" if receipt is None else promised(receipt),
        sites(happened, alive),
    )


def state(
    run: RunFolder, alive: bool, rows: Sequence[RoundRow], events: Sequence[RunEvent], receipt: Receipt | None
) -> str:
    """State of a run in a word or two: running, finished, budget spent, stopped or killed. `alive`: a process works on
    it.
    """
    if alive:
        return "running"
    if run.environment.clients is not None:  # a site: the server decides how many rounds it requests
        last = next((event.event for event in reversed(events) if event.event in ("over", "stopped", "started")), "")
        return {"over": "finished", "stopped": "stopped"}.get(last, "killed")
    if receipt is None:
        return "killed"
    if len(rows) >= run.experiment.rounds:
        return "finished"
    notes = run.notes()
    return "budget spent" if notes and notes[-1].startswith("stopped before round") else "stopped"


def sites(events: Sequence[RunEvent], alive: bool) -> dict[str, SiteNow]:
    """State of each site since the last start. Sites known from before it count as gone until they come back; of a run
    that is not `alive` none is connected.
    """
    found: dict[str, SiteNow] = {}
    for event in events:
        before = found.get(event.site, SiteNow())
        match event.event:
            case "started":
                known = {site: found.get(site, SiteNow()) for site in event.sites or ("",)}
                found = {site: was._replace(connected=False, since="", why="") for site, was in known.items()}
            case "connected" | "cut off":
                there = event.event == "connected"
                found[event.site] = before._replace(connected=there, since=event.at, why=event.why)
            case "accepted":
                found[event.site] = before._replace(takes_part=True)
            case "refused":
                found[event.site] = before._replace(why=event.why)
            case "answered":
                found[event.site] = before._replace(answered=event.round or 0)
            case "asked":
                for site in event.sites:
                    found[site] = found.get(site, SiteNow())._replace(asked=event.round or 0)
    return found if alive else {site: now._replace(connected=False) for site, now in found.items()}


def beginning(run: RunFolder) -> WatchStart | None:
    """Start time of a run that was never resumed, else None. Each start touches the lock file, so the lock of such a
    run is as old as the run.
    """
    started = run.environment.started
    try:
        begun, touched = datetime.datetime.fromisoformat(started), run.lock_file.stat().st_mtime
    except (OSError, ValueError):
        return None
    return WatchStart(begun.timestamp(), 0) if abs(touched - begun.timestamp()) < 10 else None


def rate(seen: RunStatus, since: WatchStart) -> float:
    """Rounds per second, 0 while unknown."""
    passed = seen.at - since.at
    return max(0.0, (seen.round - since.round) / passed) if passed > 0 else 0.0
