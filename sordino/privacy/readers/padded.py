"""Clients of different sizes in one call: the rows of each, and behind them rows that are nobody's.

How many rows are a client's own is a number that only tensors know, so all clients of a stack take as many steps as the
largest one. Rows that are nobody's weigh nothing in a gradient; a step without any row of the client's own is none of
its steps (`live`), and its weights stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from sordino import keys
from sordino.errors import PrivacyError
from sordino.keys import Key
from sordino.lazy import Ready, take
from sordino.privacy.readers.covered import Covered
from sordino.privacy.readers.open import Open, effort
from sordino.types import Losses, Params, Work

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class PaddedShard(Covered[Open]):
    """One client of such a stack. It answers what a local step asks for; whatever else is asked for ends the stack."""

    rows: Tensor = field(repr=False, kw_only=True)  # of the client's own, first of all

    def refused(self, what: str) -> PrivacyError:
        raise AssertionError(f"an algorithm whose clients may be of unequal size asked for {what}")

    @property
    def size(self) -> int:
        raise RuntimeError("clients of a stack have different sizes")

    def batches(self, work: Work, key: Key) -> Iterator[PaddedBatch]:
        mine, (x, y) = effort(work, self._grant), self._examples
        most, size = len(y), mine.batch_size
        if mine.epochs is None or size is None:
            raise RuntimeError("steps that are not counted in epochs differ between clients of different sizes")
        slots, empty = torch.arange(most), torch.iinfo(torch.int64).max
        for epoch in range(mine.epochs):
            # those that are nobody's come last, and the others as they come without them
            drawn = keys.bits(keys.fold(key, "epoch", epoch), most)
            order = torch.where(slots < self.rows, drawn, empty).argsort(stable=True)
            if epoch == 0:  # all together, in the order in which the first epoch reads them
                ready = x_all, y_all = self._task.ready(take(x, order), y[order], whole=True)
                place = order.argsort()
            else:
                now = place[order]
                ready = x_all[now], y_all[now]
            for start in range(0, most, size):
                part = slice(start, min(start + size, most))
                own = (slots[part] < self.rows).to(torch.float32)
                live = start < self.rows
                share = own / (self.rows - start).clamp(1, size)
                yield PaddedBatch(self, (ready[0][part], ready[1][part]), share, live)


@dataclass(slots=True, eq=False, repr=False)
class PaddedBatch:
    _shard: PaddedShard
    _ready: tuple[Ready, Tensor]
    _share: Tensor  # of each row in the mean
    live: Tensor

    def grad(self, losses: Losses, params: Params) -> Params:
        task = self._shard._task
        if losses != task.losses:
            raise RuntimeError("a loss of an algorithm's own is asked of each client alone")
        return task.gradient(params, *self._ready, torch.Tensor, self._share)
