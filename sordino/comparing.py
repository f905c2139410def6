"""Compare methods fairly: equal data, partition, cohorts, initial weights and evaluation, several seeds, never the best round.

Every (method, seed) is an ordinary run in a folder of its own, so a comparison can be stopped and goes on where it was.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino import config
from sordino.assemble import settle
from sordino.config import Experiment
from sordino.errors import ConfigError, RunError
from sordino.training import Result, read_metrics, resume, start

EQUAL = ("data", "partition", "model", "cohort", "rounds", "stragglers", "evaluation")
Metrics = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Method:
    """All seeds of one experiment."""

    name: str
    runs: list[list[dict[str, Any]]]  # the metrics of each seed
    promise: list[dict[str, Any]]  # guarantees of the first seed; they do not depend on it

    def values(self, of: Callable[[Metrics], float | None]) -> list[float]:
        return [value for run in self.runs if (value := of(run)) is not None]


def compare(
    files: Sequence[Path],
    seeds: int,
    out: Path,
    overrides: Sequence[str] = (),
    tell: Callable[[str], None] = lambda text: None,
) -> list[Method]:
    """Run what is missing, then gather."""
    if seeds < 1:
        raise ConfigError(f"seeds is {seeds}", why="it must be at least 1", code="out-of-range")
    experiments = [config.load(path, overrides) for path in files]
    check_equal(experiments)
    methods = []
    for experiment in experiments:
        runs: list[list[dict[str, Any]]] = []
        promise: list[dict[str, Any]] = []
        for seed in range(seeds):
            folder = out / experiment.name / f"seed-{seed}"
            tell(f"{experiment.name}, seed {seed}")
            result = _run(settle(experiment.model_copy(update={"seed": seed})), folder)
            runs.append(read_metrics(folder))
            promise = promise or result.receipt["guarantees"]
        methods.append(Method(experiment.name, runs, promise))
    return methods


def _run(experiment: Experiment, folder: Path) -> Result:
    if not (folder / "experiment.toml").exists():
        return start(experiment, folder)
    if config.load(folder / "experiment.toml").digest() != experiment.digest():
        raise RunError(
            f"{folder} holds a run of another configuration",
            why="the file was changed since, and old and new results must not meet in one table",
            fix="remove that folder, or give another --out",
            code="stale-comparison",
        )
    return resume(folder)


def check_equal(experiments: Sequence[Experiment]) -> None:
    """What must be the same for a difference to mean anything."""
    first = experiments[0]
    for other in experiments[1:]:
        for section in EQUAL:
            if getattr(first, section) != getattr(other, section):
                raise ConfigError(
                    f"{first.name} and {other.name} differ in {section}",
                    why="then a difference in accuracy could come from there",
                    fix=f"make [{section}] equal, or give it for all: sordino compare ... {section}=...",
                    code="unequal-comparison",
                )
    names = [experiment.name for experiment in experiments]
    if len(set(names)) < len(names):
        raise ConfigError(
            f"two experiments are called {sorted(names)}", fix='give each its own name = "..."', code="same-name"
        )


# measures of one run ----------------------------------------------------------------------------------------------------


def scored(run: Metrics) -> list[Mapping[str, Any]]:
    return [row for row in run if "accuracy" in row]


def final(run: Metrics) -> float | None:
    return float(scored(run)[-1]["accuracy"]) if scored(run) else None


def last_ten(run: Metrics) -> float | None:
    rows = scored(run)[-10:]
    return statistics.fmean(row["accuracy"] for row in rows) if rows else None


def worst_tenth(run: Metrics) -> float | None:
    rows = [row for row in scored(run) if "clients" in row]
    return rows[-1]["clients"]["worst_tenth"] if rows else None


def at_round(wanted: int) -> Callable[[Metrics], float | None]:
    """The last evaluation at or before a round."""
    return lambda run: next((float(row["accuracy"]) for row in reversed(scored(run)) if row["round"] <= wanted), None)


def at_bytes(budget: float) -> Callable[[Metrics], float | None]:
    """The last evaluation that both directions together had paid for."""

    def measure(run: Metrics) -> float | None:
        spent, found = 0.0, None
        for row in run:
            spent += row["bytes_up"] + row["bytes_down"]
            if spent > budget:
                break
            found = float(row["accuracy"]) if "accuracy" in row else found
        return found

    return measure


def rounds_to(target: float) -> Callable[[Metrics], float | None]:
    return lambda run: next((float(row["round"]) for row in scored(run) if row["accuracy"] >= target), None)


def bytes_to(target: float) -> Callable[[Metrics], float | None]:
    def measure(run: Metrics) -> float | None:
        spent = 0.0
        for row in run:
            spent += row["bytes_up"] + row["bytes_down"]
            if row.get("accuracy", -1.0) >= target:
                return float(spent)
        return None

    return measure


def traffic(run: Metrics) -> float:
    return float(sum(row["bytes_up"] + row["bytes_down"] for row in run))


# between methods --------------------------------------------------------------------------------------------------------


def paired_p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Two-sided paired t-test over common seeds; None with fewer than two, or where all differences are equal."""
    differences = [x - y for x, y in zip(a, b, strict=True)]
    if len(differences) < 2 or math.isclose(max(differences), min(differences), abs_tol=1e-12):
        return None
    from scipy.stats import ttest_rel

    return float(ttest_rel(a, b).pvalue)


def table(methods: Sequence[Method], target: float | None = None) -> list[dict[str, Any]]:
    """One row per method. The target defaults to what the weakest method reaches at its end, so that all can reach it."""
    if target is None:
        ends = [statistics.fmean(values) for m in methods if (values := m.values(last_ten))]
        target = min(ends) if ends else 0.0
    rounds = max((row["round"] for m in methods for run in m.runs for row in run), default=0)
    cheapest = min((traffic(run) for m in methods for run in m.runs), default=0.0)
    measures: dict[str, Callable[[Metrics], float | None]] = {
        "final": final,
        "last_ten": last_ten,
        "worst_tenth": worst_tenth,
        "at_half": at_round(rounds // 2),
        "at_equal_bytes": at_bytes(cheapest),
        "rounds_to_target": rounds_to(target),
        "bytes_to_target": bytes_to(target),
        "bytes": traffic,
    }
    rows = []
    for method in methods:
        row: dict[str, Any] = {"method": method.name, "n": len(method.runs), "target": target}
        for name, measure in measures.items():
            values = method.values(measure)
            row[name] = statistics.fmean(values) if values else None
            row[f"{name}_std"] = statistics.stdev(values) if len(values) > 1 else None
            row[f"{name}_n"] = len(values)  # of n: a target may not be reached by every seed
        first, mine = methods[0].values(last_ten), method.values(last_ten)
        row["p_against_first"] = None if method is methods[0] or len(first) != len(mine) else paired_p(mine, first)
        row["guarantees"] = method.promise
        rows.append(row)
    return rows
