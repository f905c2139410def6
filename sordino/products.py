"""Products of large matrices in fp32, by the library of torch that is faster at them.

torch multiplies by MKL, which leaves the widest vectors of an AMD processor aside. oneDNN, which torch has as well,
uses them: it is twice as fast there, to the same rounding of fp32. Its calls cost more, so that small products stay
where they are. What is differentiated by autograd does, too.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from sordino.for_all import Operand, for_all, transforming, vmapping
from sordino.processor import leaves_vectors_aside

if TYPE_CHECKING:
    from torch import Tensor

LARGE = 1 << 21  # multiplications of numbers, from which on a call is worth it
CLIENTS = 16  # about as many share a product


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """What a linear layer makes of the rows x. Clients of a stack that are at the same weights are one product."""
    many = x.numel() * len(weight)
    if transforming():
        if not vmapping() or CLIENTS * many < LARGE or not _plain(x, weight):
            return F.linear(x, weight, bias)
        found = for_all(_of_each, x, weight)
        return found if bias is None else found + bias
    return _product(x, weight, bias) if _worth(x, weight, many) else F.linear(x, weight, bias)


def times(a: Tensor, b: Tensor) -> Tensor:
    """The product a b of two matrices."""
    if transforming() or not _worth(a, b, a.numel() * b.shape[-1]):
        return a @ b
    return _product(a, b.t(), None)


def added(y: Tensor, a: Tensor, b: Tensor, factor: float = 1.0) -> Tensor:
    """The sum y + factor * a b."""
    if transforming() or not _worth(a, b, a.numel() * b.shape[-1]):
        return torch.addmm(y, a, b, alpha=factor)
    return _product(a, b.t(), None).mul_(factor).add_(y)


def add_to(y: Tensor, a: Tensor, b: Tensor, factor: float) -> Tensor:
    """The same sum, in the memory of y."""
    if transforming() or not _worth(a, b, a.numel() * b.shape[-1]):
        return y.addmm_(a, b, alpha=factor)
    return y.add_(_product(a, b.t(), None), alpha=factor)


def _plain(x: Tensor, weight: Tensor) -> bool:
    """Matrices of fp32 on the processor that nobody differentiates."""
    return (
        x.dim() == weight.dim() == 2
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and not (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad))
    )


def _worth(x: Tensor, weight: Tensor, multiplications: int) -> bool:
    return multiplications >= LARGE and _by_onednn() is not None and _plain(x, weight)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = _by_onednn()(x, weight, bias, "none", [], "")
    return found


@cache
def _by_onednn() -> Any:
    """The linear layer of oneDNN; None where MKL does as well, or torch was built without it."""
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None) if leaves_vectors_aside() else None


def _of_each(clients: int, x: Operand, weight: Operand) -> Tensor:
    rows = x.of(clients)
    if not weight.each:
        return linear(rows.flatten(0, 1), weight.whole).view(*rows.shape[:2], len(weight.whole))
    if _worth(rows[0], weight.whole[0], rows[0].numel() * weight.whole.shape[1]):
        return torch.stack([linear(*pair) for pair in zip(rows, weight.whole, strict=True)])
    return rows @ weight.whole.mT
