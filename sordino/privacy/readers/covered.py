"""Shards answer what the promise of their reader covers. Everything else that client code may ask for is refused.

What they answer about an example may depend on that example alone: `check_apart` refuses networks that say otherwise of
themselves, `alone` asks for each example on
its own, so that nothing has to be believed of what somebody's program would do with several.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from sordino.errors import PrivacyError, UnsoundGuarantee
from sordino.keys import Key
from sordino.privacy.readers.beside_public import BesidePublic, How
from sordino.tree import Tree
from sordino.types import Batch, Episode, Examples, Grant, Reader, Shard, Task, Work

if TYPE_CHECKING:
    from torch import Tensor


R = TypeVar("R", bound=Reader)


def check_apart(task: Task) -> None:
    """Refuses, before anything starts, a network in which one example reaches what is computed of another."""
    if task.mixes_examples:
        raise UnsoundGuarantee(
            f"{task.mixes_examples} mixes examples",
            why="one example then changes the gradients of others, and its running statistics; no clip bounds that",
            fix='use nn.GroupNorm; BatchNorm only where nobody is promised anything, as with algorithm = "fedavg" and '
            "no [privacy]",
            code="batch-norm",
        )
    if task.remembers:
        raise remembering(task.remembers)


def remembering(name: str) -> UnsoundGuarantee:
    return UnsoundGuarantee(
        f"{name} changes during a forward pass",
        why="what it keeps of one example reaches the gradients of other examples, where no clip bounds it",
        fix="compute the forward pass, and what is asked of it, from their arguments alone, and write to nothing else",
        code="model-remembers",
    )


def alone(of: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """The statistic of(x) [n, d] of rows that are shown to it one by one."""
    try:
        return torch.func.vmap(lambda row: of(row[None])[0])(rows)
    except RuntimeError:  # a branch on a value; any other error comes up again
        return torch.cat([of(row) for row in torch.split(rows, 1)])


@dataclass
class Covered(ABC, Generic[R]):
    """One client's examples during one round, which refuse every question until a reader's own shard answers it."""

    _reader: R
    _examples: Examples = field(repr=False)
    _grant: Grant
    _task: Task = field(repr=False)

    @abstractmethod
    def refused(self, what: str) -> PrivacyError:
        """The refusal of a question that the reader's promise does not cover."""

    @property
    def size(self) -> int:
        """The public number of examples, the same for all neighbours."""
        return self._grant.size

    def batches(self, work: Work, key: Key) -> Iterator[Batch]:
        raise self.refused("a batch")

    def episodes(self, work: Work, key: Key) -> Iterator[Episode]:
        raise self.refused("an episode")

    def mixed(self, work: Work, key: Key, how: How) -> Iterator[BesidePublic]:
        raise self.refused("a batch beside public examples")

    def sum(self, of: Callable[[Tensor, Tensor], Tree]) -> Tree:
        raise self.refused("a sum over examples")

    def by_class(self, of: Callable[[Tensor], Tensor], classes: int) -> tuple[Tensor, Tensor]:
        raise self.refused("a sum per class")

    def split(self, share: float, key: Key) -> tuple[Shard, Shard]:
        raise self.refused("a part of the examples")

    @property
    def public(self) -> Examples | None:
        return None
