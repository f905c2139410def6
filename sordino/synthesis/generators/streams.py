"""Long random vectors from one key, drawn on the CPU, so that they are the same on every device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from sordino.device import CPU, here

if TYPE_CHECKING:
    from torch import Tensor


def normal(source: torch.Generator, *shape: int) -> Tensor:
    return here(torch.randn(*shape, generator=source, device=CPU))


def uniform(source: torch.Generator, *shape: int) -> Tensor:
    return here(torch.rand(*shape, generator=source, device=CPU))


def integers(source: torch.Generator, below: int, *shape: int) -> Tensor:
    return here(torch.randint(below, shape, generator=source, device=CPU))


def words(source: torch.Generator, count: int) -> Tensor:
    """Integers of 64 random bits."""
    return here(torch.empty(count, dtype=torch.int64, device=CPU).random_(-(2**63), None, generator=source))
