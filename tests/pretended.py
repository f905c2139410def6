"""A pretended accelerator: tensors that lie on the CPU and say that they do not.

Every operation is computed as ever, and what it gives is where its operands are. Whoever mixes tensors of both places is
told so, as a real accelerator would tell; a test on one machine then says whether something was left behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _DummyPrivateUse1Hook,
    _setup_privateuseone_for_python_backend,
)

if torch.cuda.is_available():
    pytest.skip("torch would differentiate on no real GPU any more in this process", allow_module_level=True)


class _Nothing(_DummyBackendModule):
    """What torch finds of the pretended kind: no other test shall compute there."""

    def is_available(self) -> bool:
        return False

    def device_count(self) -> int:
        return 0


class _NoHook(_DummyPrivateUse1Hook):
    def is_available(self) -> bool:
        return False


_setup_privateuseone_for_python_backend("pretended", _Nothing(), _NoHook())
DEVICE = torch.device("pretended", 0)
MOVES = {"aten::copy_", "aten::_to_copy", "aten::to", "aten::_local_scalar_dense"}
INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_unsafe_index"}  # by rows that may lie anywhere


class LeftBehind(Exception):
    """An operation had a tensor of each place."""


class Away(torch.Tensor):
    """A tensor that says it is elsewhere."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> Away:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held = held
        return made  # type: ignore[no-any-return]

    def tolist(self) -> Any:
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class Pretended(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    flat, spec = pytree.tree_flatten((args, kwargs))
    tensors = [one for one in flat if isinstance(one, torch.Tensor)]
    away, name = any(isinstance(one, Away) for one in tensors), func._schema.name
    behind = [tuple(one.shape) for one in tensors if not isinstance(one, Away) and one.dim() > 0]
    if away and behind and name not in MOVES | INDEXED:
        raise LeftBehind(f"{name} with tensors of {behind} on the CPU")
    if name in INDEXED and behind and not isinstance(args[0], Away):
        raise LeftBehind(f"{name} of a tensor on the CPU")
    asked = kwargs.get("device")
    if torch.Tag.nondeterministic_seeded in func.tags and (away or asked == DEVICE):
        raise LeftBehind(f"{name} with the accelerator's own generator, which draws other numbers")
    there = away if asked is None else torch.device(asked) == DEVICE
    ordered, named = _here(flat, spec)
    found = func(*ordered, **named)
    if name == "aten::_local_scalar_dense":
        return found
    found = pytree.tree_map(lambda one: Away(one) if there and isinstance(one, torch.Tensor) else one, found)
    if name in ("aten::_to_copy", "aten::to"):
        return found
    return return_and_correct_aliasing(func, args, kwargs, found) if away else found


def _here(flat: list[Any], spec: Any) -> Any:
    """The arguments as the CPU takes them."""

    def one(value: Any) -> Any:
        if isinstance(value, Away):
            return value.held
        return torch.device("cpu") if isinstance(value, torch.device) and value == DEVICE else value

    return pytree.tree_unflatten([one(value) for value in flat], spec)


@contextmanager
def accelerator() -> Iterator[torch.device]:
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # what is made of numbers is made on the CPU, and moved
    try:
        with Pretended():
            yield DEVICE
    finally:
        torch._C._set_only_lift_cpu_tensors(before)
