"""Ditto. Li, Hu, Beirami and Smith, "Ditto: Fair and robust federated learning through personalization", ICML 2021,
Algorithm 1, with FedAvg as the global method.

Beside taking part in FedAvg, every client trains a personal model, which is pulled towards the global one and never
leaves the client. Clients are evaluated on these models.

Deviations: v_k starts as the first model that the client receives; it takes as many steps as the global model, with
`personal_lr` constant. The client reads its examples twice in a round, so a reader that charges for each pass is
refused: noise belongs on the uplink, through which v_k never goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from sordino import keys, tree
from sordino.algorithms import fedavg
from sordino.algorithms.fedavg import FedAvg, Server, Up
from sordino.errors import NOT_NEGATIVE, POSITIVE, PrivacyError, check_range
from sordino.keys import Key
from sordino.tasks.personalise import OwnModels, plain
from sordino.types import Params, Scorer, Shard, Task, Tensor


class Client(NamedTuple):
    """A client's own model, and how often it took part."""

    v: Params
    participations: Tensor


@dataclass(frozen=True)
class Ditto(FedAvg, OwnModels, name="ditto", takes_mean=True):
    pull: float = 1.0  # lambda
    personal_lr: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("pull", self.pull, NOT_NEGATIVE, "not-positive")
        check_range("personal_lr", self.personal_lr, POSITIVE, "not-positive")
        if self.read.offer() is not None:
            raise PrivacyError(
                "ditto with a reader that adds noise",
                why="ditto reads a client's examples twice in a round, and such a reader is paid for one pass",
                fix="put the noise into the uplink: the clients' own models never pass through it",
                code="read-beyond-reservation",
            )

    def init_client(self, task: Task) -> Any:
        return Client(tree.zeros_like(task.init(0)), torch.tensor(0))

    def local(self, task: Task, down: Server, c: Any, shard: Shard, key: Key) -> tuple[Up, Any]:
        up, _ = super().local(task, down, fedavg.Client(c.participations), shard, key)
        own = self.walk(self.model_of(c, down.x), self.personal_lr)
        for batch in shard.batches(self.work, keys.fold(key, "personal")):
            g = batch.grad(task.losses, own.y)
            # v <- v - eta (grad F(v) + lambda (v - w))
            own(tree.axpy(self.pull, tree.sub(own.y, down.x), g), batch.live)
        return up, Client(tree.formed(own.y), c.participations + 1)

    def personal(self, task: Task, params: Params, c: Any, shard: Shard) -> Scorer:
        return plain(task, self.model_of(c, params), shard)

    def model_of(self, c: Client, shared: Params) -> Params:
        """A client's own model; before its first round it is the shared one."""
        return c.v if c.participations > 0 else shared

    def passes(self, size: int) -> float:
        return 2 * super().passes(size)
