"""What a report shows about one run, gathered from its folder: numbers only, no page."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sordino.evaluate.preparation_cost import in_front
from sordino.ledger.currency import UNIT
from sordino.ledger.ledger import Entry
from sordino.ledger.notes import SYSTEM
from sordino.ledger.statement import statement
from sordino.partition.describe import summary, table
from sordino.report import preparation
from sordino.report.tables import secure
from sordino.report.words import by_phase, described, merged, subject
from sordino.runs.folder import read_environment, read_metrics, read_preparation, read_public_metrics
from sordino.runs.population import Population
from sordino.runs.receipt import opened, some_of, spending
from sordino.runs.simulation import simulated

LISTED = 10_000  # clients that a page shows: of more, so many at even distances
POINTS = 12  # of the epsilon curve: each is a full composition


def gather(folder: Path, evaluator: bool = False) -> dict[str, Any]:
    """Of a run with real noise only what its statement names, and no data are read; for its `evaluator` everything that
    this user may see."""
    parts, federation = opened(folder)
    try:
        entries = federation.entries()
    finally:
        federation.ledger.close()
    all_ = evaluator or federation.noise != SYSTEM
    spent = spending(folder, LISTED)
    metrics = read_metrics(folder) if all_ else read_public_metrics(folder)
    simulation = simulated(parts.experiment) if all_ else None
    if simulation is not None:
        parts = simulation.setup
    return {
        "evaluated": all_,
        **(_held(simulation.population) if simulation is not None else {"partition": None, "heterogeneity": None}),
        "name": parts.experiment.name,
        "data": parts.experiment.data.source,
        "note": parts.public.note,
        "candidates": preparation.label_of(parts.experiment),
        "algorithm": parts.experiment.algorithm["name"],
        "model": "clients' own models" if parts.ways else "global model",
        "clients": len(parts.public.sizes),
        "examples": sum(parts.public.sizes) if all_ or parts.experiment.privacy.public_sizes else "some",
        "parameters": parts.coordinates,
        "metrics": _thin(metrics),
        "before": next(iter(in_front(read_preparation(folder))), None),
        "prepared": preparation.gather(folder, parts, None if simulation is None else simulation.home, rounds=metrics),
        "secure": secure(metrics),
        "guarantees": described(spent["guarantees"]),
        "by_phase": by_phase(spent),
        "delta": parts.experiment.privacy.delta,
        "epsilon": _drawn(
            curve([entry.note for entry in entries], len(parts.public.sizes), parts.experiment.privacy.delta),
            _printed(entries, spent["budget"]),
        ),
        "budget": spent["budget"],
        "by_client": spent["by_client"],
        "currency": spent["currency"],
        "assumptions": spent["assumptions"],
        "simulated": spent["simulated"],
        "experiment": parts.experiment.toml(),
        "commands": [
            f"sordino run experiment.toml --out {shlex.quote(folder.name)}",
            f"sordino privacy verify {shlex.quote(folder.name)}",
        ],
        "environment": _environment(folder),
        "ledger_head": spent["ledger_head"],
    }


def _held(population: Population) -> dict[str, Any]:
    """Who holds how many of which label."""
    rows, labels = population.shares[0], np.asarray(population.dataset.train.y)
    shown = rows if len(rows) <= LISTED else [rows[k] for k in some_of(len(rows), LISTED)]
    classes = max(population.dataset.classes, 1)
    if population.dataset.classes == 0:
        labels = np.zeros(len(labels), dtype=np.int64)  # no classes to count: one that all examples are in
    return {
        "partition": table(labels, shown, classes).tolist(),
        "heterogeneity": {key: _plain(value) for key, value in summary(labels, rows, classes).items()},
    }


def _environment(folder: Path) -> dict[str, Any]:
    """Pages are passed on: of a run whose preparation was taken over they say the name, not where on this machine it
    lies.
    """
    found = read_environment(folder)
    return {**found, "prepared": Path(found["prepared"]).name} if "prepared" in found else found


def _thin(metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Client by client only at the end: a thousand clients over a thousand rounds would not fit in a page."""
    last = max((i for i, row in enumerate(metrics) if "clients" in row), default=-1)
    thin = []
    for i, row in enumerate(metrics):
        kept = dict(row)
        if "clients" in row and i != last:
            kept["clients"] = {key: value for key, value in row["clients"].items() if key != "each"}
        thin.append(kept)
    return thin


def curve(notes: Sequence[str], population: int, delta: float) -> list[dict[str, Any]]:
    """Epsilon of every finite row after some of the rounds."""
    stops = _stops(len(notes))
    curves: dict[tuple[str, str, str], dict[str, Any]] = {}
    for stop in stops:
        for row in statement(notes[:stop], population, delta):
            if math.isfinite(row.epsilon):
                subject = {"unit": row.unit, "neighbours": row.neighbours, "adversary": row.adversary}
                found = curves.setdefault((row.unit, row.neighbours, row.adversary), {**subject, "points": []})
                found["status"] = row.status
                found["points"].append([stop, row.epsilon])
    return list(curves.values())


def _stops(rounds: int) -> list[int]:
    return sorted({max(1, round(rounds * i / POINTS)) for i in range(1, POINTS + 1)}) if rounds else []


def _drawn(curves: list[dict[str, Any]], printed: Sequence[tuple[int, float]]) -> list[dict[str, Any]]:
    """One line for all adversaries to whom it is the same; beside a nominal row also what its formula prints."""
    return [
        {**line, "by": subject(adversaries), "nominal": printed if line["status"] == "nominal" and printed else None}
        for line, adversaries in merged(curves)
    ]


def _printed(entries: Sequence[Entry], budget: Mapping[str, Any] | None) -> list[tuple[int, float]]:
    """The source's own count: the budget's epsilon times the share that the busiest client has spent."""
    if budget is None:
        return []
    limits, points, stops = budget["granted"], [], _stops(len(entries))
    spent: list[Counter[str]] = [Counter() for _ in limits]
    for t, entry in enumerate(entries, start=1):
        for principal, amount in entry.charges.items():
            for total, part in zip(spent, amount, strict=True):
                total[principal] += part
        if t in stops:
            shares = [max(total.values(), default=0) / UNIT / limit for total, limit in zip(spent, limits, strict=True)]
            points.append((t, budget["epsilon"] * max(shares)))
    return points


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
