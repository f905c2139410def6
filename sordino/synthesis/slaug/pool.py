"""Private variant of SlaugFL's preparation: every device sends sums of features by class instead of a model and
prototypes.

The feature extractor is public: trained on candidates, or read from a file. Features are projected and scaled to length
1; the generator is made from the direction of each class's sum. With `ClassSums` as its reader a device sends one
Gaussian release, differentially private for each of its examples against every adversary.

Deviations from SlaugFL (IEEE Transactions on Mobile Computing, 2024): the whole file, which is our private variant of
its selective data collection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor

from sordino import keys
from sordino.algorithms.local_sgd import LocalSgd
from sordino.algorithms.optional import Home, OtherReads, PublicFacts
from sordino.algorithms.phases import Facts, Phase, PhaseMessages
from sordino.errors import ConfigError
from sordino.keys import Key
from sordino.privacy.uplink import Uplink
from sordino.synthesis.slaug.generator import (
    HANDS,
    PLAIN,
    Anchor,
    Broadcast,
    Recipe,
    TrainedGenerator,
    chosen,
    dimensions,
    projected_by,
    seen,
)
from sordino.types import Examples, Params, Received, Shard, Task


class Pooled(NamedTuple):
    """The server's state of the pooled preparation."""

    x: Params  # of the extractor
    directions: Tensor  # [classes, project]
    generator: Params
    kept: Tensor
    learned: Tensor
    log: Tensor
    done: Tensor


class Sums(NamedTuple):
    """Upload of the pooled preparation: sums of features by class."""

    sums: Tensor  # per class, of features of length 1


@dataclass(frozen=True)
class Pool(
    LocalSgd[Pooled, tuple[()], Broadcast, Sums],
    Phase[Pooled, tuple[()], Broadcast, Sums],
    OtherReads,
    carries_statistics=True,
):
    """Phase that needs no model of a device and no labelled examples of the server: sums of features by a public
    network.
    """

    uplink: Uplink = PLAIN
    recipe: Recipe = Recipe()
    project: int = 32
    extractor: str | None = None  # safetensors of a public model
    known: PublicFacts | None = field(default=None, repr=False, compare=False)
    name: ClassVar[str] = "pool"
    wants = "sums"
    rounds: ClassVar[int] = 1

    def fitted(self, known: PublicFacts) -> Pool:
        return replace(self, recipe=self.recipe.fitted(known), known=known)

    def warnings(self, home: Home) -> list[str]:
        return self.recipe.warnings(home.story)

    def check(self, home: Home) -> None:
        self.recipe.check(home)
        if self.extractor is not None:
            stored(home.task, self.extractor)
        elif home.candidates is None:
            raise ConfigError(
                "sums of features need an extractor",
                why="an extractor is trained on candidates, or comes from a file that was trained on public data; "
                "here there is neither",
                fix="add a [candidates] table, or set algorithm.extractor to a model.safetensors file",
                code="no-extractor",
            )

    def init(self, task: Task, key: Key) -> Pooled:
        empty = torch.zeros(task.labels, dimensions(self, task))
        return Pooled(task.init(key), empty, *self.recipe.template(), torch.tensor(False))

    def begin(self, task: Task, key: Key, before: Any, home: Home) -> Pooled:
        candidates = home.candidates if self.extractor is None else None
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

    def broadcast(self, s: Pooled) -> Broadcast:
        return Broadcast(s.x)

    def zero(self, task: Task, down: Broadcast) -> Sums:
        return Sums(torch.zeros(task.labels, dimensions(self, task)))

    def passes(self, size: int) -> float:
        return size / 3

    def local(self, task: Task, down: Broadcast, c: tuple[()], shard: Shard, key: Key) -> tuple[Sums, tuple[()]]:
        sums, _ = shard.by_class(lambda x: seen(task, down.x, x, projected_by(self, task)), task.labels)
        return Sums(sums.float()), c

    def update(self, s: Pooled, r: Received[Sums], home: Home) -> Pooled:
        directions = torch.nn.functional.normalize(r.mean.sums, dim=1)
        task, matrix = home.task, projected_by(self, home.task)
        anchors = [Anchor(label, directions[label], task, s.x, matrix) for label in range(task.labels)]
        made = self.recipe.make(home, anchors)
        return Pooled(s.x, directions, *made, torch.tensor(True))

    def tables(self, s: Pooled) -> dict[str, list[dict[str, object]]]:
        return self.recipe.tables(TrainedGenerator(s.generator, s.kept, s.learned, s.log))

    says = PhaseMessages("a public network, to all clients", "sums of features", HANDS)

    def facts(self, s: Pooled, before: Facts) -> Facts:
        return before._replace(kept=chosen(s.kept))

    def models(self, s: Pooled) -> Mapping[str, Params]:
        return {"global": s.x}


# extractors -----------------------------------------------------------------------------------------------------------


def fitted(task: Task, examples: Examples, epochs: int, batch: int, lr: float, momentum: float, key: Key) -> Params:
    """Weights after some epochs of SGD with momentum on public examples."""
    params, velocity = task.init(keys.fold(key, "init")), None
    for epoch in range(epochs):
        order = keys.permutation(keys.fold(key, "epoch", epoch), len(examples.y))
        for step, rows in enumerate(torch.split(order, batch)):
            x, y = task.ready(examples.x[rows], examples.y[rows])
            draws = keys.bits(keys.fold(key, "draw", epoch, step), len(rows))
            g = task.gradient(params, x, y, lambda draws=draws: draws)  # type: ignore[misc]
            velocity = g if velocity is None else {n: momentum * v + g[n] for n, v in velocity.items()}
            params = {name: p - lr * velocity[name] for name, p in params.items()}
    return params


def stored(task: Task, path: str) -> Params:
    """Weights of the network from a safetensors file."""
    from safetensors.torch import load_file

    wanted = task.init(0)
    try:
        found = load_file(Path(path))
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(
            f"an extractor cannot be read from {path}",
            why=str(error),
            fix="give a model.safetensors file",
            code="no-extractor",
        ) from None
    whole = task.state_dict(wanted)
    if {n: t.shape for n, t in found.items()} != {n: t.shape for n, t in whole.items()}:
        raise ConfigError(
            f"{path} holds another network",
            why="the extractor must have the same layers and sizes as the model",
            fix="train the extractor with the same [model] and as many classes",
            code="extractor-does-not-fit",
        )
    return {name: found[name].to(leaf.dtype) for name, leaf in wanted.items()}
