"""Noise sources for audits: one without noise, which shows the centres of outputs, and ones with too little noise,
which an audit must catch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.types import Drawable, NoiseSource


@dataclass(frozen=True)
class Silent:
    """A noise source for measuring: it adds `level` times the noise scale to every number instead of noise. Level 0
    gives a release without noise, level 1 shows the scale. Its sampling selects everything, or only the item `only`.
    """

    level: float = 0.0
    only: int | None = None
    name: str = "silent"

    def child(self, *parts: int | str) -> NoiseSource:
        return self

    def noisy(self, law: Drawable, values: Tensor, scale: float) -> Tensor:
        return values + self.level * scale

    def coins(self, count: int, probability: float) -> Tensor:
        return torch.ones(count, dtype=torch.bool) if self.only is None else torch.arange(count) == self.only

    def words(self, count: int) -> Tensor:
        return torch.arange(count) + torch.iinfo(torch.int64).min  # without a sign: from 2^63 on


@dataclass(frozen=True)
class VmapNoise:
    """Noise source for a call under `torch.vmap`, with noise of its own for each of `many` samples. `lane`: the index
    of a sample, as `vmap` passes it.
    """

    inner: NoiseSource
    lane: Tensor
    many: int
    name: str = "lanes"

    def child(self, *parts: int | str) -> NoiseSource:
        return VmapNoise(self.inner.child(*parts), self.lane, self.many)

    def noisy(self, law: Drawable, values: Tensor, scale: float) -> Tensor:
        return self.inner.noisy(law, values.expand(self.many, *values.shape), scale)[self.lane]

    def coins(self, count: int, probability: float) -> Tensor:
        return self.inner.coins(self.many * count, probability).reshape(self.many, count)[self.lane]

    def words(self, count: int) -> Tensor:
        return self.inner.words(self.many * count).reshape(self.many, count)[self.lane]


@dataclass(frozen=True)
class BrokenNoise:
    """Base class of broken noise sources: one kind of randomness is wrong by `factor`, everything else comes from the
    source that it wraps.
    """

    inner: NoiseSource
    factor: float
    name: str = "twin"

    def child(self, *parts: int | str) -> NoiseSource:
        return type(self)(self.inner.child(*parts), self.factor)

    def noisy(self, law: Drawable, values: Tensor, scale: float) -> Tensor:
        return self.inner.noisy(law, values, scale)

    def coins(self, count: int, probability: float) -> Tensor:
        return self.inner.coins(count, probability)

    def words(self, count: int) -> Tensor:
        return self.inner.words(count)


@dataclass(frozen=True)
class Weak(BrokenNoise):
    """A noise source whose noise is `factor` times too small."""

    name: str = "weak"

    def noisy(self, law: Drawable, values: Tensor, scale: float) -> Tensor:
        return self.inner.noisy(law, values, scale / self.factor)


@dataclass(frozen=True)
class Rare(BrokenNoise):
    """A noise source with too little randomness for randomised response: only one random word in `factor` is random,
    all others have the value that makes an answer true.
    """

    name: str = "rare"

    def words(self, count: int) -> Tensor:
        drawn = self.inner.child("drawn").coins(count, 1 / self.factor)
        return torch.where(drawn, self.inner.words(count), -1)


@dataclass(frozen=True)
class NoiselessTwin(BrokenNoise):
    """A noise source without noise, which samples at random like the source that it wraps."""

    factor: float = 0.0
    name: str = "quiet"

    def noisy(self, law: Drawable, values: Tensor, scale: float) -> Tensor:
        return values
