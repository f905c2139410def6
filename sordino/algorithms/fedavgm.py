"""FedAvgM. Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution for federated visual
classification", 2019 (arXiv 1909.06335): FedAvg with a momentum at the server.

It reads no upload but the mean that FedAvg reads, so it costs no privacy.

Deviations: `server_lr` scales the step along the momentum (1 in the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from sordino import tree
from sordino.algorithms import fedavg
from sordino.algorithms.algorithm import Home
from sordino.algorithms.fedavg import FedAvg, Up
from sordino.errors import ConfigError
from sordino.keys import Key
from sordino.types import Params, Received, Task

if TYPE_CHECKING:
    from torch import Tensor


class Server(NamedTuple):
    x: Params
    v: Params
    round: Tensor


@dataclass(frozen=True)
class FedAvgM(FedAvg, name="fedavgm"):
    server_momentum: float = 0.9  # beta

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.server_momentum < 1:
            raise ConfigError(
                f"server_momentum is {self.server_momentum}",
                why="it must be at least 0 and below 1",
                code="momentum-out-of-range",
            )

    def init(self, task: Task, key: Key) -> Any:
        x = task.init(key)
        return Server(x, tree.zeros_like(x), torch.tensor(0))

    def broadcast(self, s: Any) -> fedavg.Server:
        return fedavg.Server(s.x, s.round)  # the momentum stays at the server

    def update(self, s: Any, r: Received[Up], home: Home) -> Any:
        v = tree.axpy(self.server_momentum, s.v, r.mean.delta)  # v <- beta v + mean update
        return Server(tree.axpy(self.server_lr, v, s.x), v, s.round + 1)  # w <- w + v
