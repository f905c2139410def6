"""FedAvg with a contrastive loss on class prototypes: FedAvg-1 and FedAvg-2, which motivate SlaugFL (IEEE Transactions
on Mobile Computing, 2024).

Prototypes come from candidates, public images that all clients hold (`candidates`, FedAvg-1), or from the clients' own
examples (`local`, FedAvg-2), whose means the uploads then reveal. Nothing else of the candidates is used.

Deviations: the paper specifies only where the prototypes come from; the contrast is SlaugFL's, on the class means of a
client's own batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sordino.algorithms.optional import ChecksServer, Home
from sordino.errors import ConfigError
from sordino.keys import Key
from sordino.synthesis.slaug.training import SlaugFL
from sordino.types import Examples, Params, Shard, Task, Use

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class FedAvgPrototypes(SlaugFL, ChecksServer, name="fedavg_prototypes", carries_statistics=True):
    prototypes_of: Literal["candidates", "local"] = "candidates"
    synthetic: float = 0.0

    how = 0  # no training on candidates

    @property
    def wants(self) -> Use:
        return "single examples" if self.prototypes_of == "local" else super().wants

    def check(self, home: Home) -> None:
        if home.candidates is None:
            raise ConfigError(
                "an algorithm with prototypes needs candidates",
                why="all clients get the same candidates, and the server has none",
                fix='add a [candidates] table, for example with source = "public_split"',
                code="no-candidates",
            )

    def public_tensors(self, before: Any, home: Home) -> Params:
        found = home.candidates
        assert found is not None, "checked before the run"
        return {"x": found.x, "y": found.y}

    def public_examples(self, task: Task, tensors: Mapping[str, Tensor], size: int, key: Key) -> Examples:
        return Examples(tensors["x"], tensors["y"])

    def prototype_sums(self, task: Task, params: Params, shard: Shard) -> tuple[Tensor, Tensor]:
        if self.prototypes_of == "local":
            return shard.by_class(lambda x: self._features(task, params, x), task.labels)
        return super().prototype_sums(task, params, shard)

    def passes(self, size: int) -> float:
        return (self.work.epochs or 1) * size + size / 3
