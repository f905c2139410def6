"""What a report shows about one run, gathered from its folder: numbers only, no page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from sordino.ledger.statement import statement
from sordino.partition.describe import summary, table
from sordino.receipt import opened, spending
from sordino.report.words import merged, sentence, strength
from sordino.training import read_metrics

POINTS = 12  # of the epsilon curve: each is a full composition


def gather(folder: Path) -> dict[str, Any]:
    parts, federation = opened(folder)
    try:
        notes = [e.note for e in federation.ledger.entries() if e.op.rpartition("/")[0] == federation.run]
    finally:
        federation.ledger.close()
    spent = spending(folder)
    rows, labels = parts.shares[0], np.asarray(parts.dataset.train.y)
    classes = max(parts.dataset.classes, 1)
    environment = json.loads((folder / "environment.json").read_text())
    return {
        "name": parts.experiment.name,
        "data": parts.experiment.data.source,
        "note": parts.dataset.note,
        "algorithm": parts.experiment.algorithm["name"],
        "clients": len(rows),
        "examples": int(sum(map(len, rows))),
        "parameters": parts.coordinates,
        "metrics": read_metrics(folder),
        "guarantees": [
            {**row, "words": sentence(row, by), "strength": strength(row["epsilon"])}
            for row, by in merged(spent["guarantees"])
        ],
        "epsilon": _curve(notes, len(rows), parts.experiment.privacy.delta),
        "budget": spent["budget"],
        "by_client": spent["by_client"],
        "currency": spent["currency"],
        "assumptions": spent["assumptions"],
        "simulated": spent["simulated"],
        "partition": table(labels, rows, classes).tolist(),
        "heterogeneity": {key: _plain(value) for key, value in summary(labels, rows, classes).items()},
        "experiment": parts.experiment.toml(),
        "environment": environment,
        "ledger_head": spent["ledger_head"],
    }


def _curve(notes: list[str], population: int, delta: float) -> list[dict[str, Any]]:
    """Epsilon of every finite row after some of the rounds."""
    stops = sorted({max(1, round(len(notes) * i / POINTS)) for i in range(1, POINTS + 1)}) if notes else []
    curves: dict[tuple[str, str, str], dict[str, Any]] = {}
    for stop in stops:
        for row in statement(notes[:stop], population, delta):
            if row.to_json()["epsilon"] != "inf":
                key = (row.unit, row.adversary, row.status)
                found = curves.setdefault(
                    key, {"unit": row.unit, "adversary": row.adversary, "status": row.status, "points": []}
                )
                found["points"].append([stop, row.epsilon])
    return list(curves.values())


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
