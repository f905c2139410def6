"""Selective data collection: ranking of devices by class, and of candidates (public images) by distance to prototypes.
SlaugFL, IEEE Transactions on Mobile Computing, 2024.

`recall` alone, as published, is maximised by a model that assigns everything to one class; `f1` counts its precision
too.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sordino import keys
from sordino.keys import Key
from sordino.types import Examples, Params, Task

Rank = Literal["f1", "recall"]
ROWS = 256


class ClassScores(NamedTuple):
    """Scores of one model on labelled examples, class by class."""

    recall: Tensor
    f1: Tensor
    confidence: Tensor  # mean probability of the class on its examples


def skill(task: Task, params: Params, probe: Examples) -> ClassScores:
    logits = torch.cat([task.predict(params, rows) for rows in torch.split(probe.x, ROWS)])[:, : task.labels]
    chosen, sure = logits.argmax(1), logits.softmax(1)
    own = torch.bincount(probe.y, minlength=task.labels).double()
    right = torch.bincount(probe.y[chosen == probe.y], minlength=task.labels).double()
    said = torch.bincount(chosen, minlength=task.labels).double()
    given = torch.zeros(task.labels, dtype=torch.float64).index_add(
        0, probe.y, sure.gather(1, probe.y[:, None])[:, 0].double()
    )
    return ClassScores(right / own.clamp_min(1), 2 * right / (own + said).clamp_min(1), given / own.clamp_min(1))


def ranked(score: Tensor, confidence: Tensor) -> Tensor:
    """Device numbers [devices, classes], for each class from best to worst, by score, then confidence, then number."""
    order = torch.arange(len(score)).expand(score.shape[1], -1)
    for column in (confidence, score):  # stable sorts, the least important first
        order = order.gather(1, column.T.gather(1, order).argsort(dim=1, descending=True, stable=True))
    return order.T.contiguous()


def distances(z: Tensor, prototype: Tensor) -> Tensor:
    """Cosine distance, 1 - cosine, of features to a prototype."""
    return 1 - torch.nn.functional.cosine_similarity(z.double(), prototype.double()[None], dim=1)


def nearest(distance: Tensor, keep: int) -> Tensor:
    """Indices of the `keep` smallest values, in rising order; all where there are fewer."""
    return distance.argsort(stable=True)[:keep].sort().values


def some(count: int, most: int, key: Key) -> Tensor:
    """Sample without replacement: `most` random numbers below `count`, or all of them if there are fewer."""
    return keys.permutation(key, count)[:most]


def requests(classes: int, count: int, key: Key) -> tuple[Tensor, Tensor]:
    """Class of each of `count` prototypes to request, and the rank of the device to ask first. With fewer than one for
    each class, random classes are left out; additional ones go to the next-best devices of random classes."""
    mixed = keys.permutation(keys.fold(key, "slots"), classes)
    if count <= classes:
        chosen = torch.arange(classes) if count == classes else mixed[:count].sort().values
        return chosen, torch.zeros(count, dtype=torch.int64)
    more = mixed.repeat(-(-count // classes))[: count - classes]
    again = torch.tensor([1 + int((more[:i] == label).sum()) for i, label in enumerate(more.tolist())])
    return torch.cat([torch.arange(classes), more]), torch.cat([torch.zeros(classes, dtype=torch.int64), again])
