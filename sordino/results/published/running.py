"""Runs the rows of a published table, each run in a process of its own.

The headline is the final round and the mean of the last ones, never the best round.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from sordino.accounting.claims import STATUSES
from sordino.errors import ConfigError, DataError, NonFiniteModel, RunError
from sordino.results.published.tables import (
    RESULTS,
    TUNING,
    MeasuredRun,
    PublishedRow,
    PublishedTable,
    TableProgram,
    keep,
    read,
)
from sordino.results.published.written import write

SHIPPED = "../shared/data"  # where the experiments look for images


@dataclass(frozen=True)
class QuickResult:
    """What a cut row gave, or why it could not be run."""

    table: str
    row: str
    cut: tuple[str, ...]
    seconds: float
    accuracy: float | None = None
    refused: str | None = None
    exit_code: int = 0


@dataclass(frozen=True)
class RepeatedRun:
    """A kept run, and what the same row and seed gave now."""

    kept: MeasuredRun
    now: MeasuredRun

    @property
    def same(self) -> bool:
        """Every score that is kept, and the promise. Seconds are another machine's; the oldest rows have no curve."""
        told = ("final", "last", "epsilon", "status", *(("curve",) if self.kept.curve else ()))
        return all(getattr(self.kept, name) == getattr(self.now, name) for name in told)

    def __str__(self) -> str:
        what = f"{self.kept.name}, seed {self.kept.seed}"
        if self.same:
            return f"{what}: the same, {self.now.final:.2f}"
        each = (f"{run.final:.2f} (epsilon {run.epsilon}, {run.status})" for run in (self.kept, self.now))
        return f"{what}: differs, kept {', now '.join(each)}"


def run_again(
    table: PublishedTable, row: PublishedRow, seed: int | None, jobs: int, data: Path | None
) -> Iterator[RepeatedRun]:
    """Runs of one row that are kept, once more. What is kept stays as it is."""
    chosen = [run for run in table.of(row) if seed in (None, run.seed)]
    if not chosen:
        raise ConfigError(
            f"{table.name}: no run of {row.name!r}" + ("" if seed is None else f" with seed {seed}") + " is kept",
            why=f"seeds that are kept: {', '.join(str(run.seed) for run in table.of(row)) or 'none'}",
            fix="leave --again out: what is missing is then run and kept",
            code="nothing-to-repeat",
        )
    yield from _side_by_side(
        [lambda kept=kept: RepeatedRun(kept, _one(table, row, kept.seed, data, kept.tuned)) for kept in chosen],  # type: ignore[misc]
        jobs,
    )


def run_missing(
    table: PublishedTable,
    jobs: int,
    data: Path | None,
    heard: Callable[[str], None],
    only: str | None = None,
    seed: int | None = None,
) -> PublishedTable:
    """Runs what is missing, tuning first. Each finished run is kept at once, so an interrupted table goes on where it
    stopped. `only` and `seed`: of this row, with this seed.
    """
    tune, ran = table.sheet.tune, False
    if tune is not None:
        trials: list[Callable[[], MeasuredRun]] = [
            lambda row=row, value=value: _tried(table, row, tune.seed, data, value)  # type: ignore[misc]
            for row, value in table.untuned()
            if only in (None, row.name)
        ]
        for run in _side_by_side(trials, jobs):
            keep(table.folder / TUNING, run)
            heard(f"{run.name:40s} tried {tune.key} = {run.tuned:g}  {run.last:.2f}")
        table = read(table.folder)
    wanted: list[Callable[[], MeasuredRun]] = [
        lambda row=row, s=s: _one(table, row, s, data, table.tuned(row))  # type: ignore[misc]
        for row, s in table.missing()
        if only in (None, row.name) and seed in (None, s)
    ]
    for run in _side_by_side(wanted, jobs):
        ran = True
        keep(table.folder / RESULTS, run)
        write(read(table.folder))
        heard(f"{run.name:40s} seed {run.seed}  {run.final:.2f}")
    for program in table.unwritten() if only is None else ():
        ran = True
        _write(table, program, data)
        heard(f"{program.file} has written {program.writes}")
    if not ran:
        heard("Nothing was missing, so nothing was run. --row ROW --again runs a kept row once more, and compares.")
    table = read(table.folder)
    write(table)
    return table


def run_quick(tables: Sequence[PublishedTable], jobs: int, data: Path | None) -> Iterator[QuickResult]:
    """One cut row of each table that has rows. Nothing is kept."""
    cut = [
        lambda table=table, row=quick[0], words=quick[1]: _cut(table, row, words, data)
        for table in tables
        if (quick := table.quick()) is not None
    ]
    yield from _side_by_side(cut, jobs)


def _write(table: PublishedTable, program: TableProgram, data: Path | None) -> None:
    given = [str((data or Path(SHIPPED)) / program.images)] if program.images else []
    command = [sys.executable, str(table.folder / program.file), *given]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0 or program in table.unwritten():
        raise RunError(
            f"{table.name}: {program.file} ended with {done.returncode}, and {program.writes} "
            f"is {'not ' if program in table.unwritten() else ''}there",
            why=done.stderr.strip().rpartition("\n")[2],
            fix="say with --data where mnist/, cifar10/ and cifar100/ are" if given else "",
            code="program-failed",
        )


def _side_by_side(work: Iterable[Callable[[], Any]], jobs: int) -> Iterator[Any]:
    """Results as they come. When one fails, those that are going end first, and no other begins."""
    waiting = iter(work)
    failed: BaseException | None = None
    with ThreadPoolExecutor(jobs) as pool:
        going = {pool.submit(each) for each in islice(waiting, jobs)}
        while going:
            done, going = wait(going, return_when=FIRST_COMPLETED)
            for one in done:
                if (error := one.exception()) is None:
                    yield one.result()
                else:
                    failed = failed or error
            if failed is None:
                going |= {pool.submit(each) for each in islice(waiting, jobs - len(going))}
    if failed is not None:
        raise failed


def _cut(table: PublishedTable, row: PublishedRow, cut: tuple[str, ...], data: Path | None) -> QuickResult:
    begun = time.monotonic()
    try:
        found = _found(table, row, (*row.set, *cut), 0, data)
    except (DataError, RunError) as error:
        code = error.exit_code
        return QuickResult(table.name, row.name, cut, time.monotonic() - begun, refused=error.what, exit_code=code)
    (*_, accuracy) = (m["accuracy"] for m in found["metrics"] if "accuracy" in m)
    return QuickResult(table.name, row.name, cut, time.monotonic() - begun, accuracy=100 * accuracy)


def _one(table: PublishedTable, row: PublishedRow, seed: int, data: Path | None, tuned: float | None) -> MeasuredRun:
    tune, begun = table.sheet.tune, time.monotonic()
    words = row.set if tune is None or tuned is None else (*row.set, f"{tune.key}={tuned}")
    found = _found(table, row, words, seed, data)
    run = measured(found, row.name, seed, table, tuned, time.monotonic() - begun)
    return run.model_copy(update={"set": row.set})


def _tried(table: PublishedTable, row: PublishedRow, seed: int, data: Path | None, value: float) -> MeasuredRun:
    """A trial. A step at which the model diverges is no reason to stop: it is kept as one that nobody chooses."""
    try:
        return _one(table, row, seed, data, value)
    except NonFiniteModel:
        facts = {"final": 0.0, "last": 0.0, "epsilon": "inf", "status": "diverged", "subject": "-", "bytes_up": 0}
        return MeasuredRun.model_validate(facts | {"name": row.name, "seed": seed, "tuned": value})


def _found(table: PublishedTable, row: PublishedRow, words: Sequence[str], seed: int, data: Path | None) -> Any:
    """What `sordino run --json` says of this row. The run's folder is not kept."""
    moved = () if data is None else _moved(table, words, data)
    with tempfile.TemporaryDirectory() as folder:
        asked = [str(table.experiment()), *words, *moved, "--seed", str(seed), "--out", f"{folder}/run", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "sordino", "run", *asked], capture_output=True, text=True, check=False
        )
    if done.returncode == 0:
        return json.loads(done.stdout)
    try:
        error = json.loads(done.stdout)["error"]
    except (ValueError, LookupError):
        error = {"what": done.stderr.strip().rpartition("\n")[2] or f"it ended with {done.returncode}"}
    diverged = NonFiniteModel if error.get("code") == "model-not-finite" else RunError
    kind = DataError if done.returncode == DataError.exit_code else diverged
    raise kind(
        f"{table.name}, {row.name!r}, seed {seed}: {error['what']}",
        why=error.get("why", ""),
        fix="say with --data where mnist/, cifar10/ and cifar100/ are" if kind is DataError else error.get("fix", ""),
        code="row-failed",
    )


def _moved(table: PublishedTable, words: Sequence[str], data: Path) -> tuple[str, ...]:
    """The same images under another folder."""
    told = tomllib.loads(table.experiment().read_text(encoding="utf-8")).get("data", {}).get("path", "")
    for word in words:
        if word.startswith("data.path="):
            told = word.removeprefix("data.path=").strip("\"'")
    return (f"data.path={json.dumps(str(data / Path(told).name))}",) if told.startswith(SHIPPED) else ()


def measured(
    found: dict[str, Any], name: str, seed: int, table: PublishedTable, tuned: float | None, seconds: float
) -> MeasuredRun:
    """What is kept of a run."""
    metrics, last = found["metrics"], table.sheet.last
    accuracy = [m["accuracy"] for m in metrics if "accuracy" in m]
    stated = strongest(found["privacy"]["guarantees"])
    facts = {
        "name": name,
        "seed": seed,
        "final": 100 * accuracy[-1],
        "last": 100 * statistics.mean(accuracy[-last:]),
        "loss": _finite(statistics.mean([m["loss"] for m in metrics if "loss" in m][-last:])),
        "epsilon": stated["epsilon"],
        "status": stated["status"],
        "subject": f"{stated['unit']}, {stated['adversary']}",
        "groups": (found["privacy"]["budget"] or {}).get("groups", []),
        "bytes_up": sum(m["bytes_up"] for m in metrics),
        "slot_gib": sum(m["payload"] for m in metrics) / 2**30,
        "curve": [[m["round"], round(100 * m["accuracy"], 3)] for m in metrics if "accuracy" in m],
        "norm": _finite([m["model_norm"] for m in metrics if "model_norm" in m][-1]),
        "also": beside(metrics, last),
        "before": sum(m["bytes_up"] + m["bytes_down"] for m in found["preparation"]),
        "flops": sum(m.get("device_flops", 0) for m in (*found["preparation"], *metrics)),
        "reached": [waited(found, target) for target in table.sheet.targets],
        "neighbours": stated["neighbours"],
        "delta": stated["delta"],
        "seconds": round(seconds, 1),
    }
    return MeasuredRun.model_validate(facts | ({} if tuned is None else {"tuned": tuned}))


def _finite(value: float) -> float | None:
    """A loss or a norm without bound has no place in a table of numbers."""
    return value if math.isfinite(value) else None


def waited(found: dict[str, Any], target: float) -> tuple[int, int] | None:
    """The first evaluated round that reached it, and the bytes sent by then, those before round 1 with them; None if
    none did.
    """
    sent = sum(m["bytes_up"] + m["bytes_down"] for m in found["preparation"])
    for m in found["metrics"]:
        sent += m["bytes_up"] + m["bytes_down"]
        if m.get("accuracy", 0) >= target:
            return m["round"], sent
    return None


def beside(metrics: list[dict[str, Any]], last: int) -> dict[str, float]:
    """The other models and ways that were evaluated, each with the mean of their last rounds."""
    rows = [m["also"] for m in metrics if "also" in m][-last:]
    return {name: 100 * statistics.mean(row[name]["accuracy"] for row in rows) for name in (rows[0] if rows else {})}


def strongest(guarantees: list[dict[str, Any]]) -> dict[str, Any]:
    """The finite row about the largest unit and the strongest adversary; the first finite one about a part of an
    example where there is no other; where nothing is finite, the first row of the best status.
    """
    order = [(unit, adversary) for unit in ("client", "example") for adversary in ("server", "participants", "public")]
    by = {(g["unit"], g["adversary"]): g for g in guarantees}
    ranked = [*(by[key] for key in order if key in by), *guarantees]
    best = min(guarantees, key=lambda one: STATUSES.index(one["status"]))
    return next((one for one in ranked if one["epsilon"] != "inf"), best)
