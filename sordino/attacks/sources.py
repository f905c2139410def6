"""Sources of noise for attacks: none at all, which shows where the outputs are centred, and too little, which must be caught."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.types import Source


@dataclass(frozen=True)
class Silent:
    """Adds `level` noise scales to every number: 0 is a release without noise, 1 shows the scale that is really used. Its coins choose all, or one."""

    level: float = 0.0
    only: int | None = None
    name: str = "silent"

    def child(self, *parts: int | str) -> Source:
        return self

    def gaussian(self, values: Tensor, std: float) -> Tensor:
        return values + self.level * std

    def laplace(self, values: Tensor, scale: float) -> Tensor:
        return values + self.level * scale

    def coins(self, count: int, probability: float) -> Tensor:
        return torch.ones(count, dtype=torch.bool) if self.only is None else torch.arange(count) == self.only

    def words(self, count: int) -> Tensor:
        return torch.arange(count)


@dataclass(frozen=True)
class Rare:
    """A broken twin for answers at random: only a `share` of the words are random, the others are the largest there is, at which an answer is the truth."""

    inner: Source
    share: float
    name: str = "rare"

    def child(self, *parts: int | str) -> Source:
        return Rare(self.inner.child(*parts), self.share)

    def gaussian(self, values: Tensor, std: float) -> Tensor:
        return self.inner.gaussian(values, std)

    def laplace(self, values: Tensor, scale: float) -> Tensor:
        return self.inner.laplace(values, scale)

    def coins(self, count: int, probability: float) -> Tensor:
        return self.inner.coins(count, probability)

    def words(self, count: int) -> Tensor:
        kept = self.inner.child("kept").coins(count, self.share)
        return torch.where(kept, self.inner.words(count), -1)


@dataclass(frozen=True)
class Weak:
    """A broken twin of any source: its noise is `factor` times too small."""

    inner: Source
    factor: float
    name: str = "weak"

    def child(self, *parts: int | str) -> Source:
        return Weak(self.inner.child(*parts), self.factor)

    def gaussian(self, values: Tensor, std: float) -> Tensor:
        return self.inner.gaussian(values, std / self.factor)

    def laplace(self, values: Tensor, scale: float) -> Tensor:
        return self.inner.laplace(values, scale / self.factor)

    def coins(self, count: int, probability: float) -> Tensor:
        return self.inner.coins(count, probability)

    def words(self, count: int) -> Tensor:
        return self.inner.words(count)
