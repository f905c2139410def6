"""Gradients of single examples by kind of layer: their norms, and their weighted sum, from the layer's input and the
gradient at its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.fast.factored import Product
from sordino.fast.row_sums import RowSum, of_positions, weighed
from sordino.types import Params

CACHED = 1 << 17  # numbers that fit into the cache of a core as float64


def norm_of(x: Tensor, order: int, dim: int) -> Tensor:
    # in float64: the square of 1e-25 underflows in float32, and a factor taken for 0 would let the other pass unclipped
    if dim == 1 and x.dim() == 2:  # as many rows as the cache holds are widened: the reduction would do it more slowly
        some = torch.split(x, max(1, CACHED // max(1, x.shape[1])))
        return torch.cat([torch.linalg.vector_norm(part.double(), order, dim=1) for part in some])
    found: Tensor = torch.linalg.vector_norm(x, order, dim=dim, dtype=torch.float64)
    return found


def _lengths(gram: Tensor) -> Tensor:
    """Norms of the vectors of a Gram matrix, from its diagonal; a margin is added for squares that underflow."""
    smallest: float = torch.finfo(gram.dtype).tiny ** 0.5
    return gram.diagonal(0, 1, 2).sqrt() + 1e4 * smallest


def only(finite: Tensor | None, rows: Tensor) -> Tensor:
    """The rows of finite examples, with zeros for the others (`finite` None: all are finite): a weight of 0 would not
    remove a NaN.
    """
    if finite is None:
        return rows
    return torch.where(finite.reshape(-1, *[1] * (rows.dim() - 1)), rows, 0.0)


def _shortened(g: Tensor, weights: Tensor) -> Tensor:
    """Output gradients `g`, each scaled by its weight (the clip factor), to be multiplied by inputs of any size.
    Subnormal results have lost digits; they become 0, because rounded up they could exceed the clip.
    """
    return F.hardshrink(g * weights, torch.finfo(g.dtype).tiny)


@dataclass
class OuterProduct:
    """A linear layer on vectors: the gradient of example n is the outer product of g[n] and a[n]."""

    a: Tensor  # [n, in]
    g: Tensor  # [n, out]
    bias: bool

    def norms(self, order: int) -> dict[str, Tensor]:
        # exact because the norm (L1 or L2) of an outer product of two vectors is the product of their norms
        g = norm_of(self.g, order, 1)
        return {"weight": norm_of(self.a, order, 1) * g} | ({"bias": g} if self.bias else {})

    def weighted(self, weights: dict[str, Tensor], finite: Tensor | None, rows: slice) -> Params:
        # exact because a weighted sum of outer products is one matrix product, with the weights on either factor
        back = only(finite, self.g[rows])
        g = _shortened(back, weights["weight"][:, None])
        weight: Any = Product(g, only(finite, self.a[rows]))
        if not self.bias:
            return {"weight": weight}
        alike = weights["bias"] is weights["weight"]
        return {
            "weight": weight,
            "bias": RowSum(partial(torch.sum, dim=0), g) if alike else weighed(weights["bias"], back),
        }


class Positions:
    """A layer applied at t positions: the gradient of example n is sum_t g[n, :, t] a[n, :, t]^T, formed only where
    that is cheaper.
    """

    def __init__(self, a: Tensor, g: Tensor, shape: torch.Size, bias: bool) -> None:
        self.a, self.g, self.shape = a, g, shape  # [n, in, t], [n, out, t]
        self.bias = g.sum(2) if bias else None
        # the gradient of each example, [n, out, in]; None where a and g take less memory even in float64: there it is
        # also faster to find the norm from them
        smaller = 2 * a.shape[2] * (a.shape[1] + g.shape[1]) < a.shape[1] * g.shape[1]
        self.each = None if smaller else torch.bmm(g, a.mT)

    def norms(self, order: int) -> dict[str, Tensor]:
        if self.each is not None:
            weight = norm_of(self.each.flatten(1), order, 1)
        else:  # positions may cancel: their products are in float64, and what a sum of them loses by rounding is added
            a, g = self.a.double(), self.g.double()
            if order == 2:
                # exact because |sum_t g_t a_t^T|^2 = sum over s, t of (g_s . g_t)(a_s . a_t)
                aa, gg = torch.bmm(a.mT, a), torch.bmm(g.mT, g)
                square, lengths = (aa * gg).sum((1, 2)).clamp_min(0), _lengths(aa) * _lengths(gg)
            else:
                square = norm_of(torch.bmm(g, a.mT).flatten(1), order, 1) ** 2
                lengths = a.abs().sum(1) * g.abs().sum(1)
            part = 16 * torch.finfo(self.a.dtype).eps + (a.shape[1] + g.shape[1]) * torch.finfo(a.dtype).eps
            weight = (square + part * lengths.sum(1) ** 2).sqrt()
        return {"weight": weight} | ({} if self.bias is None else {"bias": norm_of(self.bias, order, 1)})

    def weighted(self, weights: dict[str, Tensor], finite: Tensor | None, rows: slice) -> Params:
        if self.each is not None:
            weight = weighed(weights["weight"], only(finite, self.each[rows]).view(-1, *self.shape))
        else:
            g = _shortened(only(finite, self.g[rows]), weights["weight"][:, None, None])
            weight = of_positions(self._products, g, only(finite, self.a[rows]))
        found = {"weight": weight}
        return found if self.bias is None else found | {"bias": weighed(weights["bias"], only(finite, self.bias[rows]))}

    def _products(self, g: Tensor, a: Tensor) -> Tensor:
        return torch.einsum("not,nit->oi", g, a).reshape(self.shape)


@dataclass
class Elementwise:
    """Gradients of each example, stored as they are because they are small: the scale and shift of a norm."""

    grads: Params  # leaf -> [n, ...]

    def norms(self, order: int) -> dict[str, Tensor]:
        return {k: norm_of(g.flatten(1), order, 1) for k, g in self.grads.items()}

    def weighted(self, weights: dict[str, Tensor], finite: Tensor | None, rows: slice) -> Params:
        return {k: weighed(weights[k], only(finite, g[rows])) for k, g in self.grads.items()}


class Lookup:
    """An embedding: the gradient of example n has g[n, t] in the row index[n, t]; equal indices add up."""

    def __init__(self, index: Tensor, g: Tensor, module: nn.Embedding) -> None:
        self.index, self.rows = index, module.num_embeddings  # [n, t]
        if module.padding_idx is not None:
            g = torch.where((index == module.padding_idx)[..., None], 0.0, g)
        same = index[:, :, None] == index[:, None, :]
        # exact because positions of equal index add up in one row of the table, which is counted once, at the first;
        # before the clip, as large gradients that cancel would round away the sum of all examples
        first = ~same.tril(-1).any(2)
        self.each = torch.where(first[..., None], same.to(g.dtype) @ g, 0.0)  # [n, t, width]

    def norms(self, order: int) -> dict[str, Tensor]:
        return {"weight": norm_of(self.each.flatten(1), order, 1)}

    def weighted(self, weights: dict[str, Tensor], finite: Tensor | None, rows: slice) -> Params:
        total: Any = RowSum(self._added, self.index[rows], weights["weight"], only(finite, self.each[rows]))
        return {"weight": total}

    def _added(self, index: Tensor, weights: Tensor, g: Tensor) -> Tensor:
        scaled = (g * weights[:, None, None]).flatten(0, 1)
        return g.new_zeros(self.rows, g.shape[2]).index_add(0, index.flatten(), scaled)


def _linear(module: nn.Module, a: Tensor, g: Tensor) -> Side:
    assert isinstance(module, nn.Linear)
    if a.dim() == 2:
        return OuterProduct(a, g, module.bias is not None)
    return Positions(a.flatten(1, -2).mT, g.flatten(1, -2).mT, module.weight.shape, module.bias is not None)


def _conv2d(module: nn.Module, a: Tensor, g: Tensor) -> Side:
    assert isinstance(module, nn.Conv2d)
    # exact because a convolution is a linear layer on the window of each position
    columns = F.unfold(a, module.kernel_size, module.dilation, module.padding, module.stride)  # type: ignore[arg-type]
    return Positions(columns, g.flatten(2), module.weight.shape, module.bias is not None)


def _group_norm(module: nn.Module, a: Tensor, g: Tensor) -> Elementwise:
    assert isinstance(module, nn.GroupNorm)
    return _rescaled(module, F.group_norm(a, module.num_groups, eps=module.eps), g, range(2, a.dim()))


def _layer_norm(module: nn.Module, a: Tensor, g: Tensor) -> Elementwise:
    assert isinstance(module, nn.LayerNorm | nn.RMSNorm)
    norm: Any = F.layer_norm if isinstance(module, nn.LayerNorm) else F.rms_norm
    shape = module.normalized_shape
    return _rescaled(module, norm(a, shape, eps=module.eps), g, range(1, a.dim() - len(shape)))


def _rescaled(module: nn.Module, normal: Tensor, g: Tensor, positions: range) -> Elementwise:
    # exact because the layer computes weight * normal + bias, and `normal` depends on neither parameter
    grads, over = {"weight": normal * g, "bias": g}, tuple(positions)  # of no dimensions torch would sum over all
    return Elementwise({name: grads[name].sum(over) if over else grads[name] for name, _ in module.named_parameters()})


def _embedding(module: nn.Module, a: Tensor, g: Tensor) -> Lookup:
    assert isinstance(module, nn.Embedding)
    return Lookup(a.flatten(1), g.flatten(1, -2), module)


Side: TypeAlias = OuterProduct | Positions | Elementwise | Lookup
RULES: dict[type[nn.Module], Callable[[nn.Module, Tensor, Tensor], Side]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _layer_norm,
    nn.Embedding: _embedding,
}


def joined(sides: Sequence[Side]) -> Side:
    """One layer's sides in several passes as those of a single one; nothing of an example is computed again."""
    first = copy(sides[0])
    for name, value in vars(first).items() if len(sides) > 1 else ():
        parts = [vars(side)[name] for side in sides]
        if isinstance(value, Tensor):
            vars(first)[name] = torch.cat(parts)
        elif isinstance(value, dict):
            vars(first)[name] = {leaf: torch.cat([part[leaf] for part in parts]) for leaf in value}
    return first
