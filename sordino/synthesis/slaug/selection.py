"""Selective data collection: which device knows a class best, and which candidates look most like what it saw. SlaugFL,
IEEE Transactions on Mobile Computing, 2024.

`recall` alone, as published, is maximised by a model that says one class of everything; `f1` asks that what it calls so
is so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from sordino import keys
from sordino.keys import Key
from sordino.types import Examples, Params, Task

if TYPE_CHECKING:
    from torch import Tensor


Rank = Literal["f1", "recall"]
ROWS = 256


class Skill(NamedTuple):
    """What one model can do on labelled examples, class by class."""

    recall: Tensor
    f1: Tensor
    confidence: Tensor  # mean probability that it gives to the class on examples of the class


def skill(task: Task, params: Params, probe: Examples) -> Skill:
    logits = torch.cat([task.predict(params, rows) for rows in torch.split(probe.x, ROWS)])[:, : task.labels]
    chosen, sure = logits.argmax(1), logits.softmax(1)
    own = torch.bincount(probe.y, minlength=task.labels).double()
    right = torch.bincount(probe.y[chosen == probe.y], minlength=task.labels).double()
    said = torch.bincount(chosen, minlength=task.labels).double()
    given = torch.zeros(task.labels, dtype=torch.float64).index_add(
        0, probe.y, sure.gather(1, probe.y[:, None])[:, 0].double()
    )
    return Skill(right / own.clamp_min(1), 2 * right / (own + said).clamp_min(1), given / own.clamp_min(1))


def ranked(score: Tensor, confidence: Tensor) -> Tensor:
    """The devices [devices, classes] from the best of each class to the worst: by score, then by confidence, then by
    the lower number.
    """
    order = torch.arange(len(score)).expand(score.shape[1], -1)
    for column in (confidence, score):  # stable sorts, the least important first
        order = order.gather(1, column.T.gather(1, order).argsort(dim=1, descending=True, stable=True))
    return order.T.contiguous()


def distances(z: Tensor, prototype: Tensor) -> Tensor:
    """The cosine distance, 1 - cosine, of features to a prototype."""
    return 1 - torch.nn.functional.cosine_similarity(z.double(), prototype.double()[None], dim=1)


def nearest(distance: Tensor, keep: int) -> Tensor:
    """The numbers of the `keep` smallest values, in rising order; all where there are fewer."""
    return distance.argsort(stable=True)[:keep].sort().values


def some(count: int, most: int, key: Key) -> Tensor:
    """A few different random numbers below `count`."""
    return keys.permutation(key, count)[:most]


def requests(classes: int, count: int, key: Key) -> tuple[Tensor, Tensor]:
    """The class of each of `count` prototypes, and the rank at which one begins to ask: every class once. With fewer
    prototypes than classes random classes, with more also the runners-up of random classes.
    """
    mixed = keys.permutation(keys.fold(key, "slots"), classes)
    if count <= classes:
        chosen = torch.arange(classes) if count == classes else mixed[:count].sort().values
        return chosen, torch.zeros(count, dtype=torch.int64)
    more = mixed.repeat(-(-count // classes))[: count - classes]
    again = torch.tensor([1 + int((more[:i] == label).sum()) for i, label in enumerate(more.tolist())])
    return torch.cat([torch.arange(classes), more]), torch.cat([torch.zeros(classes, dtype=torch.int64), again])
