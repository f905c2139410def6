"""FedOpt: FedAvg with an optimiser at the server. Reddi et al., "Adaptive federated optimization", ICLR 2021,
Algorithm 2: FedAdagrad, FedAdam and FedYogi. `momentum` is FedAvgM (Hsu, Qi and Brown 2019, arXiv 1909.06335), and with
`beta1 = 0` FedAvg.

The optimiser treats the mean update as its gradient and uses nothing else, so it costs no privacy. `server_lr` is eta,
`tau` the paper's degree of adaptivity: v starts at tau^2. There is no bias correction, as printed.

Deviations: none; the paper runs FedAdagrad with `beta1 = 0`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from sordino import tree
from sordino.algorithms import fedavg
from sordino.algorithms.fedavg import FedAvgClients, Up
from sordino.algorithms.optional import Home
from sordino.errors import BELOW_ONE, POSITIVE, check_range
from sordino.keys import Key
from sordino.types import Params, Received, Task, Tensor


class Server(NamedTuple):
    """The server's state: the model, and the moments of its optimiser."""

    x: Params
    m: Params  # momentum of mean updates
    v: Params  # second moment of each coordinate; empty with `momentum`
    round: Tensor


@dataclass(frozen=True)
class FedOpt(FedAvgClients[Server], name="fedopt", takes_mean=True):
    server_optimizer: Literal["momentum", "adagrad", "adam", "yogi"] = "adam"
    server_lr: float = 0.03
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta1", "beta2"):
            check_range(name, getattr(self, name), BELOW_ONE, "momentum-out-of-range")
        check_range("tau", self.tau, POSITIVE, "not-positive")

    def init(self, task: Task, key: Key) -> Server:
        x = task.init(key)
        v = {} if self.server_optimizer == "momentum" else tree.map(lambda w: torch.full_like(w, self.tau**2), x)
        return Server(x, tree.zeros_like(x), v, torch.tensor(0))

    def broadcast(self, s: Server) -> fedavg.Server:
        return fedavg.Server(s.x, s.round)  # the optimiser's state stays at the server

    def update(self, s: Server, r: Received[Up], home: Home) -> Server:
        delta, v = r.mean.delta, s.v
        if self.server_optimizer == "momentum":
            m = step = tree.axpy(self.beta1, s.m, delta)
        else:
            m = tree.map(lambda m, d: self.beta1 * m + (1 - self.beta1) * d, s.m, delta)
            v = tree.map(self.second_moment, v, delta)
            step = tree.map(lambda m, v: m / (v.sqrt() + self.tau), m, v)
        return Server(tree.axpy(self.server_lr, step, s.x), m, v, s.round + 1)

    def second_moment(self, v: Tensor, delta: Tensor) -> Tensor:
        square = delta * delta
        if self.server_optimizer == "adagrad":
            return v + square
        if self.server_optimizer == "adam":
            return self.beta2 * v + (1 - self.beta2) * square
        return v - (1 - self.beta2) * square * torch.sign(v - square)  # Yogi
