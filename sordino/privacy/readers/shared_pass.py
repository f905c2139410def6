"""Clients that read at the same weights share one pass over the network; their clipped sums stay apart.

In a round of one noised full-batch step every client of the cohort computes at the broadcast weights. One forward and
one backward pass over the rows of many clients then costs much less than one pass for each. Nothing crosses between
clients: each example is clipped by its own norm, each client's sum is over its own rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from sordino import tree
from sordino.tree import Tree
from sordino.types import Examples, Params, Task

if TYPE_CHECKING:
    from sordino.privacy.readers.per_example_gradients import Sides


class SharedPass:
    """A few clients of one round, in order. The first one that reads computes the pass for all of them."""

    def __init__(self, task: Task, clients: Mapping[int, Examples], down: Tree) -> None:
        self._task, self._clients = task, clients
        # only where everybody starts: after a step of its own, each stands somewhere else
        self._start = {id(leaf): leaf._version for leaf in tree.leaves(down)}
        self._down = down  # kept alive as long as its ids are compared
        self._sides: Sides | None = None
        self._clip = (0.0, 0)

    def sum(self, client: int, params: Params, clip: float, order: int) -> Params | None:
        """The client's sum of clipped gradients at `params`; None where the weights or the clip are not those of the
        shared pass, so that the client must compute it alone.
        """
        if any(id(value) not in self._start or self._start[id(value)] != value._version for value in params.values()):
            return None
        if self._sides is None:
            x, y = (torch.cat(parts) for parts in zip(*self._clients.values(), strict=True))
            self._sides, self._clip = self._task.pooled(params, x, y, clip, order), (clip, order)
        if self._clip != (clip, order):
            return None
        start = 0
        for other, examples in self._clients.items():
            if other == client:
                return self._sides.sum(params, slice(start, start + len(examples.y)))
            start += len(examples.y)
        raise KeyError(client)
