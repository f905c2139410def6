"""Sums of per-example clipped gradients, without one gradient per example where the layer allows it.

For a layer that is linear in its parameters the gradient of one example is an outer product of its input and the
gradient at its output; its norm and any weighted sum of such gradients follow from those two alone (Goodfellow 2015; Li
et al., ICLR 2022). Layers that are not in `RULES`, and modules that share parameters, take the slow exact path in
chunks.

A clip bounds the influence of one example only where its gradient depends on no other example. No test can show that
for a user's program, so none is relied on: each example goes through the losses as a batch of its own.
`torch.func.vmap` does this for all examples in one call; where it cannot (a branch on a value, a random draw), a loop
does. The choice of path affects correctness, not privacy; it is made once, by comparing the paths on random input.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.fast.factored import Product
from sordino.privacy.readers.beside_public import gradient
from sordino.privacy.uplink.stages import clip_factor
from sordino.types import Examples, Losses, Params

CHUNK_FLOATS = 64_000_000  # of gradients of single examples, in the slow path, at a time
EVERY = slice(None)
# torch goes through some layers (recurrent ones) example by example, and warns of it
warnings.filterwarnings("ignore", "There is a performance drop because we have not yet implemented", UserWarning)


@dataclass
class Tape:
    """Record of one example's forward pass: inputs and outputs of layers. A tap (a zero) is added to each output, and
    the gradient at the tap is the gradient at the output.
    """

    taps: Params
    calls: list[str] = field(default_factory=list)
    given: Params = field(default_factory=dict)  # the input of every layer
    made: Params = field(default_factory=dict)  # and its output

    def heard(self, name: str, given: Tensor, made: Tensor) -> Tensor:
        self.calls.append(name)
        self.given[name], self.made[name] = given, made
        tap = self.taps.get(name)
        return made if tap is None else made + tap


class Recorder:
    """Forward hooks on the modules of a network that hold trained parameters; they record while a tape is running."""

    def __init__(self, module: nn.Module) -> None:
        self._tape: Tape | None = None
        modules = module.named_modules()
        self.layers = {name: one for name, one in modules if any(p.requires_grad for p in one.parameters(False))}
        self.supported = all(covered(leaf) for leaf in self.layers.values())
        if self.supported:
            for name, leaf in self.layers.items():
                leaf.register_forward_hook(self._hook(name))

    def _hook(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor | None]:
        def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            return None if self._tape is None else self._tape.heard(name, inputs[0], output)

        return record

    @contextmanager
    def recording(self, taps: Params) -> Iterator[Tape]:
        self._tape = Tape(taps)
        try:
            yield self._tape
        finally:
            self._tape = None


def covered(leaf: nn.Module) -> bool:
    if not all(p.requires_grad for p in leaf.parameters(recurse=False)):
        return False  # a rule counts the norm of every parameter of a layer
    if type(leaf) is nn.Conv2d:
        return leaf.groups == 1 and leaf.padding_mode == "zeros" and not isinstance(leaf.padding, str)
    if type(leaf) is nn.Embedding:
        return leaf.max_norm is None and not leaf.scale_grad_by_freq and not leaf.sparse
    return type(leaf) in RULES


def fast_sum(
    recorder: Recorder, losses: Losses, params: Params, batch: Examples, keys: Tensor, clip: float, order: int
) -> Params | None:
    """The sum of clipped gradients by the rules of the layers, each example as a batch of its own. None where an
    example does not use each layer exactly once.
    """
    held = {name: value.detach() for name, value in params.items()}
    with recorder.recording({}) as first, torch.no_grad():
        losses(held, batch.x[:1], batch.y[:1], keys[:1])
    sizes = [*first.given.values(), *first.made.values()]
    if sorted(first.calls) != sorted(recorder.layers) or any(len(size) != 1 for size in sizes):
        return None

    def one(taps: Params, x: Tensor, y: Tensor, key: Tensor) -> tuple[Tensor, Params]:
        with recorder.recording(taps) as tape:
            return losses(held, x[None], y[None], key[None])[0], tape.given

    each = torch.func.vmap(torch.func.grad(one, has_aux=True), in_dims=(None, 0, 0, 0))
    # exact because adding a tap of zeros changes no output, and the gradient at the tap is the one at the output
    taps = {name: torch.zeros_like(made) for name, made in first.made.items()}
    back, given = each(taps, batch.x, batch.y, keys)
    passed = [(name, layer, given[name][:, 0], back[name][:, 0]) for name, layer in recorder.layers.items()]
    return Sides(passed, clip, order, next(iter(back.values())).dtype).sum(params)


class Sides:
    """Input and output gradient of each layer for a batch of examples, and each example's clip factor.

    clip: the bound on the norm of an example's whole gradient. None: each parameter is clipped on its own, to the
    median norm over the batch, which is not private.
    """

    def __init__(
        self,
        passed: Iterable[tuple[str, nn.Module, Tensor, Tensor]],
        clip: float | None,
        order: int,
        dtype: torch.dtype,
    ):
        self._sides = {name: RULES[type(module)](module, a, g) for name, module, a, g in passed}
        each = {(name, leaf): norm for name, side in self._sides.items() for leaf, norm in side.norms(order).items()}
        norms = _norm(torch.stack(list(each.values())), order, 0)
        finite = torch.isfinite(norms)
        self._finite = None if bool(finite.all()) else finite
        self.radii = {} if clip is not None else {_path(*at): _median(norm[finite]) for at, norm in each.items()}
        shared = None if clip is None else clip_factor(norms, clip, dtype)
        self._weights = {
            at: shared if shared is not None else clip_factor(norm, self.radii[_path(*at)], dtype)
            for at, norm in each.items()
        }

    def sum(self, params: Params, rows: slice = EVERY) -> Params:
        """Sum of the clipped gradients of some of the examples."""
        finite = None if self._finite is None else self._finite[rows]
        total: Params = {}
        for name, side in self._sides.items():
            weights = {leaf: w[rows] for (layer, leaf), w in self._weights.items() if layer == name}
            for leaf, added in side.weighted(weights, finite, rows).items():
                total[_path(name, leaf)] = added
        return {name: total[name] for name in params}


def _path(layer: str, leaf: str) -> str:
    return f"{layer}.{leaf}" if layer else leaf


def _median(norms: Tensor) -> float:
    return float(torch.quantile(norms, 0.5)) if len(norms) else 0.0


def slow_sum(losses: Losses, params: Params, batch: Examples, keys: Tensor, clip: float, order: int) -> Params:
    """The sum of clipped gradients from one gradient per example, in chunks of bounded memory. This is the
    definition; the fast rules must equal it.
    """
    size = sum(value.numel() for value in params.values())
    step = max(1, CHUNK_FLOATS // max(size, 1))
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    for i in range(0, len(batch.y), step):
        some = slice(i, i + step)
        grads = gradients(losses, params, Examples(batch.x[some], batch.y[some]), keys[some])
        norms = _norm(torch.stack([_norm(g.reshape(len(g), -1), order, 1) for g in grads.values()]), order, 0)
        good = torch.isfinite(norms)
        finite = None if bool(good.all()) else good
        for name, g in grads.items():
            weights = clip_factor(norms, clip, g.dtype)
            total[name] = total[name] + torch.tensordot(weights, _only(finite, g), dims=1)
    return total


def slow_medians(losses: Losses, params: Params, batch: Examples, keys: Tensor) -> tuple[Params, dict[str, float]]:
    """The sum of gradients, each parameter's clipped to its median norm over the batch, and these medians: the slow
    reference that `Sides(clip=None)` must equal.
    """
    grads = gradients(losses, params, batch, keys)
    norms = {name: _norm(g.reshape(len(g), -1), 2, 1) for name, g in grads.items()}
    finite = torch.isfinite(torch.stack(list(norms.values()))).all(0)
    radii = {name: _median(norm[finite]) for name, norm in norms.items()}
    total = {
        name: torch.tensordot(clip_factor(norms[name], radii[name], g.dtype), _only(finite, g), dims=1)
        for name, g in grads.items()
    }
    return total, radii


def gradients(losses: Losses, params: Params, batch: Examples, keys: Tensor) -> Params:
    """Every example's own gradient, [n, ...] for each parameter; the losses see one example at a time."""
    held = {name: value.detach() for name, value in params.items()}

    def one(p: Params, x: Tensor, y: Tensor, key: Tensor) -> Tensor:
        return losses(p, x[None], y[None], key[None])[0]

    try:
        each = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0, 0))
        made: Params = each(held, batch.x, batch.y, keys)
        return made
    except RuntimeError:  # a branch on a value, a draw from torch's own generator; any other error comes up again
        rows = [
            _gradient(losses, params, batch.x[i : i + 1], batch.y[i : i + 1], keys[i : i + 1])
            for i in range(len(batch.y))
        ]
        return {name: torch.stack([row[name] for row in rows]) for name in params}


def one_by_one(losses: Losses, params: Params, batch: Examples, keys: Tensor, clip: float, order: int) -> Params:
    """The sum of clipped gradients by ordinary backward passes, one example after another: for a few examples, without
    loading torch.func.
    """
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    for i in range(len(batch.y)):
        one = slice(i, i + 1)
        grads = _gradient(losses, params, batch.x[one], batch.y[one], keys[one])
        norm = _norm(torch.stack([_norm(g.reshape(1, -1), order, 1) for g in grads.values()]), order, 0)
        for name, g in grads.items():
            total[name] += clip_factor(norm, clip, g.dtype) * g if bool(torch.isfinite(norm)) else 0
    return total


def _gradient(losses: Losses, params: Params, x: Tensor, y: Tensor, key: Tensor) -> Params:
    """The gradient of one example. Draws from torch's own generator follow from the example's key."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(key))
        return gradient(lambda leaves: losses(leaves, x, y, key).sum(), params)


def _norm(x: Tensor, order: int, dim: int) -> Tensor:
    # in float64: the square of 1e-25 underflows in float32, and a factor taken for 0 would let the other pass unclipped
    if dim == 1 and x.dim() == 2:  # widening some rows first is five times as fast as widening in the reduction
        return torch.cat([torch.linalg.vector_norm(part.double(), order, dim=1) for part in torch.split(x, 256)])
    found: Tensor = torch.linalg.vector_norm(x, order, dim=dim, dtype=torch.float64)
    return found


def _lengths(gram: Tensor) -> Tensor:
    """Norms of the vectors of a Gram matrix, from its diagonal; a margin is added for squares that underflow."""
    smallest: float = torch.finfo(gram.dtype).tiny ** 0.5
    return gram.diagonal(0, 1, 2).sqrt() + 1e4 * smallest


def _only(finite: Tensor | None, rows: Tensor) -> Tensor:
    """The rows of finite examples (None: all are finite), with zeros for the others: a weight of 0 would not remove a
    NaN.
    """
    if finite is None:
        return rows
    return torch.where(finite.reshape(-1, *[1] * (rows.dim() - 1)), rows, 0.0)


@dataclass
class Outer:
    """A linear layer on vectors: the gradient of example n is the outer product of g[n] and a[n]."""

    a: Tensor  # [n, in]
    g: Tensor  # [n, out]
    bias: bool

    def norms(self, order: int) -> dict[str, Tensor]:
        # exact because the norm (L1 or L2) of an outer product of two vectors is the product of their norms
        g = _norm(self.g, order, 1)
        return {"weight": _norm(self.a, order, 1) * g} | ({"bias": g} if self.bias else {})

    def weighted(self, weights: dict[str, Tensor], finite: Tensor | None, rows: slice) -> Params:
        # exact because a weighted sum of outer products is one matrix product, with the weights on either factor
        back = _only(finite, self.g[rows])
        g = back * weights["weight"][:, None]
        weight: Any = Product(g, _only(finite, self.a[rows]))
        if not self.bias:
            return {"weight": weight}
        return {"weight": weight, "bias": g.sum(0) if weights["bias"] is weights["weight"] else weights["bias"] @ back}


class Positions:
    """A layer applied at t positions: the gradient of example n is sum_t g[n, :, t] a[n, :, t]^T, formed only where
    that is cheaper.
    """

    def __init__(self, a: Tensor, g: Tensor, shape: torch.Size, bias: bool) -> None:
        self.a, self.g, self.shape = a, g, shape  # [n, in, t], [n, out, t]
        self.bias = g.sum(2) if bias else None
        t, size = a.shape[2], a.shape[1] * g.shape[1]
        self.each = None if 8 * t * t < size else torch.bmm(g, a.mT)  # [n, out, in]

    def norms(self, order: int) -> dict[str, Tensor]:
        if self.each is not None:
            weight = _norm(self.each.flatten(1), order, 1)
        else:  # positions may cancel: their products are in float64, and what a sum of them loses by rounding is added
            a, g = self.a.double(), self.g.double()
            if order == 2:
                # exact because |sum_t g_t a_t^T|^2 = sum over s, t of (g_s . g_t)(a_s . a_t)
                aa, gg = torch.bmm(a.mT, a), torch.bmm(g.mT, g)
                square, lengths = (aa * gg).sum((1, 2)).clamp_min(0), _lengths(aa) * _lengths(gg)
            else:
                square = _norm(torch.bmm(g, a.mT).flatten(1), order, 1) ** 2
                lengths = a.abs().sum(1) * g.abs().sum(1)
            part = 16 * torch.finfo(self.a.dtype).eps + (a.shape[1] + g.shape[1]) * torch.finfo(a.dtype).eps
            weight = (square + part * lengths.sum(1) ** 2).sqrt()
        return {"weight": weight} | ({} if self.bias is None else {"bias": _norm(self.bias, order, 1)})

    def weighted(self, weights: dict[str, Tensor], finite: Tensor | None, rows: slice) -> Params:
        if self.each is not None:
            total = torch.tensordot(weights["weight"], _only(finite, self.each[rows]), dims=1)
        else:
            g = _only(finite, self.g[rows]) * weights["weight"][:, None, None]
            total = torch.einsum("not,nit->oi", g, _only(finite, self.a[rows]))
        found = {"weight": total.reshape(self.shape)}
        return found if self.bias is None else found | {"bias": weights["bias"] @ _only(finite, self.bias[rows])}


@dataclass
class Elementwise:
    """Gradients of each example, stored as they are because they are small: the scale and shift of a norm."""

    grads: Params  # leaf -> [n, ...]

    def norms(self, order: int) -> dict[str, Tensor]:
        return {k: _norm(g.flatten(1), order, 1) for k, g in self.grads.items()}

    def weighted(self, weights: dict[str, Tensor], finite: Tensor | None, rows: slice) -> Params:
        return {k: torch.tensordot(weights[k], _only(finite, g[rows]), dims=1) for k, g in self.grads.items()}


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
        return {"weight": _norm(self.each.flatten(1), order, 1)}

    def weighted(self, weights: dict[str, Tensor], finite: Tensor | None, rows: slice) -> Params:
        g = _only(finite, self.each[rows]) * weights["weight"][:, None, None]
        total = g.new_zeros(self.rows, g.shape[2])
        return {"weight": total.index_add(0, self.index[rows].flatten(), g.flatten(0, 1))}


def _linear(module: nn.Module, a: Tensor, g: Tensor) -> Side:
    assert isinstance(module, nn.Linear)
    if a.dim() == 2:
        return Outer(a, g, module.bias is not None)
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


Side: TypeAlias = Outer | Positions | Elementwise | Lookup
RULES: dict[type[nn.Module], Callable[[nn.Module, Tensor, Tensor], Side]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv2d,
    nn.GroupNorm: _group_norm,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _layer_norm,
    nn.Embedding: _embedding,
}
