"""The small preset's images and models: MNIST at 16x16 over 20 devices, and what each extractor sees of a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sordino import keys, tree
from sordino.data import images
from sordino.data.dataset import area
from sordino.keys import Key
from sordino.partition import Dirichlet
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers import taken
from sordino.privacy.readers.open import Open
from sordino.tasks.nets import NETS
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Grant, LocalWork, Params

CLASSES, DEVICES, TRAIN, PROBE, EACH = 10, 20, 2500, 500, 200
KEY = keys.root(8)


class Class(NamedTuple):
    """Rows of a class that nobody trains on."""

    elsewhere: Tensor
    members: Tensor
    others: Tensor


@dataclass(frozen=True)
class World:
    task: Classification
    every: Examples
    devices: Sequence[Tensor]  # rows of each
    probe: Examples
    classes: Sequence[Class]


def world(folder: str) -> World:
    data = images.load(folder)
    n = TRAIN + PROBE + 9000  # so many hold 600 further images of every class
    every = Examples(
        torch.from_numpy(area(np.asarray(data.train.x[:n]), 16)), torch.from_numpy(np.asarray(data.train.y[:n]))
    )
    rows = Dirichlet(DEVICES, 0.1).assign(every.y[:TRAIN].numpy(), None, np.random.default_rng(0))
    # shuffled: the file's order knows who wrote what
    order = TRAIN + PROBE + keys.permutation(keys.fold(KEY, "order"), n - TRAIN - PROBE)
    rest = [order[every.y[order] == label] for label in range(CLASSES)]
    net = NETS["cnn_norm"]((1, 16, 16), CLASSES)
    task = Classification(net, name="cnn_norm", shape=(16, 16, 1), mean=data.mean, std=data.std, image=True)
    probe = taken(every, torch.arange(TRAIN, TRAIN + PROBE))
    classes = [Class(own[:EACH], own[EACH : 2 * EACH], own[2 * EACH : 3 * EACH]) for own in rest]
    return World(task, every, [torch.from_numpy(np.asarray(own)) for own in rows], probe, classes)


def trained(on: World, rows: Tensor, key: Key) -> Params:
    n = len(rows)
    shard = Open().open(taken(on.every, rows), Grant(0, n, n, Counter(1)), on.task)
    start = params = on.task.init(KEY)  # every device starts at the same model
    for batch in shard.batches(LocalWork(10, None, 32), key):
        params = tree.descend(params, 0.1, batch.grad(on.task.losses, params), start)
    return {name: value.detach() for name, value in tree.formed(params).items()}


@dataclass(frozen=True)
class Eye:
    """An extractor, and what it sees of a class."""

    on: World
    params: Params
    label: int

    def features(self, rows: Tensor) -> Tensor:
        return self.on.task.features(self.params, self.on.every.x[rows]).detach()

    def look(self, x: Tensor) -> Tensor:
        return self.on.task.look(self.params, x)

    def pictures(self, rows: Tensor) -> Tensor:
        return (self.on.every.x[rows].float() / 255).movedim(-1, 1)

    @property
    def rows(self) -> Class:
        return self.on.classes[self.label]
