"""What the contrast of SlaugFL does to features: python experiments/slaug_small/separation.py. Writes separation.md
beside it.

Three seeds of mnist.toml with and without it. The mean of a class is that of the features in front of the last layer,
over the test images of that class; the table says how alike the means of two classes are.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from itertools import combinations
from pathlib import Path

import safetensors.torch
import torch

from sordino import config
from sordino.runs.simulation import simulated

HERE, SEEDS = Path(__file__).parent, (0, 1, 2)


def alike(words: tuple[str, ...], seed: int) -> float:
    """Mean cosine of two class means after one run."""
    with tempfile.TemporaryDirectory() as place:
        asked = [str(HERE / "mnist.toml"), *words, "evaluation.every=99", "evaluation.final=1", "--seed", str(seed)]
        command = [sys.executable, "-m", "sordino", "run", *asked, "--out", f"{place}/run", "--json"]
        subprocess.run(command, check=True, capture_output=True)
        weights = safetensors.torch.load_file(f"{place}/run/model.safetensors")
    parts = simulated(config.load(HERE / "mnist.toml", words).model_copy(update={"seed": seed}))
    task, tested = parts.setup.task, parts.home.tested
    started = task.init(parts.setup.key)
    params = {name: weights[name] for name in started}
    z = task.features(params, tested.x, None).detach()
    means = [z[tested.y == c].mean(0) for c in range(10)]
    pairs = [torch.cosine_similarity(a, b, dim=0).item() for a, b in combinations(means, 2)]
    return statistics.mean(pairs)


def main() -> None:
    lines = ["| contrast | cosine of two class means, seeds 0 / 1 / 2 | mean |", "|---|---|---|"]
    for name, words in (("with (separation 1)", ()), ("without", ("algorithm.separation=0.0",))):
        found = [alike(words, seed) for seed in SEEDS]
        lines.append(f"| {name} | {' / '.join(f'{v:.2f}' for v in found)} | {statistics.mean(found):.2f} |")
    (HERE / "separation.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
