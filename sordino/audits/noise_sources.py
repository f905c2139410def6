"""Noise sources for audits: without noise, which shows the centres of outputs, and with too little, which an audit must
catch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.types import NoiseSource


@dataclass(frozen=True)
class Silent:
    """A source that adds `level` noise scales to every number: 0 is a release without noise, 1 shows the scale in use.
    Its coins choose all, or one.
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
    """A source for a call under `torch.vmap`: each lane gets noise of its own. `lane`: numbers of the lanes, as `vmap`
    passes them.
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
    """A source that is broken somewhere, by `factor`, and otherwise the inner one."""

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
    """A source for randomised response that is too quiet: one word in `factor` is random, the others are the largest
    there is, with which the answer is true.
    """

    name: str = "rare"

    def words(self, count: int) -> Tensor:
        drawn = self.inner.child("drawn").coins(count, 1 / self.factor)
        return torch.where(drawn, self.inner.words(count), -1)


@dataclass(frozen=True)
class Quiet(Twin):
    """A source without noise, with the coins of the inner one."""

    factor: float = 0.0
    name: str = "quiet"

    def gaussian(self, values: Tensor, std: float) -> Tensor:
        return values

    def laplace(self, values: Tensor, scale: float) -> Tensor:
        return values
