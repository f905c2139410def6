"""What personal budgets cost a round: python benchmarks/personal.py [--repeats 15]. 1000 clients, 100 a round, logistic
regression.

Each pair is the same federation with one epsilon for everybody and with a budget for every client, ledgers on disk,
rounds taking turns; medians of CPU seconds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # also where this file is started by its path: other packages have a `benchmarks`

import torch  # noqa: E402

from sordino import config  # noqa: E402
from sordino.round import one_round  # noqa: E402
from sordino.runs.simulation import simulated  # noqa: E402

PERSONAL = {"linspace": [1.0, 4.0], "levels": 20}
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bounds": ({"cohort": {"name": "round_robin", "size": 100}},) * 2,
    "local": ({"cohort": {"name": "round_robin", "size": 100}},) * 2,
    "rates": ({"cohort": {"name": "poisson", "rate": 0.1}}, {"cohort": {"name": "by_budget", "size": 100}}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| mechanism | one epsilon, CPU s | personal, CPU s | ratio |\n| :-- | --: | --: | --: |")
    for mechanism, (uniform, personal) in PAIRS.items():
        with tempfile.TemporaryDirectory() as folder:
            sides = [
                rounds(mechanism, epsilon, tables, Path(folder) / f"{i}.sqlite")
                for i, (epsilon, tables) in enumerate(((1.0, uniform), (PERSONAL, personal)))
            ]
            taken = [[side(t) for side in sides] for t in range(asked.repeats + 1)][1:]
        one, own = (statistics.median(column) for column in zip(*taken, strict=True))
        print(f"| {mechanism} | {one:.3f} | {own:.3f} | {own / one:.2f}x |", flush=True)


def rounds(mechanism: str, epsilon: Any, tables: dict[str, Any], ledger: Path) -> Callable[[int], float]:
    parts = simulated(
        config.validate(
            {
                "rounds": 100,
                "data": {"source": "synthetic", "clients": 1000, "largest": 100},
                "partition": {"scheme": "natural"},
                "model": {"name": "logistic"},
                "algorithm": {"name": "pdp_prox", "mechanism": mechanism, "clip": 0.5, "local_epochs": 1},
                "privacy": {"epsilon": epsilon, "delta": 1e-5},
                **tables,
            }
        )
    )
    federation, clients, server = parts.federation(ledger, "bench"), parts.site("bench"), parts.setup.state("server")

    def play(t: int) -> float:
        nonlocal server
        began = time.process_time()
        server = one_round(federation, server, t, clients).server
        return time.process_time() - began

    return play


if __name__ == "__main__":
    main()
