"""What lies in a folder of runs, read from their files alone: no data is loaded, nothing is recomputed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from sordino import config
from sordino.errors import RunError, SordinoError
from sordino.ledger.claims import ADVERSARIES, UNITS
from sordino.runs.folder import check_is_run, read_metrics, read_receipt

SIMULATION = " (a simulation)"  # beside a promise that protects nobody yet


class Listed(NamedTuple):
    folder: str
    algorithm: str
    rounds: str  # done / planned
    state: str  # finished, resumable, damaged
    score: str
    promise: str  # the strongest finite row, with its subject


def listed(place: Path) -> list[Listed]:
    if not place.is_dir():
        raise RunError(
            f"{place} is no folder",
            why=_why_not(place),
            fix="`sordino list FOLDER` shows the runs in a folder; `sordino show RUN` one run",
            code="no-folder",
        )
    found = {path.parent for name in ("experiment.toml", "environment.json") for path in place.glob(f"*/{name}")}
    return [_one(folder) for folder in sorted(found)]


def _why_not(place: Path) -> str:
    if place.is_symlink():
        return f"it is a link that leads nowhere: to {os.readlink(place)}"
    return "it is a file" if place.exists() else "there is nothing of that name"


def _one(folder: Path) -> Listed:
    try:
        check_is_run(folder)
        experiment = config.load(folder / "experiment.toml")
        rows = read_metrics(folder)
        receipt = read_receipt(folder) if (folder / "privacy.json").exists() else None
    except SordinoError as error:
        return Listed(folder.name, "", "", "damaged", "", f"{error.what}: {error.why}")
    return Listed(
        folder.name,
        str(experiment.algorithm.get("name", "")),
        f"{len(rows)}/{experiment.rounds}",
        "finished" if receipt and len(rows) >= experiment.rounds else "resumable",
        _score(rows),
        "" if receipt is None else promise(receipt["guarantees"]) + (SIMULATION if receipt["simulated"] else ""),
    )


def _score(rows: list[dict[str, Any]]) -> str:
    last: dict[str, Any] = next((row for row in reversed(rows) if "loss" in row), {})
    if "accuracy" in last:
        return f"{last['accuracy']:.2%}"
    return f"loss {last['loss']:.4g}" if last else ""


def promise(rows: list[dict[str, Any]]) -> str:
    """One epsilon with its subject: of the finite rows, the widest unit, then the strongest adversary."""
    order = {word: i for words in (UNITS[::-1], ADVERSARIES) for i, word in enumerate(words)}
    finite = [row for row in rows if row["epsilon"] != "inf"]
    if not finite:
        printed = next(
            (
                f"; nominal {float(row['nominal_epsilon']):.3g} proves nothing"
                for row in rows
                if "nominal_epsilon" in row
            ),
            "",
        )
        return f"nothing promised{printed}"
    row = min(finite, key=lambda r: (order[r["unit"]], order[r["adversary"]]))
    text = f"ε {row['epsilon']:.3g} per {row['unit']}, against {row['adversary']}, δ {row['delta']:.3g}, "
    if "nominal_epsilon" in row:
        return text + f"holds; nominal {float(row['nominal_epsilon']):.3g} proves nothing"
    return text + str(row["status"])
