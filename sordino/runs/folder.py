"""A run folder as files: what any process may read while another one writes. No ledger is opened, no lock is taken, no
tensor is loaded.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

from sordino.errors import RunError, damaged
from sordino.runs.metrics import FILE
from sordino.runs.private import FOLDER
from sordino.runs.shapes import Cost, Environment, Evaluated, Prepared, Receipt, Round, Shape, parsed

Row = dict[str, Any]
FROM_A_COPY = "put the file back from a copy, or start the run anew in another folder"
COSTS = "costs.jsonl"
PREPARATION = "preparation.jsonl"  # one row per round of the phases before the training
CANDIDATES = "candidates.json"  # how the server's own images were made
HANDED = "handed.safetensors"  # what every client was given before the training
LOCKS = Path("/proc/locks")  # of Linux: who holds what, readable without holding anything


def read_metrics(folder: Path) -> list[Row]:
    """All that this user may see: with what an evaluator keeps in the private folder, and with the seconds that sums
    and rounds took, which are no part of the result."""
    own = folder / FOLDER
    evaluated = {row["round"]: row for row in _rows(own / FILE, Evaluated)}
    rows = [row | evaluated.get(row["round"], {}) for row in read_public_metrics(folder)]
    took = dict[int, Row]()
    for cost in [*_rows(folder / COSTS, Cost), *_rows(own / COSTS, Cost)]:
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
    return _rows(folder / FILE, Round)


def read_preparation(folder: Path) -> list[Row]:
    return _rows(folder / PREPARATION, Prepared)


def _rows(path: Path, shape: type[Shape]) -> list[Row]:
    if not path.exists():
        return []
    # what follows the last newline is the row that a kill cut short
    return [parsed(path, line, shape, FROM_A_COPY) for line in _text(path).split("\n")[:-1]]


def _text(path: Path, fix: str = FROM_A_COPY) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(path, str(error), fix) from None


def read_environment(folder: Path) -> dict[str, Any]:
    path = folder / "environment.json"
    return parsed(path, _text(path), Environment, FROM_A_COPY)


def read_notes(folder: Path) -> list[str]:
    """What the user was told of a run and no table shows."""
    path = folder / "log.txt"
    return _text(path).splitlines() if path.exists() else []


def read_receipt(folder: Path) -> dict[str, Any]:
    path = folder / "privacy.json"
    fix = f"`sordino privacy spent {folder}` says what it spent; `sordino resume {folder}` finishes it and writes the receipt again"
    if not path.exists():
        raise RunError(f"{folder} has no receipt yet", why="it is written when a run ends", fix=fix, code="no-receipt")
    return parsed(path, _text(path, fix), Receipt, fix)


def is_run(folder: Path) -> bool:
    return (folder / "experiment.toml").is_file() and (folder / "environment.json").is_file()


def check_is_run(folder: Path) -> None:
    if not is_run(folder):
        raise RunError(
            f"{folder} is not a run folder",
            why=_why_not(folder),
            fix="`sordino list` shows the runs in runs/, `sordino list FOLDER` those elsewhere",
            code="not-a-run",
        )


def _why_not(folder: Path) -> str:
    if folder.is_symlink() and not folder.exists():
        return f"it is a link that leads nowhere: to {os.readlink(folder)}"
    if not folder.exists():
        return "there is nothing of that name"
    if not folder.is_dir():
        return "it is a file"
    missing = [name for name in ("experiment.toml", "environment.json") if not (folder / name).is_file()]
    return f"it has no {' and no '.join(missing)}"


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
