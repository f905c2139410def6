"""The pictures of CUAG-PFL: python experiments/cuag/plot.py. Curves come from results.jsonl beside it, the others are
computed.

accuracy.png    accuracy over rounds, and over what one client that always takes part has sent
epsilon.png     what each method's source prints over rounds, dashed, beside what is proved of the sound variant, solid
coherence.png   of three measurement matrices with two bases (512 columns)
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch

from sordino.accounting.accountants import best
from sordino.accounting.events import Gaussian, Poisson, Repeat
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.accounting.published import composed, prifedsync_mu, scaffold_epsilon
from sordino.privacy.uplink.compression import runs
from sordino.privacy.uplink.sensing import coherence, cosines, matrix

HERE = Path(__file__).parent
DELTA, ROUNDS, SIZE = 1e-5, 300, 512
STYLES = ["-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 3))]


def accuracy() -> None:
    found = [json.loads(line) for line in (HERE / "results.jsonl").read_text().splitlines()]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True)
    for row, style in zip(found, itertools.cycle(STYLES), strict=False):  # colours come round later than styles
        rounds, values = zip(*row["curve"], strict=True)
        sent = [row["slot_gib"] * t / rounds[-1] for t in rounds]
        left.plot(rounds, values, linestyle=style, marker=".", label=row["name"])
        right.plot(sent, values, linestyle=style, marker=".")
    left.set(xlabel="round", ylabel="mean test accuracy of the clients, %")
    right.set(xlabel="GiB sent by one client that always takes part")
    figure.legend(loc="lower center", ncols=3, fontsize=8)
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    figure.savefig(HERE / "accuracy.png", dpi=110)


def epsilon() -> None:
    times = [1, 2, 5, 10, 20, 50, 100, 150, 200, 250, 300]
    printed: dict[str, Any] = {
        "CUAG-PFL, as printed": lambda t: epsilon_of(0.25, DELTA),
        "CUAG-PFL, its formula over all rounds": lambda t: epsilon_of(composed(0.25, t), DELTA),
        "PriFedSync": lambda t: epsilon_of(prifedsync_mu(t), DELTA),
        "DP-SCAFFOLD": lambda t: scaffold_epsilon(t, DELTA),
        "UDP": lambda t: 10.0,
    }
    figure, axes = plt.subplots(figsize=(7.5, 5.4))
    for (name, of), marker in zip(printed.items(), "osv^x", strict=True):
        axes.plot(
            times,
            [of(t) for t in times],
            "--",
            marker=marker,
            fillstyle="none",
            linewidth=1,
            label=f"{name} (nominal: proves nothing)",
        )
    sampled = [best(Repeat(Poisson(0.1, Gaussian(7.05)), t), DELTA, "zero_out").epsilon for t in times]
    axes.plot(
        times,
        sampled,
        "-",
        color="black",
        linewidth=2.4,
        marker="o",
        label="CUAG-PFL central_client (proved: a client, against participants)",
    )
    axes.set(xscale="log", yscale="log", xlabel="rounds", ylabel=f"epsilon at delta {DELTA:g}")
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.13))
    figure.tight_layout()
    figure.savefig(HERE / "epsilon.png", dpi=110)


def coherences() -> None:
    rates = [tenths / 10 for tenths in range(1, 10)]
    n = torch.arange(SIZE, dtype=torch.float64)
    waves = torch.exp(-2j * math.pi / SIZE * n[:, None] * n[None, :]) / math.sqrt(SIZE)
    figure, pair = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    for axes, basis, name in zip(pair, (cosines(SIZE), waves), ("DCT", "DFT"), strict=True):
        for kind, marker in (("block sums", "o"), ("gaussian", "s"), ("bernoulli", "^")):
            values = [coherence(_rows(kind, rate), basis) for rate in rates]
            axes.plot(rates, values, marker=marker, label=kind)
        axes.set(xlabel="share that is kept", title=name)
    pair[0].set_ylabel("coherence, 1 to sqrt(512)")
    pair[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(HERE / "coherence.png", dpi=110)


def _rows(kind: str, rate: float) -> torch.Tensor:
    if kind != "block sums":
        return matrix("gaussian" if kind == "gaussian" else "bernoulli", math.floor(rate * SIZE), SIZE, 0).phi
    lengths = runs(SIZE, rate).lengths()
    which = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    return torch.nn.functional.one_hot(which, len(lengths)).T.double()


if __name__ == "__main__":
    epsilon()
    coherences()
    if (HERE / "results.jsonl").exists():
        accuracy()
