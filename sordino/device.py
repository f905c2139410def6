"""Devices: where a run computes, on the CPU or an accelerator.

On a GPU too, 32-bit numbers are multiplied in 32 bits, not in the 19 that torch lets a GPU's convolutions use, and by
kernels that give the same bits again.

While a run is `on` a device, tensors that are made without naming a device are on it: data, models, client states,
clips, noise, sums. Results and random generators stay on the CPU, so the device changes no random draw (except one
dropout, which depends on memory layout: `generators.Halved`), and in results only the last bits of computed
numbers.
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
    """Computes on the named device inside the block: a whole run on an accelerator, or a part of it on the CPU."""
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
    """True where this run computes on a GPU: starting an operation then costs more than the operation itself."""
    return _at is not None and _at.type == "cuda"


def here(value: Tensor) -> Tensor:
    """Moves a tensor to the device of this run; it may have been made on the CPU, from bytes or numpy arrays."""
    return value if _at is None else value.to(_at)


@contextmanager
def drawing() -> Iterator[None]:
    """Inside the block torch's random numbers are drawn on the CPU, whichever device uses them."""
    if _at is None:
        yield
        return
    with _draws_on_cpu()():
        yield


@cache
def _draws_on_cpu() -> Any:
    """The class of a torch dispatch mode that runs every random operation on the CPU, and moves its result to the
    device."""
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
