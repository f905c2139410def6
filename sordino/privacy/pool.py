"""Clients that read at the same weights share one pass over the network; their clipped sums stay apart.

In a round of one noised full-batch step every client of the cohort stands at the broadcast. One forward and one backward pass over the rows of
many clients then costs much less than one pass for each. Nothing crosses between clients: each example is clipped by its own norm, each client's
sum is over its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from sordino.privacy.per_example import Sides
from sordino.types import Examples, Params, Task

ROWS = 4096  # of one pass


class Pool:
    """The clients that this process will train in one round, in order."""

    def __init__(self, task: Task, clients: Sequence[int], examples: Callable[[int], Examples]) -> None:
        self._task, self._left, self._examples = task, list(clients), examples
        self._at: list[tuple[int, int]] = []  # the weights of the last pass
        self._sides: Sides | None = None
        self._rows: dict[int, slice] = {}

    def sum(self, client: int, params: Params, clip: float, order: int) -> Params | None:
        """The client's sum of clipped gradients at `params`; None where this network cannot be pooled."""
        at = [(id(value), value._version) for value in params.values()]
        if at != self._at or client not in self._rows:
            self._at = at
            self._pass(client, params, clip, order)
        rows = self._rows.pop(client)
        return None if self._sides is None else self._sides.sum(params, rows)

    def _pass(self, client: int, params: Params, clip: float, order: int) -> None:
        together, count = [self._examples(client)], 1
        self._left = [k for k in self._left if k != client]
        self._rows = {client: slice(0, len(together[0].y))}
        end = len(together[0].y)
        for k in self._left:
            if end >= ROWS:
                break
            together.append(self._examples(k))
            self._rows[k] = slice(end, end + len(together[-1].y))
            end, count = self._rows[k].stop, count + 1
        self._left = self._left[count - 1 :]
        self._params = params  # alive as long as its ids are compared
        x, y = torch.cat([e.x for e in together]), torch.cat([e.y for e in together])
        self._sides = self._task.pooled(params, x, y, clip, order)
