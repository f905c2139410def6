"""UDP. Wei et al., "User-level privacy-preserving federated learning", IEEE TMC 2022, as compared in Li, Xiao and Chen
2024: FedAvg + clip to a median norm + noise.

Deviations: the median is that of the round before; by default the update is clipped, where the original clips the
model. As published it proves nothing, and its results say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from sordino import tree
from sordino.algorithms.fedavg import Client, FedAvg, Server, Up
from sordino.algorithms.optional import Home, OtherReads
from sordino.algorithms.preset import preset, recast
from sordino.keys import Key
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.as_published import Discounted, UserLevel
from sordino.tasks.personalise import training_loss
from sordino.types import Params, Received, Shard, Task, Tensor


class UpWithLoss(NamedTuple):
    """Upload: the change of the local model, and the loss on the examples of the client."""

    delta: Params
    loss: Tensor


@dataclass(frozen=True)
class WholeModel(FedAvg):
    """FedAvg that uploads the model, not its change; a clip to norm 1, as published, then shrinks the model itself."""

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: Key) -> tuple[Up, Client]:
        up, c = super().local(task, down, c, shard, key)
        return Up(tree.add(down.x, up.delta)), c

    def update(self, s: Server, r: Received[Up], home: Home) -> Server:
        mean = r.mean.delta if r.participation else s.x
        x = mean if self.server_lr == 1 else tree.axpy(self.server_lr, tree.sub(mean, s.x), s.x)
        return Server(x, s.round + 1)


@dataclass(frozen=True)
class FedAvgWithLoss(FedAvg, OtherReads):
    """FedAvg whose clients upload their training loss too, by which UDP with `discount` shortens the number of rounds
    that its noise is sized for.
    """

    wants = "single examples"  # adds up their losses

    def zero(self, task: Task, down: Server) -> Any:
        return UpWithLoss(tree.zeros_like(down.x), next(iter(down.x.values())).new_zeros(()))

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: Key) -> tuple[Any, Client]:
        up, c = super().local(task, down, c, shard, key)
        return UpWithLoss(up.delta, training_loss(task, down.x, shard).to(next(iter(down.x.values())).dtype)), c


@preset(FedAvg(lr_decay=0.997, local_steps=25, batch_size=50, weight_decay=1e-3, most_grad=10.0))
def udp(
    base: FedAvg,
    epsilon: float = 10.0,
    delta: float = 1e-5,
    clip: float | None = None,
    first: float = 1.0,
    per: Literal["records", "batch"] = "records",
    horizon: int | None = None,
    discount: bool = False,
    clip_target: Literal["update", "model"] = "update",
    cohort_rate: float = 0.1,
    *,
    batch_size: int,
) -> FedAvg:
    """FedAvg whose clients clip and noise what they upload. `epsilon` is the paper's number, not a budget. Noise is
    sized for `horizon` rounds; with `discount` the horizon shrinks after each round in which the training loss did not.
    """
    stage = Discounted if discount else UserLevel
    noise = stage(epsilon, delta, clip, first, per, batch_size, cohort_rate, horizon)
    kind = FedAvgWithLoss if discount else WholeModel if clip_target == "model" else FedAvg
    return recast(kind, base).behind(uplink=Uplink(client=(noise,)))
