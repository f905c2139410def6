"""Accuracy over the number of clients, for each epsilon a line through the means of its seeds.

python experiments/lc_fl_clients/plot.py writes clients.png.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
LOOKS = {
    "no noise": ("#444444", "o", ":", 5),
    "epsilon 10": ("#0f766e", "s", "-", 10),
    "epsilon 5": ("#b45309", "^", "-", 7),
    "epsilon 1": ("#7e22ce", "D", "-", 4),
}


def main() -> None:
    found: dict[str, dict[int, list[float]]] = {}
    for line in (HERE / "results.jsonl").read_text().splitlines():
        row = json.loads(line)
        people, budget = row["name"].split(" clients, ")
        found.setdefault(budget, {}).setdefault(int(people.replace(",", "")), []).append(row["final"])
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for budget, points in found.items():
        colour, marker, line, size = LOOKS[budget]
        people = sorted(points)
        accuracy = [statistics.mean(points[many]) for many in people]
        told = "no clip, no noise" if budget == "no noise" else budget
        axes.plot(people, accuracy, color=colour, marker=marker, markersize=size, linestyle=line, label=told)
    axes.set(xscale="log", xlabel="clients that share the 60,000 images", ylabel="test accuracy after 20 rounds, %")
    axes.legend(frameon=False, loc="lower right")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("Client-level privacy, delta 1e-5: how many clients it needs", loc="left", fontsize=10)
    figure.savefig(HERE / "clients.png", dpi=150)


if __name__ == "__main__":
    main()
