"""FedAvg. McMahan et al., AISTATS 2017, Algorithm 1.

Deviations: the server averages updates (new minus old) instead of weights, which is the same; `lr_decay` may count
rounds or a client's own participations; `server_lr` scales the mean update (1 in the paper).
"""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import NamedTuple

import torch

from sordino import tree
from sordino.algorithms.local_sgd import LocalSgd
from sordino.algorithms.optional import Home
from sordino.keys import Key
from sordino.types import Params, Received, S, Shard, Task, Tensor


class Server(NamedTuple):
    """The server's state: the model, and the number of rounds done."""

    x: Params
    round: Tensor


class Client(NamedTuple):
    """A client's state: how often it took part."""

    participations: Tensor


class Up(NamedTuple):
    """Upload: the change of the local model."""

    delta: Params


class FedAvgClients(LocalSgd[S, Client, Server, Up], ABC):
    """Base class of methods whose clients train as in FedAvg, and whose server has a state of its own (S)."""

    def init_client(self, task: Task) -> Client:
        return Client(torch.tensor(0))

    def zero(self, task: Task, down: Server) -> Up:
        return Up(tree.zeros_like(down.x))

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: Key) -> tuple[Up, Client]:
        eta = self.rate(down.round, c.participations)
        walk = self.walk(down.x, eta, statistics=task.statistics)
        for batch in shard.batches(self.work, key):
            g = batch.grad(task.losses, walk.y)
            walk(self.direction(g, walk.y, down.x), batch.live)  # w <- w - eta g
        return Up(tree.sub(walk.y, down.x)), Client(c.participations + 1)

    def direction(self, g: Params, y: Params, x: Params) -> Params:
        """The direction of a local step at y, in a round that began at x: the gradient itself."""
        return g

    def change(self, upload: Up) -> Params | None:
        return upload.delta


@dataclass(frozen=True)
class FedAvg(FedAvgClients[Server], name="fedavg", takes_mean=True, carries_statistics=True):
    def init(self, task: Task, key: Key) -> Server:
        return Server(task.init(key), torch.tensor(0))

    def broadcast(self, s: Server) -> Server:
        return s

    def update(self, s: Server, r: Received[Up], home: Home) -> Server:
        return Server(tree.axpy(self.server_lr, r.mean.delta, s.x), s.round + 1)
