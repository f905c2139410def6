"""What lies in a folder of runs, read from their files alone: no data is loaded, nothing is recomputed."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from sordino.ledger.claims import ADVERSARIES, UNITS


class Listed(NamedTuple):
    folder: str
    algorithm: str
    rounds: str  # done / planned
    state: str  # finished, resumable, damaged
    score: str
    promise: str  # the strongest finite row, with its subject


def listed(place: Path) -> list[Listed]:
    found = (path.parent for path in place.glob("*/experiment.toml"))
    return [_one(folder) for folder in sorted(found)]


def _one(folder: Path) -> Listed:
    try:
        experiment = tomllib.loads((folder / "experiment.toml").read_text())
        lines = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []
        rows = [json.loads(line) for line in lines]
        receipt = json.loads((folder / "privacy.json").read_text()) if (folder / "privacy.json").exists() else None
    except (OSError, ValueError) as error:
        return Listed(folder.name, "", "", "damaged", "", str(error))
    planned = experiment["rounds"]
    return Listed(
        folder.name,
        experiment["algorithm"]["name"],
        f"{len(rows)}/{planned}",
        "finished" if receipt and len(rows) >= planned else "resumable",
        _score(rows),
        "" if receipt is None else promise(receipt["guarantees"]),
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
    text = f"ε {row['epsilon']:.3g} per {row['unit']}, against {row['adversary']}, δ {row['delta']:g}, "
    if "nominal_epsilon" in row:
        return text + f"holds; nominal {float(row['nominal_epsilon']):.3g} proves nothing"
    return text + str(row["status"])
