"""Numbers that a table of runs is made of: from the metrics of one run, and between several. None of them is the best
round.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Metrics = Sequence[Mapping[str, Any]]
Measure = Callable[[Metrics], float | None]


def scored(run: Metrics, metric: str = "accuracy") -> list[Mapping[str, Any]]:
    return [row for row in run if metric in row]


def final(run: Metrics) -> float | None:
    return float(scored(run)[-1]["accuracy"]) if scored(run) else None


def last_ten(run: Metrics) -> float | None:
    rows = scored(run)[-10:]
    return statistics.fmean(row["accuracy"] for row in rows) if rows else None


def worst_tenth(run: Metrics) -> float | None:
    rows = [row for row in scored(run) if "clients" in row]
    return rows[-1]["clients"]["worst_tenth"] if rows else None


def at_round(wanted: int) -> Measure:
    """The last evaluation at or before a round."""
    return lambda run: next((float(row["accuracy"]) for row in reversed(scored(run)) if row["round"] <= wanted), None)


def at_bytes(budget: float) -> Measure:
    """The last evaluation that both directions together had paid for."""

    def measure(run: Metrics) -> float | None:
        found = None
        for row, spent in zip(run, running_bytes(run), strict=True):
            if spent > budget:
                break
            found = float(row["accuracy"]) if "accuracy" in row else found
        return found

    return measure


def rounds_to(target: float) -> Measure:
    return lambda run: next((float(row["round"]) for row in scored(run) if row["accuracy"] >= target), None)


def bytes_to(target: float) -> Measure:
    return lambda run: next(
        (spent for row, spent in zip(run, running_bytes(run), strict=True) if row.get("accuracy", -1.0) >= target), None
    )


def traffic(run: Metrics) -> float:
    return next(iter(running_bytes(run)[-1:]), 0.0)


def slot_gib(run: Metrics) -> float:
    """What one client that took part in every round would have sent, in GiB of numbers (Li, Xiao and Chen 2024)."""
    return float(sum(row["payload"] for row in run)) / 2**30


def running_bytes(run: Metrics) -> list[float]:
    """Both directions, added up."""
    spent, found = 0.0, []
    for row in run:
        spent += row.get("bytes_up", 0) + row.get("bytes_down", 0)
        found.append(spent)
    return found


# over seeds -----------------------------------------------------------------------------------------------------------


def mean_std(values: Iterable[float]) -> tuple[float | None, float | None]:
    """None where there is nothing to tell: no mean of none, no deviation of one."""
    known = list(values)
    return statistics.fmean(known) if known else None, statistics.stdev(known) if len(known) > 1 else None


def curve(runs: Sequence[Metrics], metric: str) -> list[dict[str, Any]]:
    """One point per evaluated round: mean and deviation over the seeds that got there, and what had been sent until
    then.
    """
    found: dict[int, list[tuple[Mapping[str, Any], float]]] = {}
    for run in runs:
        for row, spent in zip(run, running_bytes(run), strict=True):
            if metric in row:
                found.setdefault(row["round"], []).append((row, spent))
    points = []
    for t, seen in sorted(found.items()):
        mean, std = mean_std(row[metric] for row, _ in seen)
        worst, worst_std = mean_std(row["clients"]["worst_tenth"] for row, _ in seen if "clients" in row)
        sent, _ = mean_std(spent for _, spent in seen)
        points.append(
            {
                "round": t,
                "n": len(seen),
                "mean": mean,
                "std": std,
                "worst": worst,
                "worst_std": worst_std,
                "bytes": sent,
            }
        )
    return points


def paired_p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Two-sided paired t-test over common seeds; None with fewer than two, or where all differences are equal."""
    differences = [x - y for x, y in zip(a, b, strict=True)]
    if len(differences) < 2 or math.isclose(max(differences), min(differences), abs_tol=1e-12):
        return None
    from scipy.stats import ttest_rel

    return float(ttest_rel(a, b).pvalue)
