"""FedProx as your own algorithm: FedAvg whose local step is pulled back to the model the round began with (Li et al.,
MLSys 2020).

The pull reads no data, so it costs no privacy: whatever gates you put on FedAvg hold here too.
"""

from dataclasses import dataclass

from sordino import tree
from sordino.algorithms.fedavg import FedAvg
from sordino.types import Params


@dataclass(frozen=True)
class FedProx(FedAvg):
    mu: float = 0.01  # a field is a parameter: algorithm.mu=0.1 on the command line

    def direction(self, g: Params, y: Params, x: Params) -> Params:
        return tree.axpy(self.mu, tree.sub(y, x), g)  # g + mu (y - x): gradient, local model, model of the round
