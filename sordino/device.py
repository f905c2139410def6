"""Where a run computes: on the processor, or on an accelerator.

While a run is `on` a device, whatever is made without further words lies there: data, models, what clients keep, clips,
noise, sums. What leaves a run, and what random numbers are drawn from, is on the processor, so a device changes no draw
and nothing of what is written but the last bits of what was computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

CPU = "cpu"
_at: torch.device | None = None  # None: the processor


@contextmanager
def on(name: str) -> Iterator[None]:
    """A run's whole time on an accelerator; or what of it is to be on the processor."""
    global _at
    device, before = torch.device(name), _at
    if device.type == CPU and before is None:
        yield
        return
    _at = None if device.type == CPU else device
    try:
        with device:
            yield
    finally:
        _at = before


def here(value: Tensor) -> Tensor:
    """A tensor that was made elsewhere, of bytes or of numpy's numbers, where this run computes."""
    return value if _at is None else value.to(_at)
