"""Accuracy against epsilon, published and proved visibly apart: python experiments/personal/plot.py (needs the `plots`
extra).
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
STYLES = {  # proved: full lines, one colour each; the published mechanism keeps no budget: dashed, open marks
    "DP-Prox, all at": ("DP-Prox, everybody at e, hidden cohort", "tab:blue", "-", "o"),
    "DP-FedAvg, all at": ("DP-FedAvg, everybody at e, hidden cohort", "tab:cyan", "-", "s"),
    "uniform at the smallest budget, visible,": ("everybody at e, visible cohort", "tab:gray", "-", "v"),
    "P1 rates,": ("P1 rates", "tab:green", "-", "D"),
    "P2 bounds,": ("P2 bounds", "tab:purple", "-", "^"),
    "P3 local,": ("P3 local noise", "tab:brown", "-", "P"),
    "P4 threshold,": ("P4 threshold", "tab:olive", "-", "X"),
    "published,": ("as published (its budgets are not proved)", "tab:red", "--", "o"),
}


def main() -> None:
    results = [json.loads(line) for line in (HERE / "results.jsonl").read_text().splitlines()]
    points: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for found in results:
        for prefix in STYLES:
            if found["name"].startswith(prefix):  # "P1 rates, 1/2/4": e is the smallest of the budgets
                e = float(found["name"].removeprefix(prefix).partition("/")[0])
                points[prefix][e].append(found["last"])
    figure, axes = plt.subplots(figsize=(7.5, 4.8))
    for prefix, (label, colour, line, mark) in STYLES.items():
        if prefix in points:
            xs = sorted(points[prefix])
            ys = [statistics.mean(points[prefix][x]) for x in xs]
            open_mark = "none" if line == "--" else colour
            axes.plot(xs, ys, line, color=colour, marker=mark, markerfacecolor=open_mark, label=label)
    free = [found["last"] for found in results if found["name"].startswith("no noise, mu 1")]
    axes.axhline(statistics.mean(free), color="black", linewidth=0.8, linestyle=":", label="no noise")
    axes.set(
        xscale="log", xlabel="e (personal budgets: e, 2e and 4e)", ylabel="test accuracy, mean of the last 10 rounds, %"
    )
    axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    axes.minorticks_off()
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    figure.savefig(HERE / "accuracy.png", dpi=130)


if __name__ == "__main__":
    main()
