"""What the selection of SlaugFL is worth: python experiments/slaug_small/kept.py. Writes kept.md beside it.

For each way to select, three seeds of mnist.toml: how many of the kept candidates show what they say (a simulation
knows), and how well a classifier does that was trained on them alone and is tested on MNIST. All candidates, and as
many as are kept but at random, are what a selection must beat.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from sordino import config, keys
from sordino.runs.simulation import Simulation, simulated
from sordino.synthesis.slaug.generator import some
from sordino.synthesis.slaug.pool import fitted
from sordino.types import Examples

HERE, SEEDS = Path(__file__).parent, (0, 1, 2)
QUICK = ("algorithm.gan_epochs=1", "algorithm.local_epochs=1", "evaluation.every=99", "evaluation.final=1")
WAYS: dict[str, tuple[str, ...]] = {
    "recall, as published": ("algorithm.rank=recall",),
    "F1": (),
    "pooled sums, no noise": ("algorithm.variant=pooled",),
    **{
        f"rigorous_b, epsilon {e}": ("algorithm.variant=rigorous_b", f"privacy.epsilon={e}.0", "privacy.delta=1e-5")
        for e in (8, 4, 1)
    },
}


def kept_by(words: tuple[str, ...], seed: int) -> torch.Tensor:
    """Numbers of the candidates that a run kept."""
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "sordino", "run", str(HERE / "mnist.toml"), *QUICK, *words]
        subprocess.run(
            [*command, "--seed", str(seed), "--out", f"{place}/run", "--json"], check=True, capture_output=True
        )
        (file,) = Path(place).glob("run/preparation/*/kept.jsonl")
        return torch.tensor([i for line in file.read_text().splitlines() for i in json.loads(line)["candidates"]])


def taught(parts: Simulation, candidates: Examples, rows: torch.Tensor) -> float:
    """Accuracy of a classifier that saw these candidates and nothing else."""
    chosen, key = Examples(candidates.x[rows], candidates.y[rows]), keys.fold(parts.setup.key, "taught")
    params = fitted(parts.setup.task, chosen, 30, 32, 0.01, 0.9, key)
    return 100 * float(parts.setup.task.score(params, parts.home.tested)["accuracy"].mean())


def main() -> None:
    valid: dict[str, list[float]] = {}
    accuracy: dict[str, list[float]] = {}
    for seed in SEEDS:
        parts = simulated(config.load(HERE / "mnist.toml").model_copy(update={"seed": seed}))
        candidates = parts.home.candidates
        assert candidates is not None
        assert parts.home.drawn is not None
        wrong = torch.zeros(len(candidates.y), dtype=torch.bool)
        wrong[parts.home.drawn.manifest["wrong"]] = True
        every = [torch.nonzero(candidates.y == c).flatten() for c in range(10)]
        chance = [own[some(len(own), 100, keys.fold(parts.setup.key, "chance", c))] for c, own in enumerate(every)]
        sets = {"all candidates": torch.cat(every), "100 of each class at random": torch.cat(chance)}
        sets |= {name: kept_by(words, seed) for name, words in WAYS.items()}
        for name, rows in sets.items():
            valid.setdefault(name, []).append(100 * float(1 - wrong[rows].double().mean()))
            accuracy.setdefault(name, []).append(taught(parts, candidates, rows))
            print(f"seed {seed}  {name:30s} valid {valid[name][-1]:.1f}  accuracy {accuracy[name][-1]:.1f}", flush=True)
    lines = [
        "| selection | valid (%), seeds 0 / 1 / 2 | mean | accuracy of a classifier (%) | mean |",
        "|---|---|---|---|---|",
    ]
    for name in valid:
        cells = [
            cell
            for values in (valid[name], accuracy[name])
            for cell in (" / ".join(f"{v:.1f}" for v in values), f"{statistics.mean(values):.1f}")
        ]
        lines.append(f"| {' | '.join((name, *cells))} |")
    (HERE / "kept.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
