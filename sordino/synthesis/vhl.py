"""VHL, virtual homogeneity learning. Tang, Zhang, Shi, He, Han and Chu, ICML 2022.

All clients hold the same images of pure noise, drawn by an untrained generator. These have classes of their own, and
the features of real images are pulled towards those of noise images of the same class number.

Deviations: noise images are scaled like the data, not by 0.5 and 0.25. The server sends the seed of the set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from sordino import keys, tree
from sordino.algorithms.fedavg import Client, FedAvg, Server, Up
from sordino.algorithms.optional import FitsData, Home, Known, OwnLoss, PublicTensors
from sordino.errors import ConfigError
from sordino.keys import Key
from sordino.synthesis.generators.noise_images import Source, noise_examples
from sordino.tasks.contrast import supervised_contrast
from sordino.types import Examples, Params, Shard, Task

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class VHL(FedAvg, OwnLoss, FitsData, PublicTensors, name="vhl", takes_mean=True, carries_statistics=True):
    noise_batch: int = 64  # noise images in every step
    per_class: int = 2000
    source: Source = "stylegan"
    width: int = 512  # of the generator
    noise_weight: float = 1.0
    pull: float = 1.0
    among_noise: float = 0.1
    pull_epochs: int = 5  # of a round: later ones learn without pulling
    temperature: float = 0.07
    _shape: tuple[int, ...] = ()

    @property
    def heads(self) -> int:
        return 2  # noise images have classes of their own

    def fitted(self, known: Known) -> VHL:
        shape = known.shape
        if len(shape) != 3:
            raise ConfigError(
                f"vhl over examples of shape {'x'.join(map(str, shape))}",
                why="vhl trains on artificial images beside the clients' own examples, so these must be images too",
                fix="use another data.source, or another algorithm",
                code="not-images",
            )
        return replace(self, _shape=(*shape, known.classes))

    def public_tensors(self, before: Any, home: Home) -> Params:
        return {"seed": torch.tensor(keys.signed(keys.word(keys.fold(home.key, "vhl"))))}

    def public_examples(self, task: Task, tensors: Mapping[str, Tensor], size: int, key: Key) -> Examples:
        side, _, channels, classes = self._shape
        seed = int(tensors["seed"]) % (1 << 64)
        return noise_examples(classes, self.per_class, side, channels, seed, self.source, self.width)

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: Key) -> tuple[Up, Client]:
        walk = self.walk(down.x, self.rate(down.round, c.participations), statistics=task.statistics)
        each = self.work.count(shard.size) // (self.work.epochs or 1)  # steps of an epoch
        for step, both in enumerate(shard.mixed(self.work, key, self.noise_batch)):
            walk(both.joint(partial(self._loss, task, step < each * self.pull_epochs), walk.y))
        return Up(tree.sub(walk.y, down.x)), Client(c.participations + 1)

    def passes(self, size: int) -> float:
        return super().passes(size) + self.work.count(size) * self.noise_batch

    def _loss(self, task: Task, pulls: bool, params: Params, own: Examples, noise: Examples, draws: Tensor) -> Tensor:
        n = len(own.y)
        z = task.features(params, torch.cat([own.x, noise.x]), draws)
        logits = task.head(params, z)
        total = torch.nn.functional.cross_entropy(logits[:n], own.y)
        total = total + self.noise_weight * torch.nn.functional.cross_entropy(logits[n:], noise.y + task.labels)
        if pulls:
            both = torch.cat([z[:n], z[n:].detach()])
            total = total + self.pull * supervised_contrast(both, torch.cat([own.y, noise.y]), self.temperature)
            total = total + self.among_noise * supervised_contrast(z[n:], noise.y, self.temperature)
        return total
