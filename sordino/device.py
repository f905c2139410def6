"""Devices: where a run computes, on the processor or an accelerator.

Numbers of 32 bits are multiplied in 32 bits there too, not in the 19 that torch lets a GPU's convolutions use, and by
kernels that give the same bits again.

While a run is `on` a device, whatever is made without further words lies there: data, models, what clients keep, clips,
noise, sums. What leaves a run, and what random numbers are drawn from, is on the processor, so a device changes no draw
(but a dropout that follows how a tensor lies in memory: `generators.discriminator`), and nothing of what is written
but the last bits of what was computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

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
        with device, torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
            yield
    finally:
        _at = before


def on_gpu() -> bool:
    """True where this run computes on a GPU, where launching work costs more than the work."""
    return _at is not None and _at.type == "cuda"


def here(value: Tensor) -> Tensor:
    """A tensor that was made elsewhere, of bytes or of numpy's numbers, where this run computes."""
    return value if _at is None else value.to(_at)


@contextmanager
def drawing() -> Iterator[None]:
    """While somebody draws from torch's own generator: that of the processor, wherever the numbers are needed."""
    if _at is None:
        yield
        return
    with _by_the_processor()():
        yield


@cache
def _by_the_processor() -> Any:
    """A mode of torch that takes every operation that draws to the processor, and what it gives back again."""
    from torch.utils import _pytree as pytree  # who only looks at runs needs no torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class DrawnByTheProcessor(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if torch.Tag.nondeterministic_seeded not in func.tags:
                return func(*args, **(kwargs or {}))
            flat, spec = pytree.tree_flatten((args, kwargs or {}))
            ordered, named = pytree.tree_unflatten([_on_the_processor(one) for one in flat], spec)
            found = func(*ordered, **named)
            if func._schema.is_mutable:  # it was drawn into its first argument
                return args[0].copy_(found)
            return pytree.tree_map_only(torch.Tensor, here, found)

    return DrawnByTheProcessor


def _on_the_processor(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device(CPU)
    return value.to(CPU) if isinstance(value, torch.Tensor) else value
