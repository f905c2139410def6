"""Checks of a training function of the user's own, `train(model, rows, round)`, on random rows of two clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch

from sordino import keys, tree
from sordino.algorithms.fedavg import Server
from sordino.algorithms.trainer import Trainer
from sordino.checks import models
from sordino.checks.trial import require
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.handed import Handed
from sordino.types import Examples, Grant, Params

if TYPE_CHECKING:
    from sordino.checks.parts import PartTrial

ROWS = 40
MODEL = "model.name"  # the setting that names its network


def _changes(trial: PartTrial, *clients: int, process: Literal["fresh", "shared"] = "fresh") -> Iterator[Params]:
    """The change of the network that each of these clients uploads, one after another."""
    task = models.task_of(replace(trial, name=str(trial.options.get(MODEL, "logistic")), options={}))
    method, down = Trainer(trial.name, Handed(process)), Server(task.init(0), torch.tensor(1))
    for k in clients:
        rows = Examples(models.rows_of(trial.inputs, k, ROWS), torch.arange(ROWS) % max(2, task.classes))
        shard = method.read.open(rows, Grant(k, ROWS, ROWS, Counter(0)), task)
        yield method.local(task, down, (), shard, keys.fold(keys.root(1), k))[0].delta


def trains(trial: PartTrial) -> None:
    for change in _changes(trial, 0):
        require(tree.finite(change), "it returns numbers that are not finite", "lower the step size")
        fix = "train in place, or return the values that were trained; look for parameters that are frozen or detached"
        require(any(bool(part.any()) for part in change.values()), "the network that it returns has not changed", fix)


def repeats(trial: PartTrial) -> None:
    (one,), (other,) = (list(_changes(trial, 0)) for _ in range(2))
    fix = "draw from Python's, NumPy's or torch's global generator, which are seeded; not from the clock or the system"
    require(not tree.norm(tree.sub(one, other)), "the same rows and seeds give another network", fix)


def forgets(trial: PartTrial) -> None:
    (alone,) = _changes(trial, 1)  # first: what this process remembers, its forks remember, too
    _, behind = _changes(trial, 0, 1, process="shared")
    fix = "keep nothing between calls; where that cannot be helped, leave read.process at fresh"
    require(not tree.norm(tree.sub(alone, behind)), "a client gets another network behind another client", fix)
