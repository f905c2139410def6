"""Clients of different sizes stacked in one call: the rows of each client, followed by padding rows; and one pass over
the network for clients that read at the same weights.

The number of a client's own rows is known to tensors only, so all clients of a stack take as many steps as the largest
one. Padding rows have weight 0 in a gradient; a step without any row of the client's own is not one of its steps
(`live`), and leaves its weights unchanged.

In a round of one noised full-batch step every client of the cohort computes at the broadcast weights. One forward and
one backward pass over the rows of many clients then costs much less than one pass for each. Nothing crosses between
clients: each example is clipped by its own norm, each client's sum is over its own rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from sordino import keys, tree
from sordino.errors import PrivacyError
from sordino.fast.factored import Ready, take
from sordino.keys import Key
from sordino.privacy.readers import GuardedShard
from sordino.privacy.readers.open import Open, effort
from sordino.tree import Tree
from sordino.types import Examples, LocalWork, Losses, Params, Task, Tensor


@dataclass
class PaddedShard(GuardedShard[Open]):
    """Examples of one client in a stack (clients computed in one call). It gives the batches of local SGD; any other
    use raises an error, after which the clients are computed one by one.
    """

    rows: Tensor = field(repr=False, kw_only=True)  # of the client's own, first of all
    fewest: int = field(kw_only=True)  # that a client of the stack has

    def refused(self, what: str) -> PrivacyError:
        raise RuntimeError(f"clients of a stack have different sizes, and `local` asks for {what}")

    @property
    def size(self) -> int:
        raise RuntimeError("clients of a stack have different sizes")

    def batches(self, work: LocalWork, key: Key) -> Iterator[PaddedBatch]:
        local, (x, y) = effort(work, self._grant), self._examples
        if self._grant.part is not None:
            raise RuntimeError("a part of one's batches is another number of steps for each size")
        most, size = len(y), local.batch_size or len(y)
        first = self._order(key, 0)
        # all together, in the order in which the first epoch reads them
        every = local.epochs is not None or local.count(most) * size >= most
        ready = self._task.ready(take(x, first), y[first], whole=every)
        place = first.argsort()
        if local.epochs is None:
            yield from self._asked_live(self._steps(local.count(most), size, key, ready, place))
        else:
            yield from self._asked_live(self._epochs(local.epochs, size, key, ready, place))

    def _asked_live(self, batches: Iterator[PaddedBatch]) -> Iterator[PaddedBatch]:
        """The batches; an error unless the algorithm asks of each one whether it is `live`, or padding only."""
        for batch in batches:
            yield batch
            if batch.unasked:
                raise RuntimeError("a step that may be none of the client's does not ask whether it is `live`")

    def _epochs(
        self, epochs: int, size: int, key: Key, ready: tuple[Ready, Tensor], place: Tensor
    ) -> Iterator[PaddedBatch]:
        most = len(self._examples.y)
        slots = torch.arange(most)
        for epoch in range(epochs):
            rows = slots if epoch == 0 else place[self._order(key, epoch)]
            x_now, y_now = ready if epoch == 0 else (ready[0][rows], ready[1][rows])
            for start in range(0, most, size):
                part = slice(start, min(start + size, most))
                yield self._batch((x_now[part], y_now[part]), slots[part], start, size)

    def _steps(
        self, steps: int, size: int, key: Key, ready: tuple[Ready, Tensor], place: Tensor
    ) -> Iterator[PaddedBatch]:
        """The batches of a fixed number of steps. Each client begins its next epoch once it has seen all its own rows,
        independently of the others.
        """
        slots, each = torch.arange(size), (self.rows - 1) // size + 1  # batches in an epoch of the client
        epochs = -(-steps // -(-self.fewest // size))
        orders = torch.stack([place[self._order(key, epoch)] for epoch in range(epochs)])
        for step in range(steps):
            start = step % each * size
            at = (start + slots) % orders.shape[1]  # padding may be any row
            rows = orders.gather(1, at.expand(epochs, size)).gather(0, (step // each).expand(1, size))[0]
            yield self._batch((ready[0][rows], ready[1][rows]), start + slots, start, size)

    def _order(self, key: Key, epoch: int) -> Tensor:
        """The client's own rows in the order that they have without padding; padding rows come last."""
        drawn = keys.bits(keys.fold(key, "epoch", epoch), len(self._examples.y))
        slots, last = torch.arange(len(drawn)), torch.iinfo(torch.int64).max
        return torch.where(slots < self.rows, drawn, last).argsort(stable=True)

    def _batch(self, ready: tuple[Ready, Tensor], slots: Tensor, start: int | Tensor, size: int) -> PaddedBatch:
        # what is sure of all clients of the stack needs no numbers of its own
        sure = self.fewest - start if isinstance(start, int) else 0
        if sure >= size:
            return PaddedBatch(self, ready)
        own = (slots < self.rows).to(torch.float32)
        share = own / (self.rows - start).clamp(1, size)
        return PaddedBatch(self, ready, share, None if sure > 0 else start < self.rows)


@dataclass(slots=True, eq=False, repr=False)
class PaddedBatch:
    """Batch of clients of a stack, padded to one length."""

    _shard: PaddedShard
    _ready: tuple[Ready, Tensor]
    _share: Tensor | None = None  # of each row in the mean; None: the same of all
    _live: Tensor | None = None
    _asked: bool = False

    @property
    def live(self) -> Tensor | None:
        self._asked = True
        return self._live

    @property
    def unasked(self) -> bool:
        return self._live is not None and not self._asked

    def grad(self, losses: Losses, params: Params) -> Params:
        task = self._shard._task
        if losses != task.losses:
            raise RuntimeError("a loss of an algorithm's own is asked of each client alone")
        return task.gradient(params, *self._ready, torch.Tensor, self._share)


if TYPE_CHECKING:
    from sordino.privacy.readers.per_example_gradients import Sides


class SharedPass:
    """One pass through the network for several clients of a round; the first client that reads computes it for all."""

    def __init__(self, task: Task, clients: Mapping[int, Examples], down: Tree) -> None:
        self._task, self._clients = task, clients
        # only at the broadcast: after a step, each client has weights of its own
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
