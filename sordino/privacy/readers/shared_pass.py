"""Clients that read at the same weights share one pass over the network; their clipped sums stay apart.

In a round of one noised full-batch step every client of the cohort stands at the broadcast. One forward and one
backward pass over the rows of many clients then costs much less than one pass for each. Nothing crosses between
clients: each example is clipped by its own norm, each client's sum is over its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from sordino.types import Examples, Params, Task

if TYPE_CHECKING:
    from sordino.privacy.readers.per_example_gradients import Sides


class SharedPass:
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
            room = self._task.room(params)
            if not room:
                return None
            self._at, self._params = at, params  # kept alive as long as its ids are compared
            self._pass(client, room, clip, order)
        assert self._sides is not None
        return self._sides.sum(params, self._rows.pop(client))

    def _pass(self, client: int, room: int, clip: float, order: int) -> None:
        """For this client and as many of the next ones as there is room for."""
        self._left = [k for k in self._left if k != client]
        together: list[Examples] = []
        self._rows, end = {}, 0
        for k in [client, *self._left]:
            if together and end >= room:
                break
            together.append(self._examples(k))
            self._rows[k] = slice(end, end + len(together[-1].y))
            end = self._rows[k].stop
        self._left = self._left[len(together) - 1 :]
        x, y = torch.cat([e.x for e in together]), torch.cat([e.y for e in together])
        self._sides = self._task.pooled(self._params, x, y, clip, order)
