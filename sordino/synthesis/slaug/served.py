"""SlaugFL in which the server computes the prototypes of generated images. SlaugFL, IEEE Transactions on Mobile
Computing, 2024, "privacy-free" prototypes.

These prototypes depend only on the uploaded model and on images that the generator draws with a public key, so devices
need not send them. This costs the server a pass over all generated images of a round, and needs an uplink that shows it
each model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from sordino import keys, tree
from sordino.algorithms.optional import Home, PerClientMessages
from sordino.errors import ConfigError
from sordino.keys import Key
from sordino.privacy.readers.class_sums import class_sums
from sordino.privacy.uplink.stages import Weigh
from sordino.synthesis.slaug.training import Calibrated, Server, State, Up
from sordino.types import Params, Received, Shard, Task

if TYPE_CHECKING:
    from torch import Tensor


class Holding(NamedTuple):
    """State of the server between rounds."""

    x: Params
    prototypes: Tensor
    known: Tensor
    round: Tensor
    generator: Params
    learned: Tensor


class Told(NamedTuple):
    x: Params
    prototypes: Tensor
    known: Tensor
    round: Tensor
    device: Tensor  # its number


class Model(NamedTuple):
    delta: Params
    device: Tensor


@dataclass(frozen=True)
class Served(Calibrated[Holding, Any, Model], PerClientMessages, carries_statistics=True):
    reads_each = True

    def __post_init__(self) -> None:
        super().__post_init__()
        changed = [stage for stage in self.uplink.client if not isinstance(stage, Weigh)]
        if changed or self.uplink.server:
            raise ConfigError(
                'proto_upload = "server_side" with an uplink that changes the uploads',
                why="the server computes prototypes from the unchanged model of each client, and must know which "
                "client sent it",
                fix='set proto_upload = "devices", or leave the uplink out',
                code="server-side-needs-models",
            )

    def init(self, task: Task, key: Key) -> Holding:
        from sordino.synthesis.generators import nets

        learned = torch.ones(task.labels, dtype=torch.uint8)
        return Holding(*self.start(task, key), nets.init(self._shape, 0), learned)

    def begin(self, task: Task, key: Key, before: Any, home: Home) -> Holding:
        return Holding(*self.start(task, key), before.generator, before.learned)

    def broadcast(self, s: Holding) -> Server:
        return Server(*s[:4])

    def per_client_message(self, down: Server, client: int) -> Told:
        return Told(*down, torch.tensor(float(client)))

    def zero(self, task: Task, down: Server) -> Model:
        return Model(tree.zeros_like(down.x), torch.tensor(0.0))

    def local(self, task: Task, down: Told, c: State, shard: Shard, key: Key) -> tuple[Model, State]:
        y, after = self.trained(task, down, c, shard, key)
        return Model(tree.sub(y, down.x), down.device), after

    def update(self, s: Holding, r: Received[Model], home: Home) -> Holding:
        task, handed = home.task, self.public_tensors(s, home)
        sums, counts = s.prototypes.new_zeros(s.prototypes.shape).double(), torch.zeros(len(s.known)).double()
        sizes = home.sizes
        for up in r.each:
            if not (tree.finite(up) and 0 <= (k := round(float(up.device))) < len(sizes)):
                continue  # not the model of a client
            model = tree.add(s.x, up.delta)
            images = self.public_examples(task, handed, sizes[k], keys.fold(home.key, "equip", k))
            mine, many = class_sums(partial(self._features, task, model), images, task.labels)
            sums, counts = sums + mine, counts + many
        after = self.advanced(s, Up(r.mean.delta, sums.float(), counts.float()))
        return Holding(*after, s.generator, s.learned)
