"""Neighbouring inputs, and how far they move what a gate releases."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from sordino.types import Examples

DOUBLE = torch.float64


slow = pytest.mark.slow


MAGNITUDES = (0.0, 5e-324, 1e-30, 0.2, 1.0, 7.0, 1e30, 1e300, math.inf, -math.inf, math.nan)


DIM = 7


SIZES = (1, 2, 3, 8)  # numbers of examples


Z = 1.7  # noise multiplier; any


class Pair(NamedTuple):
    a: Any
    b: Any


def largest_move(release: Callable[[Any], Tensor], pairs: Iterator[Pair], allowed: float, order: int) -> float:
    """max ||A(D) - A(D')|| over the pairs, in units of what is allowed. Not a number counts as infinitely far."""
    largest = 0.0
    for a, b in pairs:
        moved = float(torch.linalg.vector_norm(release(a).double() - release(b).double(), order)) / allowed
        largest = max(largest, math.inf if math.isnan(moved) else moved)
    return largest


def sound(ratio: float) -> bool:
    return ratio <= 1 + 1e-9


def tight(ratio: float) -> bool:
    return 0.99 <= ratio <= 1 + 1e-9


def row(rng: random.Random) -> Tensor:
    """One gradient: an adversarial magnitude along one coordinate, one coordinate of every layer, or all of them."""
    magnitude = rng.choice(MAGNITUDES)
    if rng.random() < 0.1:  # one coordinate that is no number among others that are
        mixed = torch.full((DIM,), 1e30, dtype=DOUBLE)
        mixed[rng.randrange(DIM)] = rng.choice((math.nan, math.inf))
        return mixed
    direction = torch.zeros(DIM, dtype=DOUBLE)
    direction[rng.choice(([rng.randrange(DIM)], [0, 3], range(DIM)))] = rng.choice((1.0, -1.0))
    return direction * magnitude + (torch.tensor([rng.gauss(0, 1) for _ in range(DIM)]) if rng.random() < 0.3 else 0)


def tiers(every: Iterable[str], first: set[str], few: int, many: int) -> list[Any]:
    """Some names with few pairs in the fast tier, every name with many in the slow one."""
    return [
        *((name, few) for name in every if name in first),
        *(pytest.param(name, many, marks=slow) for name in every),
    ]


def examples_of(rows: Tensor) -> Examples:
    return Examples(rows, torch.zeros(len(rows), dtype=torch.int64))


def labelled_pairs(shape: tuple[int, ...], count: int, dtype: torch.dtype) -> Iterator[Pair]:
    rng = random.Random(count)

    def one() -> tuple[Tensor, int]:
        x = torch.tensor([rng.gauss(0, 1) for _ in range(math.prod(shape))], dtype=DOUBLE).reshape(shape)
        return (x * rng.choice((*MAGNITUDES, 1e-9, 1e9, 1e20))).to(dtype), rng.randrange(3)

    for _ in range(count):
        a = [one() for _ in range(rng.choice(SIZES))]
        b = [*a[:-1], (-a[-1][0], a[-1][1]) if rng.random() < 0.3 else one()]
        yield Pair(*(Examples(torch.stack([x for x, _ in d]), torch.tensor([y for _, y in d])) for d in (a, b)))
