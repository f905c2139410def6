"""Fast computation of the same numbers: kernels, factored matrices, threads, and memory that processes share.

The processor: nothing of it is measured, since the same machine must always give the same answer.

Products of large fp32 matrices by the faster one of torch's two libraries, MKL and oneDNN; and batched rules under
`torch.vmap`, one operation for all clients of a stack, where vmap itself is slow.

torch multiplies with MKL, which does not use the widest vector instructions of AMD processors. oneDNN, which torch
includes too, uses them: it is twice as fast there, with the same rounding of fp32. Its calls cost more, and it keeps
0.7 MB of code and memory for every shape. So it is used for large products only, with few different numbers of rows.
Products that autograd differentiates stay with MKL.

Inside vmap a tensor has a hidden dimension of clients. A rule gets the tensors with that dimension in front, and its
result has it hidden again. A `torch.autograd.Function` with a rule for vmap does the same, but its call alone takes a
tenth of a millisecond, as long as the work itself.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

if TYPE_CHECKING:
    from torch import Tensor


F = TypeVar("F", bound=Callable[..., Any])
PURE: set[Any] = set()  # functions that depend on their arguments (owner, parameters, tensors) alone

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8


def bf16_instructions() -> bool:
    """True if the processor multiplies bf16 faster than fp32: by matrix units (AMX), or by AMD's AVX-512. By Intel's
    AVX-512 it takes twice as long as fp32.
    """
    return "amx_bf16" in _words() or {"AuthenticAMD", "avx512_bf16"} <= _words()


def leaves_vectors_aside() -> bool:
    """True if MKL, with which torch multiplies matrices, does not use the widest vector instructions: on AMD processors
    with AVX-512.
    """
    return {"AuthenticAMD", "avx512f"} <= _words()


@cache
def _words() -> frozenset[str]:
    try:
        return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return frozenset()


def keep_freed_memory() -> bool:
    """Makes the C library keep freed memory for the next step. Returns whether it accepted the settings (glibc does).

    Per-example buffers are megabytes, allocated and freed at every step; glibc's defaults give each back to the kernel
    at once, and the page faults of getting it again took a quarter of a private run's time (measured on the MNIST CNN:
    4.2 s of 17 s against 0.5 s). All threads take from one arena: one of its own, a thread would keep for good.
    They hardly wait for each other, since Python lets one at a time begin an operation.
    """
    sizes = ((_M_MMAP_THRESHOLD, 1 << 30), (_M_TRIM_THRESHOLD, (1 << 31) - 1), (_M_TOP_PAD, 1 << 26))
    return all(_glibc("mallopt", name, value) for name, value in (*sizes, (_M_ARENA_MAX, 1)))


def give_back_freed_memory() -> bool:
    """Gives the memory that all threads have freed back to the system. Returns whether there was any."""
    return bool(_glibc("malloc_trim", 0))


def _glibc(name: str, *values: int) -> int:
    """Calls a function of glibc; returns 0 where there is another C library."""
    call = getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
    return int(call(*values)) if call is not None else 0


class Operand(NamedTuple):
    """A matrix of a product under `vmap`: one for all clients, or one for each."""

    whole: Tensor
    each: bool  # each client has its own, along dimension 0; False: all share one

    def of(self, clients: int) -> Tensor:
        """The tensor with one entry per client along its first dimension; a tensor that all clients share is
        expanded.
        """
        return self.whole if self.each else self.whole.expand(clients, *self.whole.shape)


def pure(of: F) -> F:
    """Decorator: declares that a function depends on its arguments alone, so that a GPU may replay its kernels."""
    PURE.add(of)
    return of


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
    at_work = inside.peek_interpreter_stack()  # the stack must be referenced while it is in use
    level, clients = at_work.level(), inside.CVmapInterpreterPtr(at_work).batchSize()
    parted = [inside._unwrap_batched(one, level) for one in operands]
    outer = inside.pop_dynamic_layer_stack()
    try:
        wholes = [Operand(one if at is None else one.movedim(at, 0), at is not None) for one, at in parted]
        found = rule(clients, *wholes)
    finally:
        inside.push_dynamic_layer_stack(outer)
    return inside._add_batch_dim(found, 0, level)


MOST, STEP, LEAST = 2048, 64, 32  # rows that are multiplied together: a multiple of the step, or the least
LARGE = 1 << 21  # scalar multiplications from which on oneDNN is faster
CLIENTS = 16  # typical number of clients in one product


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer applied to the rows x. Clients that are computed in one call and have the same weights are one
    product.
    """
    if transforming():
        if not vmapping() or CLIENTS * x.numel() * len(weight) < LARGE or not _plain(x, weight):
            return torch.nn.functional.linear(x, weight, bias)
        found = for_all(_of_each, x, weight)
        return found if bias is None else found + bias
    if not _worth(x, weight, len(weight)):
        return torch.nn.functional.linear(x, weight, bias)
    # exact because an output row depends on its own input row alone
    parts = [
        _asked(x[rows], weight, bias) if block else torch.nn.functional.linear(x[rows], weight, bias)
        for rows, block in _blocks(len(x))
    ]
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def times(g: Tensor, weight: Tensor) -> Tensor:
    """The product g weight, which is the gradient at the input of a linear layer."""
    return g @ weight if transforming() or not _worth(g, weight, weight.shape[-1]) else linear(g, weight.t())


def across(left: Tensor, right: Tensor) -> Tensor:
    """The product left^T right, which is the gradient of a linear layer's weights; both have the same rows."""
    if transforming() or not _worth(left, right, right.shape[-1]):
        return left.t() @ right
    (first, _), *others = _blocks(len(left))
    return _onto(_asked(left[first].t(), right[first].t(), None), left, right, 1.0, others)


def added(y: Tensor, left: Tensor, right: Tensor, factor: float = 1.0) -> Tensor:
    """The sum y + factor * left^T right."""
    if transforming() or not _worth(left, right, right.shape[-1]):
        return torch.addmm(y, left.t(), right, alpha=factor)
    return _onto(y.clone(), left, right, factor, _blocks(len(left)))


def add_to(y: Tensor, left: Tensor, right: Tensor, factor: float) -> Tensor:
    """Adds factor * left^T right to y, in place."""
    if transforming() or not _worth(left, right, right.shape[-1]):
        return y.addmm_(left.t(), right, alpha=factor)
    return _onto(y, left, right, factor, _blocks(len(left)))


def _onto(y: Tensor, left: Tensor, right: Tensor, factor: float, parts: Iterable[tuple[slice, bool]]) -> Tensor:
    # exact, except for the order of additions, because left^T right is the sum of such products over blocks of rows
    for rows, block in parts:
        if block:
            y.add_(_asked(left[rows].t(), right[rows].t(), None), alpha=factor)
        else:
            y.addmm_(left[rows].t(), right[rows], alpha=factor)
    return y


def _blocks(rows: int) -> Iterator[tuple[slice, bool]]:
    """Blocks of rows of a few fixed sizes, with True; then the remaining rows, with False."""
    start = 0
    while (left := rows - start) >= LEAST:
        size = min(MOST, left // STEP * STEP) or LEAST
        yield slice(start, start + size), True
        start += size
    if left:
        yield slice(start, rows), False


def _plain(a: Tensor, b: Tensor) -> bool:
    """True for two fp32 matrices on the CPU that need no gradient."""
    return (
        a.dim() == b.dim() == 2
        and a.dtype == b.dtype == torch.float32
        and a.device.type == b.device.type == "cpu"
        and not (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad))
    )


def _worth(a: Tensor, b: Tensor, columns: int) -> bool:
    """True if oneDNN is faster on this processor, and the product is large enough. `columns`: of the result."""
    return a.numel() * columns >= LARGE and len(a) >= LEAST and _by_onednn() is not None and _plain(a, b)


def _asked(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = _by_onednn()(x, weight, bias, "none", [], "")
    return found


def onednn() -> Any:
    """The linear layer of oneDNN; None if torch was built without it."""
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


@cache
def _by_onednn() -> Any:
    """The linear layer of oneDNN; None if torch was built without it or MKL is as fast on this processor."""
    return onednn() if leaves_vectors_aside() else None


def _of_each(clients: int, x: Operand, weight: Operand) -> Tensor:
    rows = x.of(clients)
    if weight.each:
        return rows @ weight.whole.mT
    # exact because rows of clients that share the weights do not meet in a product
    return linear(rows.flatten(0, 1), weight.whole).view(*rows.shape[:2], len(weight.whole))
