"""Published tables, beside ours: python experiments/reproduce.py lists them, and runs what is missing of a NAME.

Each run is `sordino run` in a process of its own. The headline is the final round and the mean of the last ones, never
the best round.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from pages import block, command, lasting, missing, write, write_headlines
from tables import RESULTS, ROWS, TUNING, Program, Row, Run, Table, keep, read

from sordino import config
from sordino.accounting.claims import STATUSES
from sordino.device import CPU
from sordino.engine.executor import device_of
from sordino.errors import ConfigError, DataError, NonFiniteModel, RunError, SordinoError

T = TypeVar("T")
ROOT = Path(__file__).parent
WHERE = "say with --data where mnist/, fashion_mnist/, cifar10/ and cifar100/ are"


def main() -> int:
    try:
        return reproduce()
    except SordinoError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def reproduce() -> int:
    """Does what the command line asks; the exit code."""
    names = sorted(file.parent.name for file in ROOT.glob(f"*/{ROWS}"))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("name", nargs="?", metavar="NAME", choices=names, help="a table; without one, they are listed")
    parser.add_argument("--row", help="only this row, as the table spells it")
    parser.add_argument("--seed", type=int, help="only this seed of --row")
    parser.add_argument("--data", type=Path, help="the folder that holds mnist/, cifar10/ and so on")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--quick", action="store_true", help="run one row of each table, cut to seconds; keep nothing")
    what.add_argument("--again", action="store_true", help="run what is kept of --row once more, and compare")
    what.add_argument("--dry-run", action="store_true", help="show the table and what is missing")
    what.add_argument("--rewrite", action="store_true", help="write the pages from the runs that are kept")
    asked = parser.parse_args()
    if (asked.seed is not None or asked.again) and asked.row is None:
        parser.error("--seed and --again belong to one --row")
    if asked.row is not None and (asked.name is None or asked.quick or asked.dry_run or asked.rewrite):
        parser.error("--row belongs to one NAME, and is run")
    tables = [read(ROOT / name) for name in ([asked.name] if asked.name else names)]
    if asked.quick:
        return quick(tables, asked.jobs, asked.data)
    if asked.again:
        return again(tables[0], tables[0].row(asked.row), asked.seed, asked.jobs, asked.data)
    if asked.name and not asked.dry_run and not asked.rewrite:
        rows = tables[0].sheet.row if asked.row is None else (tables[0].row(asked.row),)
        run_missing(tables[0], rows, asked.seed, asked.jobs, asked.data)
        write_headlines(ROOT, [read(ROOT / name) for name in names])
        return 0
    for table in tables:
        if asked.rewrite:
            write(table)
        elif asked.name:
            say(block(table), *(f"missing: {row.name}, seed {seed}" for row, seed in table.missing()))
        else:
            say(f"{table.name}: {table.sheet.source}", f"    {command(table.name)} {missing(table)}")
            for one in table.sheet.program:
                there = "missing" if one in table.unwritten() else "there"
                say(f"    {one.file} writes {one.writes}, {there}; about {lasting(one.minutes)}")
    if asked.rewrite:
        write_headlines(ROOT, [read(ROOT / name) for name in names])
    return 0


def say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)


def run_missing(table: Table, rows: Sequence[Row], seed: int | None, jobs: int, data: Path | None) -> None:
    """Runs what is missing of these rows, tuning first. Each finished run is kept at once, so an interrupted table goes
    on where it stopped.
    """
    if (tune := table.sheet.tune) is not None:
        trials = (partial(tried, table, row, tune.seed, data, value) for row, value in table.untuned() if row in rows)
        for run in side_by_side(trials, jobs):
            keep(table.folder / TUNING, run)
            say(f"{run.name:40s} tried {tune.key} = {run.tuned:g}  {run.last:.2f}")
        table = read(table.folder)
    wanted = [(row, s) for row, s in table.missing() if row in rows and seed in (None, s)]
    for run in side_by_side((partial(one, table, row, s, data, table.tuned(row)) for row, s in wanted), jobs):
        keep(table.folder / RESULTS, run)
        write(read(table.folder))
        say(f"{run.name:40s} seed {run.seed}  {run.final:.2f}")
    programs = table.unwritten() if rows == table.sheet.row else []
    for program in programs:
        run_program(table, program, data)
        say(f"{program.file} has written {program.writes}")
    if not wanted and not programs:
        say("Nothing was missing, so nothing was run. --row ROW --again runs a kept row once more, and compares.")
    write(read(table.folder))


def again(table: Table, row: Row, seed: int | None, jobs: int, data: Path | None) -> int:
    """Runs what is kept of a row once more, and compares every score and the promise. Seconds are another machine's,
    and the oldest rows have no curve. What is kept stays as it is.
    """
    chosen = [run for run in table.of(row) if seed in (None, run.seed)]
    if not chosen:
        raise ConfigError(
            f"{table.name}: no such run of {row.name!r} is kept",
            why=f"seeds that are kept: {', '.join(str(run.seed) for run in table.of(row)) or 'none'}",
            fix="leave --again out: what is missing is then run and kept",
        )

    def both(kept: Run) -> tuple[Run, Run]:
        return kept, one(table, row, kept.seed, data, kept.tuned)

    differs = False
    for kept, now in side_by_side((partial(both, run) for run in chosen), jobs):
        told = ("final", "last", "epsilon", "status", *(("curve",) if kept.curve else ()))
        if all(getattr(kept, name) == getattr(now, name) for name in told):
            say(f"{row.name}, seed {kept.seed}: the same, {now.final:.2f}")
        else:
            differs = True
            each = (f"{run.final:.2f} (epsilon {run.epsilon}, {run.status})" for run in (kept, now))
            say(f"{row.name}, seed {kept.seed}: differs, kept {', now '.join(each)}")
    return int(differs)


def quick(tables: Sequence[Table], jobs: int, data: Path | None) -> int:
    """Runs one cut row of each table that has rows. Nothing is kept."""
    code = 0
    for line, failed in side_by_side((partial(cut, table, data) for table in tables if table.sheet.row), jobs):
        say(line)
        code = max(code, failed)
    say("These rows are cut to see that they run: their accuracies mean nothing, and nothing was kept.")
    return code


def cut(table: Table, data: Path | None) -> tuple[str, int]:
    """The accuracy of the quick row, or why it could not be run, and an exit code."""
    assert table.sheet.quick is not None
    row, begun = table.row(table.sheet.quick.row), time.monotonic()
    told = f"{table.name}, {row.name}, cut to {' '.join(table.sheet.quick.set)}"
    try:
        found = run_row(table, row, (*row.set, *table.sheet.quick.set), 0, data)
    except SordinoError as error:
        return f"not run {told}: {error.what}", error.exit_code
    (*_, accuracy) = (m["accuracy"] for m in found["metrics"] if "accuracy" in m)
    return f"{told}: {100 * accuracy:.1f}% after {time.monotonic() - begun:.0f} s", 0


def one(table: Table, row: Row, seed: int, data: Path | None, tuned: float | None) -> Run:
    tune, begun = table.sheet.tune, time.monotonic()
    words = row.set if tune is None or tuned is None else (*row.set, f"{tune.key}={tuned}")
    found = run_row(table, row, words, seed, data)
    seconds = None if found.get("continued") else round(time.monotonic() - begun, 1)
    facts = measured(found, table) | {"name": row.name, "seed": seed, "set": row.set, "seconds": seconds}
    facts |= {"commit": commit(), "accelerator": accelerator(config.load(table.experiment, words).engine.device)}
    return Run.model_validate(facts | ({} if tuned is None else {"tuned": tuned}))


def commit() -> str | None:
    """The commit of this repository; None outside of one."""
    asked = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def accelerator(device: str) -> str | None:
    """The name of an accelerator, and the torch that uses it; None for the processor."""
    return None if device_of(device) == CPU else f"{torch.cuda.get_device_name()}, torch {torch.__version__}"


def tried(table: Table, row: Row, seed: int, data: Path | None, value: float) -> Run:
    """A trial. A step at which the model diverges is no reason to stop: it is kept as one that nobody chooses."""
    try:
        return one(table, row, seed, data, value)
    except NonFiniteModel:
        facts = {"final": 0.0, "last": 0.0, "epsilon": "inf", "status": "diverged", "subject": "-", "bytes_up": 0}
        return Run.model_validate(facts | {"name": row.name, "seed": seed, "tuned": value})


def run_program(table: Table, program: Program, data: Path | None) -> None:
    if program.images and data is None:
        raise ConfigError(f"{table.name}: {program.file} needs images of {program.images}", fix=WHERE)
    given = [str(data / program.images)] if program.images and data is not None else []
    words = [sys.executable, str(table.folder / program.file), *given]
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0 or program in table.unwritten():
        raise RunError(
            f"{table.name}: {program.file} ended with {done.returncode}, and {program.writes} "
            f"is {'not ' if program in table.unwritten() else ''}there",
            why=_last_line(done.stderr),
        )


def run_row(table: Table, row: Row, words: Sequence[str], seed: int, data: Path | None) -> Any:
    """What `sordino run --json` says of this row. The run's folder is kept until the run has ended, however it was
    stopped, and the next call of the same commit goes on there.
    """
    path = config.load(table.experiment, words).data.path
    moved = (
        (f"data.path={json.dumps(str(data / Path(path).name))}",) if data is not None and isinstance(path, str) else ()
    )
    modules = os.pathsep.join(filter(None, (str(table.folder), os.environ.get("PYTHONPATH"))))  # metrics of the table's
    named = hashlib.sha256(json.dumps([commit(), *words, *moved, seed]).encode()).hexdigest()[:16]
    folder = table.folder / "stopped" / named
    begun = (folder / "experiment.toml").is_file()
    asked = [str(table.experiment), *words, *moved, "--seed", str(seed), "--out", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "sordino", *(("resume", str(folder)) if begun else ("run", *asked)), "--json"],
        env={**os.environ, "PYTHONPATH": modules},
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        error = json.loads(_last_line(done.stderr))["error"]
    except (ValueError, LookupError):
        error = {"what": _last_line(done.stderr) or f"it ended with {done.returncode}"}
    lost = error.get("code") == "model-not-finite"
    if done.returncode == 0 or lost or not (folder / "experiment.toml").is_file():
        shutil.rmtree(folder, ignore_errors=True)
    if done.returncode == 0:
        return json.loads(done.stdout) | {"continued": begun}
    where = f"{table.name}, {row.name!r}, seed {seed}: {error['what']}"
    if done.returncode == DataError.exit_code:
        raise DataError(where, why=error.get("why", ""), fix=WHERE)
    kept = f"the same command goes on in {folder}; delete that folder to begin again" if folder.is_dir() else ""
    fix = "; ".join(filter(None, (error.get("fix"), kept)))
    raise (NonFiniteModel if lost else RunError)(where, why=error.get("why", ""), fix=fix)


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def side_by_side(work: Iterable[Callable[[], T]], jobs: int) -> Iterator[T]:
    """Results as they come. When one fails, those that are going end first, and no other begins."""
    waiting = iter(work)
    failed: BaseException | None = None
    with ThreadPoolExecutor(jobs) as pool:
        going = {pool.submit(each) for each in islice(waiting, jobs)}
        while going:
            done, going = wait(going, return_when=FIRST_COMPLETED)
            for each in done:
                if (error := each.exception()) is None:
                    yield each.result()
                else:
                    failed = failed or error
            if failed is None:
                going |= {pool.submit(each) for each in islice(waiting, jobs - len(going))}
    if failed is not None:
        raise failed


def measured(found: dict[str, Any], table: Table) -> dict[str, Any]:
    """What is kept of a run."""
    metrics, before, last = found["metrics"], found["preparation"], table.sheet.last
    scored = [m for m in metrics if "accuracy" in m]
    stated = strongest(found["privacy"]["guarantees"])
    return {
        "final": 100 * scored[-1]["accuracy"],
        "last": 100 * statistics.mean(m["accuracy"] for m in scored[-last:]),
        "loss": _finite(statistics.mean([m["loss"] for m in metrics if "loss" in m][-last:])),
        **{name: stated[name] for name in ("epsilon", "status", "neighbours", "delta")},
        "subject": f"{stated['unit']}, {stated['adversary']}",
        "groups": (found["privacy"]["budget"] or {}).get("groups", []),
        "bytes_up": sum(m["bytes_up"] for m in metrics),
        "slot_gib": sum(m["payload"] for m in metrics) / 2**30,
        "curve": [[m["round"], round(100 * m["accuracy"], 3)] for m in scored],
        "norm": _finite([m["model_norm"] for m in metrics if "model_norm" in m][-1]),
        "also": beside(metrics, last),
        "own": scored[-1].get("own", {}),
        "before": sum(m["bytes_up"] + m["bytes_down"] for m in before),
        "flops": sum(m.get("device_flops", 0) for m in (*before, *metrics)),
        "reached": [waited(found, target) for target in table.sheet.targets],
    }


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


if __name__ == "__main__":
    sys.exit(main())
