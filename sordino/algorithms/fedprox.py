"""FedProx. Li et al., MLSys 2020, Algorithm 2, with the inexact solver being `local_epochs` of SGD.

Deviations: none. The proximal gradient mu (w - w^t) reads no data, so it is added after clip and noise, and costs no
privacy.
"""

from __future__ import annotations

from dataclasses import dataclass

from sordino import tree
from sordino.algorithms.fedavg import FedAvg
from sordino.errors import NOT_NEGATIVE, check_range
from sordino.types import Params


@dataclass(frozen=True)
class FedProx(FedAvg, name="fedprox", takes_mean=True, carries_statistics=True):
    mu: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("mu", self.mu, NOT_NEGATIVE, "not-positive", why="it weighs the proximal term")

    def direction(self, g: Params, y: Params, x: Params) -> Params:
        return tree.axpy(self.mu, tree.sub(y, x), g) if self.mu else g  # grad F_k(w) + mu (w - w^t)
