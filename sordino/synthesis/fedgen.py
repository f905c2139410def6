"""FedGen, data-free knowledge distillation. Zhu, Hong and Zhou, ICML 2021.

The server trains a generator of features against the heads of all models that came back, each trusted for a class as
much as its client has of it. Clients train their heads on its features, and are pulled towards what these say. It shows
the server every model and every client's label counts.

Deviations: the optimiser of the generator starts afresh in every round. One generated feature per example of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from sordino import keys, tree
from sordino.algorithms.fedavg import Client
from sordino.algorithms.local_sgd import LocalSgd
from sordino.algorithms.optional import Home, OwnLoss
from sordino.keys import Key
from sordino.synthesis.generators import features
from sordino.types import Params, Received, Shard, Task

if TYPE_CHECKING:
    from torch import Tensor


class Server(NamedTuple):
    x: Params
    generator: Params
    round: Tensor


class Up(NamedTuple):
    delta: Params
    counts: Tensor  # of the client's labels


@dataclass(frozen=True)
class FedGen(LocalSgd[Server, Client, Server, Up], OwnLoss, name="fedgen", carries_statistics=True):
    strength: float = 10.0  # of both terms in round 0; 0: FedAvg
    decay: float = 0.98  # of it, per round
    least: float = 1e-4
    noise: int = 100
    hidden: int = 512
    updates: int = 50  # of the generator, per round
    generator_lr: float = 3e-4
    generator_decay: float = 1e-2  # of its weights
    generator_batch: int = 32
    reads_each = True

    def init(self, task: Task, key: Key) -> Server:
        made = features.init(task.labels, self.noise, task.width, keys.fold(key, "generator"), self.hidden)
        return Server(task.init(key), made, torch.tensor(0))

    def init_client(self, task: Task) -> Client:
        return Client(torch.tensor(0))

    def broadcast(self, s: Server) -> Server:
        return s

    def zero(self, task: Task, down: Server) -> Up:
        return Up(tree.zeros_like(down.x), torch.zeros(task.labels))

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: Key) -> tuple[Up, Client]:
        walk = self.walk(down.x, self.rate(down.round, c.participations), statistics=task.statistics)
        helped = self.strength > 0 and int(down.round) > 0
        losses = partial(self._losses, task, down.generator, self._weight(down)) if helped else task.losses
        for batch in shard.batches(self.work, key):
            walk(batch.grad(losses, walk.y))
        counts = shard.sum(lambda x, y: (y[:, None] == torch.arange(task.labels)).sum(0)).float()
        return Up(tree.sub(walk.y, down.x), counts), Client(c.participations + 1)

    def change(self, upload: Up) -> Params | None:
        return upload.delta

    def update(self, s: Server, r: Received[Up], home: Home) -> Server:
        heads = [partial(home.task.head, tree.add(s.x, up.delta)) for up in r.each]
        counts = torch.stack([up.counts for up in r.each]) if heads else torch.zeros(0, home.task.labels)
        made = s.generator
        if self.strength and bool((counts > 1).any()):
            lr = self.generator_lr * self.decay ** int(s.round)
            settings = features.FeatureSettings(self.updates, self.generator_batch, lr, self.generator_decay)
            made = features.distil(
                made, heads, counts, self.noise, settings, keys.fold(keys.fold(home.key, "fedgen"), int(s.round))
            )
        return Server(tree.axpy(self.server_lr, r.mean.delta, s.x), made, s.round + 1)

    def _weight(self, down: Server) -> float:
        return max(self.least, self.strength * self.decay ** int(down.round))

    def _losses(
        self, task: Task, generator: Params, weight: float, params: Params, x: Tensor, y: Tensor, draws: Tensor
    ) -> Tensor:
        z = task.features(params, x, draws)
        logits = task.head(params, z)
        with torch.no_grad():
            epsilon, any_label = features.wanted(draws, self.noise, task.labels)
            made, of_mine = features.forward(generator, epsilon, any_label), features.forward(generator, epsilon, y)
            says = torch.nn.functional.log_softmax(task.head(params, of_mine), 1)
        learned = torch.nn.functional.cross_entropy(task.head(params, made), any_label, reduction="none")
        near = torch.nn.functional.kl_div(
            torch.nn.functional.log_softmax(logits, 1), says, reduction="none", log_target=True
        ).sum(1)
        return torch.nn.functional.cross_entropy(logits, y, reduction="none") + weight * (learned + near)
