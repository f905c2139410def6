"""Shards answer what the promise of their reader covers. Everything else that client code may ask for is refused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from torch import Tensor

from sordino.errors import PrivacyError
from sordino.keys import Key
from sordino.privacy.beside import How, Mixed
from sordino.tree import Tree
from sordino.types import Batch, Episode, Examples, Shard, Work


class Covered(ABC):
    @abstractmethod
    def refused(self, what: str) -> PrivacyError: ...

    def batches(self, work: Work, key: Key) -> Iterator[Batch]:
        raise self.refused("a batch")

    def episodes(self, work: Work, key: Key) -> Iterator[Episode]:
        raise self.refused("an episode")

    def mixed(self, work: Work, key: Key, how: How) -> Iterator[Mixed]:
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
