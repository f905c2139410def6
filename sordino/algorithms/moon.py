"""MOON, model-contrastive federated learning. Li, He and Song, CVPR 2021.

An example's features should lie near those of the shared model and far from those of the client's own last one. `head`
puts the paper's projection before the classifier; without it the features themselves are contrasted.

Deviations: a client without a last model trains without the contrastive loss; one last model is kept, as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from sordino import tree
from sordino.algorithms.fedavg import FedAvg, Server, Up
from sordino.algorithms.optional import OwnLoss
from sordino.errors import NOT_NEGATIVE, POSITIVE, check_range
from sordino.keys import Key
from sordino.tasks.losses import model_contrast
from sordino.types import Params, Shard, Task, Tensor


class Client(NamedTuple):
    """A client's last local model, and how often it took part."""

    last: Params
    participations: Tensor


@dataclass(frozen=True)
class Moon(FedAvg, OwnLoss, name="moon", takes_mean=True, carries_statistics=True):
    mu: float = 1.0
    temperature: float = 0.5
    head: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("mu", self.mu, NOT_NEGATIVE, "not-positive")
        check_range("temperature", self.temperature, POSITIVE, "not-positive")

    @property
    def projection(self) -> int:
        """Width of the projection that is inserted before the classifier; 0 for none."""
        return 256 if self.head else 0

    def init_client(self, task: Task) -> Any:
        return Client(tree.zeros_like(task.init(0)), torch.tensor(0))

    def local(self, task: Task, down: Server, c: Any, shard: Shard, key: Key) -> tuple[Up, Any]:
        walk = self.walk(down.x, self.rate(down.round, c.participations), statistics=task.statistics)
        contrasts = self.mu > 0 and bool(c.participations > 0)
        losses = partial(self._losses, task, down.x, c.last) if contrasts else task.losses
        for batch in shard.batches(self.work, key):
            walk(batch.grad(losses, walk.y))
        return Up(tree.sub(walk.y, down.x)), Client(tree.formed(walk.y), c.participations + 1)

    def passes(self, size: int) -> float:
        return super().passes(size) * 5 / 3  # two more looks, without a way back

    def _losses(
        self, task: Task, shared: Params, last: Params, params: Params, x: Tensor, y: Tensor, draws: Tensor
    ) -> Tensor:
        z = task.features(params, x, draws)
        with torch.no_grad():  # of the same views of the images
            near, far = task.features(shared, x, draws), task.features(last, x, draws)
        plain = torch.nn.functional.cross_entropy(task.head(params, z), y, reduction="none")
        return plain + self.mu * model_contrast(z, near, far, self.temperature)
