"""Reader without protection: client code may use examples in every way, exactly; its claims say that nothing is
guaranteed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, NoReturn

from sordino import keys, tree
from sordino.accounting.events import NonPrivate
from sordino.fast.factored import Ready, take
from sordino.keys import Key
from sordino.privacy.readers import BesidePublic, How, epochs, gradient, halved, piles, stream, taken
from sordino.privacy.readers.class_sums import class_sums
from sordino.privacy.readers.episodes import opened
from sordino.tree import Tree
from sordino.types import Claim, Episode, Examples, Grant, LocalWork, Losses, Offer, Params, Reader, Shard, Task, Tensor

OPEN = "gradients of single examples are used as they are"
FEW = 2_000_000  # numbers of one client that are made ready together


def effort(work: LocalWork, grant: Grant) -> LocalWork:
    """A client's work in this round: the planned work, or less where it is a straggler."""
    if grant.part is not None:
        return LocalWork(None, max(1, math.ceil(grant.part * work.count(grant.size))), work.batch_size)
    return work if grant.epochs is None else LocalWork(grant.epochs, None, work.batch_size)


# Open -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Open(Reader):
    """Examples without protection: every use of them is allowed, and answered exactly."""

    def offer(self) -> Offer | None:
        return None

    def claims(self, work: LocalWork, size: int, multiplier: float | None) -> list[Claim]:
        return Claim.to_everyone("example", "replace", NonPrivate(OPEN), "none", (OPEN,))

    def reads(self, work: LocalWork, size: int) -> int:
        return 0

    def open(self, examples: Examples, grant: Grant, task: Task) -> Shard:
        return OpenShard(examples, grant, task)

    @property
    def plain(self) -> bool:
        own = type(self)  # a reader that is made of this one may change what it prepares or opens
        return own.open is Open.open and own.prepare is Reader.prepare


@dataclass(frozen=True)
class OpenShard:
    """A client's examples without protection."""

    _examples: Examples = field(repr=False)
    _grant: Grant
    _task: Task = field(repr=False)

    @property
    def size(self) -> int:
        return len(self._examples.y)

    def episodes(self, work: LocalWork, key: Key) -> Iterator[Episode]:
        return opened(self._examples, effort(work, self._grant), self._grant, key)

    def sum(self, of: Callable[[Tensor, Tensor], Tree]) -> Tree:
        return of(*self._examples)

    def by_class(self, of: Callable[[Tensor], Tensor], classes: int) -> tuple[Tensor, Tensor]:
        return class_sums(of, self._examples, classes)

    @property
    def public(self) -> Examples | None:
        return self._grant.public

    def split(self, share: float, key: Key) -> tuple[Shard, Shard]:
        order = keys.permutation(keys.fold(key, "split"), self.size)
        parts = order[: (cut := round(share * self.size))].sort().values, order[cut:].sort().values
        first, second = (replace(self, _examples=taken(self._examples, rows)) for rows in parts)
        return first, second

    def mixed(self, work: LocalWork, key: Key, how: How) -> Iterator[BesidePublic]:
        public = self._grant.public
        assert public is not None, "only who was given public examples mixes them with its own"
        local, many = effort(work, self._grant), len(public.y)
        if how == "union":
            for step, (own, others) in enumerate(piles(self.size, many, local, key)):
                batch = OpenBatch(self, own, None, step, key)
                draws = keys.bits(keys.fold(key, "draw", step), len(own) + len(others))
                yield BesidePublic(batch, taken(public, others), batch._raw, draws)
            return
        steps, each = halved(local, self.size, how)
        for step, (batch, others) in enumerate(zip(self._batches(steps, key), stream(many, each, key), strict=False)):
            draws = keys.bits(keys.fold(key, "draw", step), len(batch._rows) + each)
            yield BesidePublic(batch, taken(public, others), batch._raw, draws)

    def batches(self, work: LocalWork, key: Key) -> Iterator[OpenBatch]:
        return self._batches(effort(work, self._grant), key)

    def _batches(self, local: LocalWork, key: Key) -> Iterator[OpenBatch]:
        step, (x, y) = 0, self._examples
        n, size, few = self.size, local.batch(self.size), x.numel() <= FEW
        ready: tuple[Ready, Tensor] | None = None
        for order, count in epochs(n, local, key):
            if few:  # all together, in the order in which the first epoch reads them
                if step == 0:
                    rows = take(x, order), y[order]
                    x_all, y_all = self._task.ready(*rows, whole=local.count(n) * size >= n)
                    ready, place = (x_all, y_all), order.argsort()
                else:
                    now = place[order]
                    ready = x_all[now], y_all[now]
            for i in range(count):
                part = slice(i * size, min((i + 1) * size, n))
                yield OpenBatch(self, order[part], ready and (ready[0][part], ready[1][part]), step, key)
                step += 1


@dataclass(slots=True, eq=False, repr=False)
class OpenBatch:
    """Batch of examples without protection."""

    live: ClassVar[None] = None
    _shard: OpenShard
    _rows: Tensor  # of the shard
    _ready: tuple[Ready, Tensor] | None  # what they are once prepared, where that is known
    _step: int
    _key: Key

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a batch is sealed: it has no {name}, and gives gradients, never rows")

    def grad(self, losses: Losses, params: Params) -> Params:
        """The mean gradient of the batch; zero for a batch without examples."""
        task = self._shard._task
        if not len(self._rows):
            return tree.zeros_like(params)
        if losses == task.losses:
            return task.gradient(params, *(self._ready or task.ready(*self._raw())), self._draws)
        return gradient(lambda leaves: losses(leaves, *self._raw(), self._draws()).mean(), params)

    def _raw(self) -> Examples:
        return taken(self._shard._examples, self._rows)

    def _draws(self) -> Tensor:
        return keys.bits(keys.fold(self._key, "draw", self._step), len(self._rows))
