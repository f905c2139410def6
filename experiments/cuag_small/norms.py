"""How long an update is after it was compressed: python experiments/cuag_small/norms.py CIFAR10_FOLDER. Writes
norms.md beside it.

The published noise of CUAG-PFL follows the norm of what is sent. Three devices with 500 images of three classes each
train the small network for 10 steps; their updates are measured in three ways, layer by layer.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import numpy as np
import torch

from sordino import keys, tree
from sordino.data import images
from sordino.data.dataset import Dataset
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.open import Open
from sordino.privacy.uplink.compression import sums
from sordino.privacy.uplink.sensing import Kind, Sensing
from sordino.tasks.nets import NETS
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Grant, LocalWork

HERE, SEEDS, RATES = Path(__file__).parent, (0, 1, 2), (0.5, 0.3)
KINDS: tuple[Kind | None, ...] = None, "gaussian", "bernoulli"  # None: block sums


def update(data: Dataset, seed: int) -> list[torch.Tensor]:
    """Layers of one device's update."""
    rng, y = np.random.default_rng(seed), np.asarray(data.train.y)
    own = rng.permutation(np.flatnonzero(np.isin(y, rng.permutation(10)[:3])))[:500]
    examples = Examples(torch.from_numpy(np.asarray(data.train.x[own])), torch.from_numpy(y[own]))
    task = Classification(
        NETS["cnn"]((3, 32, 32), 10), name="cnn", shape=(32, 32, 3), mean=data.mean, std=data.std, image=True
    )
    start = params = task.init(keys.root(seed))
    shard = Open().open(examples, Grant(0, 500, 500, Counter(1)), task)
    for batch in shard.batches(LocalWork(None, 10, 50), keys.root(seed)):
        params = tree.descend(params, 0.1, batch.grad(task.losses, params), start)
    return [a.detach() - b for a, b in zip(tree.leaves(tree.formed(params)), tree.leaves(start), strict=True)]


def main() -> None:
    data = images.load(sys.argv[1])
    updates = [update(data, seed) for seed in SEEDS]
    lines = ["| measured by | r = 0.5 | r = 0.3 |", "|---|---|---|"]
    for kind in KINDS:
        cells = []
        for rate in RATES:
            grown = []
            for layers in updates:
                sent = [Sensing(kind=kind).measured(x, rate) if kind else sums(x, rate) for x in layers]
                grown.append(float(torch.cat(sent).norm() / torch.cat([x.reshape(-1) for x in layers]).norm()))
            cells.append(f"{statistics.mean(grown):.2f} ({min(grown):.2f} to {max(grown):.2f})")
        lines.append(f"| {kind or 'block sums'} | {' | '.join(cells)} |")
    said = "The norm of what is sent over that of the update: mean, and range over three devices."
    (HERE / "norms.md").write_text("\n".join([*lines, "", said]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
