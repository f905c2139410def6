"""Where noise comes from.

`Counter` draws from a counter key: reproducible, for simulation only, and every result that used it says so. `System` draws from the operating
system's generator expanded by ChaCha20, and releases on an integer grid, so that the low bits of a floating-point sampler cannot betray the
input (Mironov, CCS 2012): values are truncated toward zero to multiples of a power of two, which never increases a norm, and whole steps of
*rounded* continuous noise are added from a 64-bit table.

Guarantees (System): exactly those of the continuous mechanism. Proof: for x on the grid, x + round(noise) = round(x + noise) is
post-processing of it. The table is within TABLE_ERROR of the ideal law in total variation per coordinate; the receipt adds that to delta.
Constant time is not claimed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from torch import Tensor

from sordino import keys
from sordino.errors import UnsoundGuarantee
from sordino.types import Source

GRID = 4096  # noise scale in grid steps: at least this, less than twice
Table: TypeAlias = Callable[[float], tuple[NDArray[np.uint64], int]]
TABLE_ERROR = 4e-15  # total variation of one coordinate against the ideal discrete law


@dataclass(frozen=True)
class Counter:
    """Seeded noise. Simulation only."""

    key: int
    name: str = "counter"

    def child(self, *parts: int | str) -> Source:
        return Counter(keys.word(keys.fold(self.key, *parts)))

    def gaussian(self, values: Tensor, std: float) -> Tensor:
        return values + std * keys.normal(self.key, values.numel()).reshape(values.shape)

    def laplace(self, values: Tensor, scale: float) -> Tensor:
        return values + scale * keys.laplace(self.key, values.numel()).reshape(values.shape)

    def coins(self, count: int, probability: float) -> Tensor:
        return keys.coin(self.key, count, probability)


class System:
    """Noise that protects people: fresh entropy for every child, nothing to seed, nothing to repeat."""

    name = "system"

    def __init__(self) -> None:
        self._stream = Cipher(algorithms.ChaCha20(os.urandom(32), os.urandom(16)), mode=None).encryptor()

    def child(self, *parts: int | str) -> Source:
        return System()

    def gaussian(self, values: Tensor, std: float) -> Tensor:
        return self._on_grid(values, std, _gaussian_table)

    def laplace(self, values: Tensor, scale: float) -> Tensor:
        return self._on_grid(values, scale, _laplace_table)

    def coins(self, count: int, probability: float) -> Tensor:
        threshold = min(int(probability * 2.0**64), 2**64 - 1)
        return (
            torch.from_numpy(self._words(count) < np.uint64(threshold))
            if probability < 1
            else torch.ones(count, dtype=torch.bool)
        )

    def _on_grid(self, values: Tensor, scale: float, table: Table) -> Tensor:
        if not (math.isfinite(scale) and scale > 0):
            raise UnsoundGuarantee(
                f"the noise scale is {scale}",
                why="a grid needs a finite positive scale",
                fix="bound the input with a clip",
                code="noise-scale-not-positive",
            )
        step = grid_step(scale)
        cells = torch.trunc(values.double() / step)
        thresholds, lowest = table(round(scale / step, 9))
        drawn = np.searchsorted(thresholds, self._words(values.numel()), side="right") + lowest
        return (cells + torch.from_numpy(drawn).reshape(values.shape)) * step

    def _words(self, count: int) -> NDArray[np.uint64]:
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8")


def grid_step(scale: float) -> float:
    """The largest power of two that leaves at least GRID steps per unit of noise scale."""
    return 2.0 ** math.floor(math.log2(scale / GRID))


def _cumulative(weights: NDArray[Any], half: int) -> tuple[NDArray[np.uint64], int]:
    # np.longdouble: extended precision keeps the running sum exact to about 1e-19 before it is cut to 64 bits
    total = np.cumsum(weights)
    upper = np.floor(total[:-1] / total[-1] * np.longdouble(2) ** 64)
    return np.minimum(upper, np.longdouble(2**64 - 1)).astype(np.uint64), -half


@lru_cache(maxsize=8)
def _gaussian_table(std: float) -> tuple[NDArray[np.uint64], int]:
    """P[round(N(0, std^2)) = k]: the density at k, corrected for its curvature across one step (terms beyond std^-6 are below 1e-19)."""
    half = math.ceil(9.2 * std)  # the tail beyond 9.2 standard deviations is 4e-20
    h = 1 / np.longdouble(std)
    x2 = (np.arange(-half, half + 1, dtype=np.longdouble) * h) ** 2
    curve = 1 + h**2 / 24 * (x2 - 1) + h**4 / 1920 * (x2**2 - 6 * x2 + 3)
    return _cumulative(np.exp(-x2 / 2) * curve, half)


@lru_cache(maxsize=8)
def _laplace_table(scale: float) -> tuple[NDArray[np.uint64], int]:
    """P[round(Laplace(scale)) = k], in closed form."""
    half = math.ceil(44 * scale)  # the tail beyond 44 scales is 8e-20
    b = np.longdouble(scale)
    k = np.abs(np.arange(-half, half + 1, dtype=np.longdouble))
    weights = np.exp(-k / b) * np.sinh(1 / (2 * b))
    weights[half] = -np.expm1(-1 / (2 * b))
    return _cumulative(weights, half)


def for_round(name: str, key: int, t: int) -> Source:
    """The noise of one round: `counter` or `system`."""
    return System() if name == "system" else Counter(keys.word(keys.fold(key, "noise", t)))


def for_client(name: str, key: int, t: int, client: int) -> Source:
    return for_round(name, key, t).child("client", client)
