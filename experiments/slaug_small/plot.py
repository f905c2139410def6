"""Accuracy over rounds, over what all sent and over what devices computed: python experiments/slaug_small/plot.py
[folder]. From results.jsonl there; means over seeds, and their range.

What came before round 1 is counted: a curve starts where the preparation ended.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

SHOWN = {
    "FedAvg": ("FedAvg", ":", "#666666"),
    "SCAFFOLD, no momentum": ("SCAFFOLD", (0, (3, 1, 1, 1)), "#666666"),
    "MOON": ("MOON", (0, (1, 3)), "#8c564b"),
    "VHL": ("VHL", "--", "#1f77b4"),
    "FedGen": ("FedGen", (0, (5, 3)), "#9467bd"),
    "SlaugFL S1, shared": ("SlaugFL, scenario 1", "-", "#d62728"),
    "SlaugFL S2, shared": ("SlaugFL, scenario 2", "-.", "#ff7f0e"),
    "SlaugFL S1, rigorous_b, epsilon 8": ("SlaugFL, private, epsilon 8", (0, (5, 1)), "#2ca02c"),
}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    found: list[dict[str, Any]] = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    figure, panels = plt.subplots(1, 3, figsize=(13, 4.2), sharey=True)
    for name, (label, style, colour) in SHOWN.items():
        mine = [row for row in found if row["name"] == name]
        if not mine:
            continue
        rounds = np.array([t for t, _ in mine[0]["curve"]])
        values = np.array([[a for _, a in row["curve"]] for row in mine])
        share, before = rounds / rounds[-1], np.mean([row["before"] for row in mine]) / 1e6
        sent = before + 2 * share * np.mean([row["bytes_up"] for row in mine]) / 1e6  # as much comes down as goes up
        computed = share * np.mean([row["flops"] for row in mine]) / 1e12
        for axes, x in zip(panels, (rounds, sent, computed), strict=True):
            axes.plot(x, values.mean(0), linestyle=style, color=colour, label=label)
            axes.fill_between(x, values.min(0), values.max(0), color=colour, alpha=0.08, linewidth=0)
    panels[0].set(xlabel="round", ylabel="test accuracy, %")
    panels[1].set(xlabel="MB sent by all, up and down, preparation included")
    panels[2].set(xlabel="TFLOP that devices computed, preparation spread evenly")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, fontsize=8)
    figure.tight_layout(rect=(0, 0.13, 1, 1))
    figure.savefig(folder / "accuracy.png", dpi=110)


if __name__ == "__main__":
    main()
