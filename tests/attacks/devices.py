"""Real digits, divided as an attacker meets them, and extractors trained on them in a second."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sordino import keys, tree
from sordino.data import sources
from sordino.keys import Key
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.open import Open
from sordino.tasks.nets import NETS
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Grant, LocalWork, Params

CLASSES, ELSEWHERE, MEMBERS = (
    10,
    60,
    60,
)  # of each class: what the attacker has, and what is averaged; the others are never seen


@cache
def everything() -> Examples:
    """1,797 images in random order."""
    data = sources.digits()
    x, y = (torch.from_numpy(np.concatenate(sides)) for sides in zip(data.train[:2], data.test[:2], strict=True))
    order = keys.permutation(keys.root(1), len(y))
    return Examples(x[order], y[order])


class Parts(NamedTuple):
    """Rows of one class."""

    elsewhere: Tensor
    members: Tensor
    others: Tensor


def parts(label: int) -> Parts:
    rows = torch.nonzero(everything().y == label)[:, 0]
    return Parts(rows[:ELSEWHERE], rows[ELSEWHERE : ELSEWHERE + MEMBERS], rows[ELSEWHERE + MEMBERS :])


def task(net: str) -> Classification:
    data = sources.digits()
    return Classification(
        NETS[net]((1, 8, 8), CLASSES), name=net, shape=(8, 8, 1), mean=data.mean, std=data.std, image=True
    )


def trained(on: Classification, examples: Examples, epochs: int, key: Key, lr: float = 0.1) -> Params:
    n = len(examples.y)
    shard = Open().open(examples, Grant(0, n, n, Counter(1)), on)
    start = params = on.init(key)
    for batch in shard.batches(LocalWork(epochs, None, 16), key):
        params = tree.descend(params, lr, batch.grad(on.losses, params), start)
    return {name: value.detach() for name, value in tree.formed(params).items()}


class Extractor(NamedTuple):
    task: Classification
    params: Params

    def features(self, rows: Tensor) -> Tensor:
        return self.task.features(self.params, everything().x[rows]).detach()

    def look(self, x: Tensor) -> Tensor:
        return self.task.look(self.params, x)


@cache
def extractor(net: str) -> Extractor:
    """Trained on what lies elsewhere."""
    rows = torch.cat([parts(label).elsewhere for label in range(CLASSES)])
    made, (x, y) = task(net), everything()
    return Extractor(made, trained(made, Examples(x[rows], y[rows]), 15, keys.root(3)))


def images(rows: Tensor) -> Tensor:
    """[n, c, h, w] between 0 and 1."""
    return (everything().x[rows].float() / 255).movedim(-1, 1)
