"""A run folder as files: what any process may read while another one writes. No ledger is opened, no lock is taken, no tensor is loaded."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from sordino.errors import RunError
from sordino.runs.metrics import FILE
from sordino.runs.private import FOLDER

Row = dict[str, Any]
COSTS = "costs.jsonl"
PREPARATION = "preparation.jsonl"  # one row per round of the phases before the training
CANDIDATES = "candidates.json"  # how the server's own images were made
HANDED = "handed.safetensors"  # what every client was given before the training
LOCKS = Path("/proc/locks")  # of Linux: who holds what, readable without holding anything


def read_metrics(folder: Path) -> list[Row]:
    """All that this user may see: with what an evaluator keeps in the private folder, and with the seconds that sums and rounds took, which are no part of the result."""
    own = folder / FOLDER
    evaluated = {row["round"]: row for row in _rows(own / FILE)}
    rows = [row | evaluated.get(row["round"], {}) for row in _rows(folder / FILE)]
    took = dict[int, Row]()
    for cost in [*_rows(folder / COSTS), *_rows(own / COSTS)]:
        took[cost["round"]] = took.get(cost["round"], {}) | cost
    for row in rows:
        cost = took.get(row["round"], {})
        if "secure" in row:
            row["secure"]["cpu_seconds"] = cost.get("cpu_seconds", {})
        if "seconds" in cost:
            row["seconds"] = cost["seconds"]
    return rows


def read_public_metrics(folder: Path) -> list[Row]:
    """What may be shown to whom the statement names."""
    return _rows(folder / FILE)


def read_preparation(folder: Path) -> list[Row]:
    return _rows(folder / PREPARATION)


def _rows(path: Path) -> list[Row]:
    # what follows the last newline is the row that a kill cut short
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def read_receipt(folder: Path) -> dict[str, Any]:
    try:
        receipt = json.loads((folder / "privacy.json").read_text())
        if not isinstance(receipt, dict) or not isinstance(receipt.get("guarantees"), list):
            raise ValueError("it is not an object with guarantees")
    except (OSError, ValueError) as error:
        raise RunError(
            f"{folder} has no readable receipt",
            why=str(error),
            fix=f"`sordino resume {folder}` finishes the run; `sordino privacy spent {folder}` says what it spent so far",
            code="no-receipt",
        ) from None
    return receipt


def check_is_run(folder: Path) -> None:
    if not (folder / "experiment.toml").is_file() or not (folder / "environment.json").is_file():
        raise RunError(
            f"{folder} is not a run folder",
            why="it has no experiment.toml",
            fix="`sordino list` shows the runs",
            code="not-a-run",
        )


def in_use(folder: Path) -> bool:
    """Whether a process is running it, by the lock that a run holds for as long as it lives."""
    try:
        found = os.stat(folder / ".lock")
    except FileNotFoundError:
        return False
    if LOCKS.exists():
        held = (line.split() for line in LOCKS.read_text().splitlines())
        # by inode alone: layered file systems name another device here than stat does
        return any(words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(found.st_ino) for words in held)
    with open(folder / ".lock") as file:  # elsewhere there is no asking without trying, for an instant and shared
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        return False


def numbers(row: Row, prefix: str = "") -> dict[str, float]:
    """The numbers of one round under flat names (`clients_mean`). Those of single clients are lists, and stay out."""
    found: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= numbers(value, f"{prefix}{name}_")
        elif isinstance(value, int | float):
            found[f"{prefix}{name}"] = value
    return found
