"""Training steps on private examples and public ones, such as images from a generator, under one loss.

Public rows contain no private data, so client code may hold them. Only a reader without protection (`Open`) allows one
loss of both together: a clip needs the gradient of each private example by itself. Public examples need neither clip
nor noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch

from sordino import keys, tree
from sordino.errors import PrivacyError
from sordino.keys import Key
from sordino.types import Batch, EpisodeLoss, Examples, LocalWork, Params, Tensor

# how public rows come beside sealed ones: in one shuffled pile; half of every batch; or so many in every step
How = Literal["union", "half"] | int


@dataclass(frozen=True)
class BesidePublic:
    """One training step: a batch of private rows, which may be empty, with public rows beside it."""

    batch: Batch
    public: Examples
    _raw: Callable[[], Examples] | None = field(repr=False)  # None where the reader is not open
    _draws: Tensor = field(repr=False)  # one key for each row of both

    def joint(self, loss: EpisodeLoss, params: Params) -> Params:
        """Unprotected gradient of a loss that compares private rows with public ones: loss(params, private rows, public
        rows, keys). Refused where gradients are noised."""
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
    """The gradient of a loss; zero for parameters that it does not depend on."""
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    value = loss(leaves)
    if not value.requires_grad:
        return tree.zeros_like(params)
    slopes = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, slopes, strict=True))


def taken(examples: Examples, rows: Tensor) -> Examples:
    """The examples at these row indices."""
    return Examples(examples.x.index_select(0, rows), examples.y.index_select(0, rows))


def piles(own: int, public: int, work: LocalWork, key: Key) -> Iterator[tuple[Tensor, Tensor]]:
    """The client's own rows and the public rows of each batch; every epoch shuffles the two together."""
    size = work.batch(own + public)
    for order, count in epochs(own + public, work, key):
        for i in range(count):
            rows = order[i * size : min((i + 1) * size, len(order))]
            yield rows[rows < own], rows[rows >= own] - own


def epochs(size: int, work: LocalWork, key: Key) -> Iterator[tuple[Tensor, int]]:
    """Shuffled rows of each epoch, with the number of batches to take from them. The last batch of an epoch may be
    shorter.
    """
    each, left = -(-size // work.batch(size)), work.count(size)
    for epoch in range(-(-left // each)):
        yield keys.permutation(keys.fold(key, "epoch", epoch), size), min(each, left - epoch * each)


def stream(size: int, each: int, key: Key) -> Iterator[Tensor]:
    """Endless batches of `each` rows, from one shuffled epoch after another."""
    epoch, left = 0, torch.empty(0, dtype=torch.int64)
    while True:
        while len(left) < each:
            left = torch.cat([left, keys.permutation(keys.fold(key, "public", epoch), size)])
            epoch += 1
        yield left[:each]
        left = left[each:]


def halved(work: LocalWork, size: int, how: How) -> tuple[LocalWork, int]:
    """Splits a client's work into steps on batches of private rows, and the number of public rows beside each batch:
    `how` "half": each is half of the batch; "union": as many public rows as private ones; or a number of public rows.
    The number of steps stays as it is without public rows.
    """
    batch = work.batch(size)
    if how == "half":
        return LocalWork(None, work.count(size), max(1, batch // 2)), max(1, batch // 2)
    return work, batch if how == "union" else how
