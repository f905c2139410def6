"""Batched rules under `torch.vmap`: one operation for all clients of a stack, where vmap itself is slow.

Inside vmap a tensor has a hidden dimension of clients. A rule gets the tensors with that dimension in front, and its
result has it hidden again. A `torch.autograd.Function` with a rule for vmap does the same, but its call alone takes a
tenth of a millisecond, as long as the work itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Operand(NamedTuple):
    whole: Tensor
    each: bool  # has every client its own, in front? Else this one is everybody's

    def of(self, clients: int) -> Tensor:
        """The tensor with the dimension of clients in front; a tensor that all clients share is expanded."""
        return self.whole if self.each else self.whole.expand(clients, *self.whole.shape)


def transforming() -> bool:
    """True if torch.func transforms tensors in this thread: such tensors have no memory layout and cannot be written
    to.
    """
    return torch._C._functorch.peek_interpreter_stack() is not None


def vmapping() -> bool:
    """True directly inside vmap, and not in a derivative inside it."""
    at_work = torch._C._functorch.peek_interpreter_stack()
    return at_work is not None and at_work.key() == torch._C._functorch.TransformType.Vmap


def for_all(rule: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """Call `rule` once with the number of clients and the operands of all clients; only where `vmapping()`."""
    inside = torch._C._functorch
    at_work = inside.peek_interpreter_stack()  # as long as it is held, what is asked of it is there
    level, clients = at_work.level(), inside.CVmapInterpreterPtr(at_work).batchSize()
    parted = [inside._unwrap_batched(one, level) for one in operands]
    outer = inside.pop_dynamic_layer_stack()
    try:
        wholes = [Operand(one if at is None else one.movedim(at, 0), at is not None) for one, at in parted]
        found = rule(clients, *wholes)
    finally:
        inside.push_dynamic_layer_stack(outer)
    hidden: Tensor = inside._add_batch_dim(found, 0, level)
    return hidden
