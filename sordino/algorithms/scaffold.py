"""SCAFFOLD. Karimireddy et al., ICML 2020, Algorithm 1, option II.

Deviations: uniform weights, as printed; K is the number of steps a client really took, eta the step size it really
used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from sordino import tree
from sordino.algorithms.local_sgd import LocalSgd
from sordino.algorithms.optional import Home
from sordino.keys import Key
from sordino.privacy.uplink import Uplink
from sordino.types import Params, Received, Shard, Task, Tensor


class Server(NamedTuple):
    """The server's state: the model, and its control variate c."""

    x: Params
    c: Params
    round: Tensor


class Client(NamedTuple):
    """A client's control variate, and how often it took part."""

    c_i: Params
    participations: Tensor


class Up(NamedTuple):
    """Upload: the changes of the local model and of the control variate."""

    delta_y: Params
    delta_c: Params


@dataclass(frozen=True)
class Scaffold(LocalSgd[Server, Client, Server, Up], name="scaffold", takes_mean=True, carries_statistics=True):
    uplink: Uplink = Uplink(client=())  # uniform weights

    def init(self, task: Task, key: Key) -> Server:
        x = task.init(key)
        return Server(x, tree.zeros_like(x), torch.tensor(0))

    def init_client(self, task: Task) -> Client:
        return Client(tree.zeros_like(task.init(0)), torch.tensor(0))

    def broadcast(self, s: Server) -> Server:
        return s

    def zero(self, task: Task, down: Server) -> Up:
        return Up(tree.zeros_like(down.x), tree.zeros_like(down.x))

    def local(self, task: Task, down: Server, client: Client, shard: Shard, key: Key) -> tuple[Up, Client]:
        x, c, c_i = down.x, down.c, client.c_i
        eta = self.rate(down.round, client.participations)
        walk, correction = self.walk(x, eta, statistics=task.statistics), tree.sub(c, c_i)
        for batch in shard.batches(self.work, key):
            walk(tree.axpy(1.0, batch.grad(task.losses, walk.y), correction), batch.live)  # line 10
        y, eta = walk.y, eta / (1 - self.momentum)  # how far a constant gradient moves it in a step
        c_plus = tree.map(lambda ci, c, x, y: ci - c + (x - y) / (walk.steps * eta), c_i, c, x, y)  # line 12, option II
        return Up(tree.sub(y, x), tree.sub(c_plus, c_i)), Client(c_plus, client.participations + 1)  # lines 13, 14

    def change(self, upload: Up) -> Params | None:
        return upload.delta_y

    def update(self, s: Server, r: Received[Up], home: Home) -> Server:
        return Server(
            x=tree.axpy(self.server_lr, r.mean.delta_y, s.x),  # line 16
            c=tree.axpy(r.participation, r.mean.delta_c, s.c),  # line 17: |S|/N
            round=s.round + 1,
        )
