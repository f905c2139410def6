"""SlaugFL's preparation without a model or a prototype of any device: every one sends sums of features, one row per class, and the server adds them up.

The extractor is public: trained on candidates, or stored. Features are projected, and of length 1 each; what makes a generator is the direction of a class's sum. With
`ClassSums` as its reader all that a device sends is one Gaussian release, differentially private for each of its examples towards everybody.

Deviations from SlaugFL (IEEE Transactions on Mobile Computing, 2024): all of this; it is our private form of its selective data collection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from sordino import keys
from sordino.algorithms.local_sgd import LocalSgd
from sordino.algorithms.slaug_generator import PLAIN, Anchor, Made, Recipe, Told, dimensions, given, projected_by, seen
from sordino.errors import ConfigError
from sordino.keys import Key
from sordino.phases import Given
from sordino.tasks.pretrained import fitted, stored
from sordino.types import Params, Received, Shard, Task
from sordino.uplink import Uplink


class Pooled(NamedTuple):
    x: Params  # of the extractor
    directions: Tensor  # [classes, project]
    generator: Params
    kept: Tensor
    learned: Tensor
    log: Tensor
    done: Tensor


class Sums(NamedTuple):
    sums: Tensor  # per class, of features of length 1


@dataclass(frozen=True)
class Pool(LocalSgd):
    """No model of a device leaves it, and no labelled examples are needed: sums of features through a network that was trained on candidates, or stored."""

    uplink: Uplink = PLAIN
    recipe: Recipe = Recipe()
    project: int = 32
    extractor: str | None = None  # safetensors of a public model
    _given: Given | None = field(default=None, repr=False, compare=False)
    name: ClassVar[str] = "pool"
    wants: ClassVar[str] = "sums"
    rounds: ClassVar[int] = 1

    def sized(self, shape: tuple[int, ...], classes: int) -> Pool:
        return replace(self, recipe=self.recipe.sized(shape, classes))

    def warns(self) -> list[str]:
        return self.recipe.warns(given(self).story)

    def check(self) -> None:
        self.recipe.check(given(self))
        if self.extractor is not None:
            stored(given(self).task, self.extractor)
        elif given(self).candidates is None:
            raise ConfigError(
                "sums of features without an extractor",
                why="it is trained on candidates, or was trained before on public data",
                fix="a [candidates] table, or algorithm.extractor = a model.safetensors",
                code="no-extractor",
            )

    def init(self, task: Task, key: Key) -> Pooled:
        empty = torch.zeros(task.labels, dimensions(self, task))
        return Pooled(task.init(key), empty, *self.recipe.template(), torch.tensor(False))

    def begin(self, task: Task, key: Key, before: Any) -> Pooled:
        candidates = given(self).candidates if self.extractor is None else None
        if self.extractor is not None:
            psi = stored(task, self.extractor)
        else:
            assert candidates is not None, "checked before the run"
            batch = self.work.batch(len(candidates.y))
            psi = fitted(task, candidates, self.local_epochs or 1, batch, self.lr, self.momentum, keys.fold(key, "psi"))
        return self.init(task, key)._replace(x=psi)

    def over(self, s: Pooled) -> bool:
        return bool(s.done)

    def init_client(self, task: Task) -> tuple[()]:
        return ()

    def broadcast(self, s: Pooled) -> Told:
        return Told(s.x)

    def zero(self, down: Told) -> Sums:
        task = given(self).task
        return Sums(torch.zeros(task.labels, dimensions(self, task)))

    def passes(self, size: int) -> float:
        return size / 3

    def local(self, task: Task, down: Told, c: Any, shard: Shard, key: Key) -> tuple[Sums, Any]:
        sums, _ = shard.by_class(lambda x: seen(task, down.x, x, projected_by(self)), task.labels)
        return Sums(sums.float()), c

    def update(self, s: Pooled, r: Received[Sums]) -> Pooled:
        directions = torch.nn.functional.normalize(r.mean.sums, dim=1)
        task, matrix = given(self).task, projected_by(self)
        anchors = [Anchor(label, directions[label], task, s.x, matrix) for label in range(task.labels)]
        made = self.recipe.make(given(self), anchors)
        return Pooled(s.x, directions, *made, torch.tensor(True))

    def tables(self, s: Pooled) -> dict[str, list[dict[str, Any]]]:
        return self.recipe.tables(Made(s.generator, s.kept, s.learned, s.log))

    def models(self, s: Pooled) -> Mapping[str, Params]:
        return {"global": s.x}
