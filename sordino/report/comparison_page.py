"""What the page of a comparison shows: the table, curves over seeds, promises in words, and what choosing among them
costs.
"""

from __future__ import annotations

import html
import json
import os
import platform
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sordino.engine.checkpoint import atomic_write
from sordino.evaluate.measures import curve, scored
from sordino.evaluate.preparation_cost import flops_until
from sordino.report.comparison_table import Row, caption, lines, shaped, sources
from sordino.report.run_page import assemble
from sordino.report.words import described, merged, subject
from sordino.version import __version__

UNSAID = ("name", "seed", "engine")  # how a run is done, or told apart


class Side(NamedTuple):
    """One method of a comparison."""

    name: str
    runs: Sequence[Sequence[Mapping[str, Any]]]  # metrics, seed by seed; a round 0 is what came before the first one
    promise: list[dict[str, Any]]
    experiment: str  # TOML
    simulated: bool


def gather(
    table: Sequence[Row],
    sides: Sequence[Side],
    *,
    equal: Mapping[str, Any],
    choosing: Sequence[str],
    command: str,
) -> dict[str, Any]:
    metric = "accuracy" if any(scored(run) for side in sides for run in side.runs) else "loss"
    seeds, rounds = len(sides[0].runs), equal["rounds"]
    guarantees = [described(side.promise) for side in sides]
    return {
        "title": " · ".join(side.name for side in sides),
        "lead": f"{len(sides)} methods, {_count(seeds, 'seed')} each, {_count(rounds, 'round')} on {equal['data'].source}. "
        "Accuracies are on test data, at the end of the runs.",
        "simulated": any(side.simulated for side in sides),
        "metric": metric,
        "seeds": seeds,
        "caption": caption(table),
        "candidates": sources(table),
        "prepared": any(row["before"] for row in table),
        "table": shaped(table),
        "methods": [
            {
                "name": side.name,
                "curve": _curve(side.runs, metric),
                "guarantees": promised,
                "differs": differs,
                "experiment": side.experiment,
            }
            for side, promised, differs in zip(sides, guarantees, _differences(sides), strict=True)
        ],
        "points": [point for row, promised in zip(table, guarantees, strict=True) for point in _points(row, promised)],
        "choosing": choosing,
        "equal": [[name, _said(value)] for name, value in equal.items()],
        "command": command,
        "environment": {
            "sordino": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cores": os.cpu_count(),
        },
    }


def write(facts: Mapping[str, Any], out: Path) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(out, assemble(f"sordino: {facts['title']}", facts, "web/comparison.js").encode())
    return out


def _curve(runs: Sequence[Sequence[Mapping[str, Any]]], metric: str) -> list[dict[str, Any]]:
    computed = flops_until(runs)
    return [{**point, "flops": computed.get(point["round"])} for point in curve(runs, metric)]


def _points(row: Row, guarantees: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Accuracy against each finite epsilon; of several adversaries the first stands for its unit, the strongest."""
    if row["last_ten"] is None:
        return []
    found: dict[str, dict[str, Any]] = {}
    for g in guarantees:
        if g["epsilon"] != "inf":
            point = {
                "name": row["method"],
                "unit": g["unit"],
                "by": g["by"],
                "x": g["epsilon"],
                "nominal": g.get("nominal_epsilon"),
                "delta": g["delta"],
                "status": g["status"],
                "y": row["last_ten"],
                "std": row["last_ten_std"],
            }
            found.setdefault(g["unit"], point)
    return list(found.values())


def _differences(sides: Sequence[Side]) -> list[str]:
    tables = [tomllib.loads(side.experiment) for side in sides]
    names = [name for name in dict.fromkeys(n for t in tables for n in t) if name not in UNSAID]
    unlike = [name for name in names if any(t.get(name) != tables[0].get(name) for t in tables)]
    return ["; ".join(f"{name}: {_said(t[name])}" for name in unlike if name in t) for t in tables]


def _said(value: Any) -> str:
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {json.dumps(part)}" for key, part in value.items())
    return json.dumps(value)


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


# what choosing costs --------------------------------------------------------------------------------------------------


def choosing(search: Sequence[Mapping[str, Any]], methods: int, seeds: int, sweep: bool) -> list[str]:
    """Said wherever a comparison is shown: on the page, in the terminal, in a notebook."""
    what = "configurations of one sweep were" if sweep else "methods were"
    told = [
        f"{methods} {what} tried on the same data. Tuning is not accounted for: choosing among them costs privacy that no row shows.",
        "No selection was made here: every row is the end of its runs, on test data, and no validation clients were set aside.",
    ]
    finite = [dict(row) for row in search if row["epsilon"] != "inf"]
    if not finite:
        return [*told, "No finite epsilon covers all of them together: at least one of them promises nothing."]
    for row, by in merged(finite):
        text = f"Charged as a whole, all {methods} together cost at most epsilon {row['epsilon']:.3g} at delta {row['delta']:g} about one {row['unit']}, against {subject(by)} ({row['neighbours']}; one seed each, composed by the ledger's accountants)"
        if seeds > 1:
            text += f"; with the {seeds} seeds of each that were run here, epsilon {_epsilon(row['every_seed'])}"
        if row["status"] == "nominal":
            text += ". That is what holds; the formulas of nominal rows are not added up"
        told.append(text + ".")
    return told


def _epsilon(value: float | str) -> str:
    return "∞" if value == "inf" else f"{float(value):.3g}"


def snippet(table: Sequence[Row], told: Sequence[str]) -> str:
    """For a notebook: the table and what must be said with it."""
    head, *body = ([html.escape(text) for text in line] for line in lines(table))
    rows = "".join(f"<tr>{''.join(f'<td>{text}</td>' for text in line)}</tr>" for line in body)
    return (
        f"<table><caption>{html.escape(caption(table))}</caption><thead><tr>{''.join(f'<th>{text}</th>' for text in head)}</tr></thead>"
        f"<tbody>{rows}</tbody></table>{''.join(f'<p>{html.escape(text)}</p>' for text in (*sources(table), *told))}"
    )
