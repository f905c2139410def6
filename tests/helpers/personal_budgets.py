"""Small experiments under personal budgets, for the tests of their arithmetic and of their runs."""

from __future__ import annotations

from typing import Any

from sordino import config
from sordino.runs.simulation import Simulation, simulated

DELTA = 1e-5
GROUPS = {"groups": {"1": 0.54, "2": 0.37, "4": 0.09}}
ROBIN = {"name": "round_robin", "size": 11}
MECHANISMS: dict[str, dict[str, Any]] = {
    "bounds": ROBIN,
    "local": ROBIN,
    "rates": {"name": "by_budget", "size": 8},
    "threshold": {"name": "threshold"},
}


def made(
    algorithm: dict[str, Any],
    cohort: dict[str, Any],
    epsilon: Any,
    rounds: int = 6,
    clients: int = 22,
    clip: float | None = 0.5,
    **tables: Any,
) -> Simulation:
    effort = {"lr": 0.05} | ({} if "local_steps" in algorithm else {"local_epochs": 2})
    table: dict[str, Any] = {
        "rounds": rounds,
        "data": {"source": "synthetic", "clients": clients, "largest": 60},
        "partition": {"scheme": "natural"},
        "model": {"name": "logistic"},
        "cohort": cohort,
        "algorithm": effort | ({} if clip is None else {"clip": clip}) | algorithm,
        "privacy": {"epsilon": epsilon, "delta": DELTA},
        "evaluation": {"every": rounds, "final": 1},
    }
    return simulated(config.validate(table | tables))
