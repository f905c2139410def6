"""How inexact a device's solution is, with and without a proximal term: python experiments/pdp_prox/gamma.py. Writes
gamma.md beside it.

gamma is the norm of the gradient of what a device minimises, loss and proximal term, where its 5 epochs end, over that
where they begin: 0 is solved, 1 is untouched. Both are taken over all its examples. It is for a simulation alone; no
device sends it. The settings are those of synthetic.toml without noise and clip, 20 rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sordino.data import sources

HERE, SEEDS, MUS = Path(__file__).parent, (0, 1, 2), (0.0, 0.01, 0.1, 0.5, 1.0)
SETS: dict[str, dict[str, Any]] = {
    "IID": {"iid": True},
    "(0, 0)": {"alpha": 0.0, "beta": 0.0},
    "(0.5, 0.5)": {"alpha": 0.5, "beta": 0.5},
    "(1, 1)": {},
}
ROUNDS, EPOCHS, BATCH, STEP, COHORT, DEVICES = 20, 5, 10, 0.01, 10, 30


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of the mean cross-entropy of a linear model."""
    scores = x @ w
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    found: np.ndarray = x.T @ p / len(y)
    return found


def gammas(told: Mapping[str, Any], mu: float, seed: int) -> list[float]:
    """One number for each device and round of FedProx."""
    rows = sources.synthetic(**told, clients=DEVICES, largest=200, seed=seed).train
    x = np.hstack([rows.x, np.ones((len(rows.x), 1), np.float32)]).astype(np.float64)
    owned = [np.flatnonzero(rows.group == k) for k in range(DEVICES)]
    rng, server, found = np.random.default_rng(seed), np.zeros((x.shape[1], sources.CLASSES)), []
    for t in range(ROUNDS):
        moved = []
        for k in ((t * COHORT + i) % DEVICES for i in range(COHORT)):
            w, own = server.copy(), owned[k]
            for _ in range(EPOCHS):
                order = rng.permutation(own)
                for batch in np.split(order, range(BATCH, len(order), BATCH)):
                    w -= STEP * (gradient(w, x[batch], rows.y[batch]) + mu * (w - server))
            ends = gradient(w, x[own], rows.y[own]) + mu * (w - server)
            found.append(float(np.linalg.norm(ends) / np.linalg.norm(gradient(server, x[own], rows.y[own]))))
            moved.append(w - server)
        server = server + np.mean(moved, axis=0)
    return found


def main() -> None:
    lines = ["| data | " + " | ".join(f"mu {mu:g}" for mu in MUS) + " |", "|---" * (len(MUS) + 1) + "|"]
    for name, told in SETS.items():
        each = [[statistics.mean(gammas(told, mu, seed)) for seed in SEEDS] for mu in MUS]
        cells = [f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}" for values in each]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    said = "Mean gamma over ten devices in each of 20 rounds, mean ± standard deviation over three seeds."
    (HERE / "gamma.md").write_text("\n".join([*lines, "", said]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
