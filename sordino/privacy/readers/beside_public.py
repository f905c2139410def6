"""Sealed examples beside public ones, such as images from a generator: in one step, under one loss.

Public rows contain no private data, so client code may hold them. Questions about both at once are answered by an open
reader alone: under a clip a gradient has to fall apart into one of each example, and public ones need neither clip nor
noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from sordino import keys, tree
from sordino.errors import PrivacyError
from sordino.keys import Key
from sordino.types import Batch, EpisodeLoss, Examples, Params, Work

if TYPE_CHECKING:
    from torch import Tensor


# how public rows come beside sealed ones: in one shuffled pile; half of every batch; or so many in every step
How = Literal["union", "half"] | int


@dataclass(frozen=True)
class BesidePublic:
    """One step: a sealed batch, which may be empty, and public rows."""

    batch: Batch
    public: Examples
    _raw: Callable[[], Examples] | None = field(repr=False)  # None where the reader is not open
    _draws: Tensor = field(repr=False)  # one key for each row of both

    def joint(self, loss: EpisodeLoss, params: Params) -> Params:
        """The gradient of one loss of (params, sealed rows, public rows, keys)."""
        if self._raw is None:
            raise PrivacyError(
                "a loss that joins sealed and public examples",
                why="then one example changes the gradients of others, and no clip bounds that",
                fix="ask for the gradient of the losses of single examples, and separately for the gradient of the "
                "public examples",
                code="joint-loss",
            )
        raw = self._raw()
        return gradient(lambda leaves: loss(leaves, raw, self.public, self._draws), params)


def gradient(loss: Callable[[Params], Tensor], params: Params) -> Params:
    """The gradient of one number; zero for what it does not depend on, such as features that are the pixels."""
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    value = loss(leaves)
    if not value.requires_grad:
        return tree.zeros_like(params)
    slopes = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, slopes, strict=True))


def taken(examples: Examples, rows: Tensor) -> Examples:
    """The examples at these rows."""
    return Examples(examples.x.index_select(0, rows), examples.y.index_select(0, rows))


def piles(own: int, public: int, work: Work, key: Key) -> Iterator[tuple[Tensor, Tensor]]:
    """The own rows and the public rows of every batch, drawn from one shuffled pile of both, epoch after epoch."""
    size = work.batch(own + public)
    for order, count in epochs(own + public, work, key):
        for i in range(count):
            rows = order[i * size : min((i + 1) * size, len(order))]
            yield rows[rows < own], rows[rows >= own] - own


def epochs(size: int, work: Work, key: Key) -> Iterator[tuple[Tensor, int]]:
    """Shuffled rows, one epoch after the other, each with the number of batches to take of it. The last batch of an
    epoch may be shorter.
    """
    each, left = -(-size // work.batch(size)), work.count(size)
    for epoch in range(-(-left // each)):
        yield keys.permutation(keys.fold(key, "epoch", epoch), size), min(each, left - epoch * each)


def stream(size: int, each: int, key: Key) -> Iterator[Tensor]:
    """Batches of `each` rows without end, from one shuffled epoch after the other."""
    epoch, left = 0, torch.empty(0, dtype=torch.int64)
    while True:
        while len(left) < each:
            left = torch.cat([left, keys.permutation(keys.fold(key, "public", epoch), size)])
            epoch += 1
        yield left[:each]
        left = left[each:]


def halved(work: Work, size: int, how: How) -> tuple[Work, int]:
    """The work on sealed rows, and how many public ones stand beside each batch; as many steps as without them."""
    batch = work.batch(size)
    if how == "half":
        return Work(None, work.count(size), max(1, batch // 2)), max(1, batch // 2)
    return work, batch if how == "union" else how
