"""Table 1 of CUAG-PFL from the curves that are kept: python experiments/cuag/targets.py. Writes targets.md beside it.

The paper asks which epsilon a method has printed when it first reaches an accuracy. Here: in which evaluated round the
kept runs of seed 0 reach it, if they do.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# of table 1 for ACID3: accuracy in %, and the epsilon of CUAG-PFL, PriFedSync, DP-SCAFFOLD and UDP ("-": never reached)
PUBLISHED = [(55.28, "0.92, 0.41, 5.03, 10"), (70.10, "0.92, 1.99, 23.31, -"), (90.16, "0.92, 10.15, -, -")]


def reached(run: dict[str, Any], target: float) -> str:
    """The first evaluated round at or above the target, or how far it came."""
    best = max(accuracy for _, accuracy in run["curve"])
    return next((f"round {t}" for t, accuracy in run["curve"] if accuracy >= target), f"never (best {best:.1f})")


def table() -> str:
    """Rows of targets, columns of runs."""
    kept = map(json.loads, (HERE / "results.jsonl").read_text().splitlines())
    runs = [run for run in kept if run["seed"] == 0]
    heads = ["accuracy, %", "published epsilon: CUAG-PFL, PriFedSync, DP-SCAFFOLD, UDP", *(run["name"] for run in runs)]
    lines = [heads, ["---"] * len(heads)]
    lines += [[f"{target:.2f}", told, *(reached(run, target) for run in runs)] for target, told in PUBLISHED]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def main() -> None:
    (HERE / "targets.md").write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    main()
