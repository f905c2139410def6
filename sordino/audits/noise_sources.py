"""Sources of noise for attacks: none at all, which shows where the outputs are centred, and too little, which must be
caught.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.types import NoiseSource


@dataclass(frozen=True)
class Silent:
    """A source that adds `level` noise scales to every number: 0 is a release without noise, 1 shows the scale that
    is really used. Its coins choose all, or one.
    """

    level: float = 0.0
    only: int | None = None
    name: str = "silent"

    def child(self, *parts: int | str) -> NoiseSource:
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
class Lanes:
    """A source for one call that `torch.vmap` makes many times at once: each lane gets noise of its own, and whatever
    the call does with it, it does for each lane alone. `lane`: the numbers of the lanes, as `vmap` hands them in.
    """

    inner: NoiseSource
    lane: Tensor
    many: int
    name: str = "lanes"

    def child(self, *parts: int | str) -> NoiseSource:
        return Lanes(self.inner.child(*parts), self.lane, self.many)

    def gaussian(self, values: Tensor, std: float) -> Tensor:
        return self.inner.gaussian(values.expand(self.many, *values.shape), std)[self.lane]

    def laplace(self, values: Tensor, scale: float) -> Tensor:
        return self.inner.laplace(values.expand(self.many, *values.shape), scale)[self.lane]

    def coins(self, count: int, probability: float) -> Tensor:
        return self.inner.coins(self.many * count, probability).reshape(self.many, count)[self.lane]

    def words(self, count: int) -> Tensor:
        return self.inner.words(self.many * count).reshape(self.many, count)[self.lane]


@dataclass(frozen=True)
class Twin:
    """A source that is broken somewhere, by `factor`; everything else is the inner one's."""

    inner: NoiseSource
    factor: float
    name: str = "twin"

    def child(self, *parts: int | str) -> NoiseSource:
        return type(self)(self.inner.child(*parts), self.factor)

    def gaussian(self, values: Tensor, std: float) -> Tensor:
        return self.inner.gaussian(values, std)

    def laplace(self, values: Tensor, scale: float) -> Tensor:
        return self.inner.laplace(values, scale)

    def coins(self, count: int, probability: float) -> Tensor:
        return self.inner.coins(count, probability)

    def words(self, count: int) -> Tensor:
        return self.inner.words(count)


@dataclass(frozen=True)
class Weak(Twin):
    """A source whose noise is `factor` times too small."""

    name: str = "weak"

    def gaussian(self, values: Tensor, std: float) -> Tensor:
        return self.inner.gaussian(values, std / self.factor)

    def laplace(self, values: Tensor, scale: float) -> Tensor:
        return self.inner.laplace(values, scale / self.factor)


@dataclass(frozen=True)
class Rare(Twin):
    """A source for answers at random that is too quiet: one word in `factor` is random, the others are the largest
    there is, at which an answer is the truth.
    """

    name: str = "rare"

    def words(self, count: int) -> Tensor:
        drawn = self.inner.child("drawn").coins(count, 1 / self.factor)
        return torch.where(drawn, self.inner.words(count), -1)


@dataclass(frozen=True)
class Quiet(Twin):
    """A source without noise, whose coins fall as they would."""

    factor: float = 0.0
    name: str = "quiet"

    def gaussian(self, values: Tensor, std: float) -> Tensor:
        return values

    def laplace(self, values: Tensor, scale: float) -> Tensor:
        return values
