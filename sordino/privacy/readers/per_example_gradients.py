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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from sordino.fast.row_sums import RunningSum, rounded, weighed
from sordino.privacy.readers import gradient
from sordino.privacy.readers.layer_gradients import RULES, Side, joined, norm_of, only
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
        owned = [p for leaf in self.layers.values() for p in leaf.parameters(recurse=False)]
        self.supported = all(covered(leaf) for leaf in self.layers.values()) and len({*map(id, owned)}) == len(owned)
        if self.supported:
            for name, leaf in self.layers.items():
                leaf.register_forward_hook(self._hook(name))

    def _hook(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor | None]:
        def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            # a layer that is given its input by name is not heard, and so has no rule
            return None if self._tape is None or not inputs else self._tape.heard(name, inputs[0], output)

        return record

    @contextmanager
    def recording(self, taps: Params) -> Iterator[Tape]:
        self._tape = Tape(taps)
        try:
            yield self._tape
        finally:
            self._tape = None


def covered(leaf: nn.Module) -> bool:
    own = dict(leaf.named_parameters(recurse=False))
    if not own.keys() <= {"weight", "bias"} or not all(p.requires_grad for p in own.values()):
        return False  # a rule counts the norm of every parameter of a layer, and knows these two
    if type(leaf) is nn.Conv2d:
        return leaf.groups == 1 and leaf.padding_mode == "zeros" and not isinstance(leaf.padding, str)
    if type(leaf) is nn.Embedding:
        return leaf.max_norm is None and not leaf.scale_grad_by_freq and not leaf.sparse
    return type(leaf) in RULES


def fast_sum(
    recorder: Recorder,
    losses: Losses,
    params: Params,
    batch: Examples,
    keys: Tensor,
    clip: float,
    order: int,
    solo: bool = False,
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
    found = [each(taps, *rows) for rows in passes(solo, batch.x, batch.y, keys)]
    kind = next(iter(found[0][0].values())).dtype
    layers = recorder.layers.items()
    tapes = [[(name, one, given[name][:, 0], back[name][:, 0]) for name, one in layers] for back, given in found]
    return Sides(tapes, clip, order, kind).sum(params)


LayerSides: TypeAlias = tuple[str, nn.Module, Tensor, Tensor]  # input of a layer, and the gradient at its output


def passes(solo: bool, *rows: Any) -> list[tuple[Any, ...]]:
    """The rows of each pass over the network: all in one, or each in one of its own (`solo`). How many go through
    together decides how each is rounded, and so may the place of a row in memory; one that is missing would change the
    gradients of all others, and by far more than a last digit where weights are large.
    """
    if not solo:
        return [rows]
    each = [[None] * len(rows[0]) if one is None else [row.clone() for row in one.split(1)] for one in rows]
    return list(zip(*each, strict=True))


class Sides:
    """Input and output gradient of each layer for a batch of examples, and each example's clip factor.

    clip: the bound on the norm of an example's whole gradient. None: each parameter is clipped on its own, to the
    median norm over the batch, which is not private.
    """

    def __init__(
        self,
        tapes: Sequence[Sequence[LayerSides]],
        clip: float | None,
        order: int,
        dtype: torch.dtype,
    ):
        self._sides: dict[str, Side] = {}
        each: dict[tuple[str, str], Tensor] = {}
        for layer in zip(*tapes, strict=True):
            name, module, *_ = layer[0]
            sides = [RULES[type(module)](module, a, g) for a, g in _each_pass(layer)]
            found = [side.norms(order) for side in sides]
            each |= {(name, leaf): torch.cat([one[leaf] for one in found]) for leaf in found[0]}
            self._sides[name] = joined(sides)
        norms = norm_of(torch.stack(list(each.values())), order, 0)
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


def _each_pass(layer: Sequence[LayerSides]) -> list[tuple[Tensor, Tensor]]:
    """Input and output gradient of one layer, pass by pass: a sum over positions is rounded in another way beside other
    examples. A linear layer on vectors has none, so there all passes are as good as one.
    """
    _, modules, given, back = zip(*layer, strict=True)
    if len(layer) > 1 and type(modules[0]) is nn.Linear and given[0].dim() == 2:
        return [(torch.cat(given), torch.cat(back))]
    return list(zip(given, back, strict=True))


def _path(layer: str, leaf: str) -> str:
    return f"{layer}.{leaf}" if layer else leaf


def _median(norms: Tensor) -> float:
    return float(torch.quantile(norms, 0.5)) if len(norms) else 0.0


def slow_sum(
    losses: Losses, params: Params, batch: Examples, keys: Tensor, clip: float, order: int, solo: bool = False
) -> Params:
    """The sum of clipped gradients from one gradient per example, in chunks of bounded memory. This is the
    definition; the fast rules must equal it.
    """
    size = sum(value.numel() for value in params.values())
    step = 1 if solo else max(1, CHUNK_FLOATS // max(size, 1))
    total = {name: RunningSum(torch.zeros_like(value, dtype=torch.float64)) for name, value in params.items()}
    for i in range(0, len(batch.y), step):
        some = slice(i, i + step)
        x = batch.x[some].clone() if solo else batch.x[some]
        grads = gradients(losses, params, Examples(x, batch.y[some]), keys[some])
        norms = norm_of(torch.stack([norm_of(g.reshape(len(g), -1), order, 1) for g in grads.values()]), order, 0)
        good = torch.isfinite(norms)
        finite = None if bool(good.all()) else good
        for name, g in grads.items():
            weights = clip_factor(norms, clip, g.dtype)
            total[name].add(weighed(weights, only(finite, g)).wide())
    return {name: rounded(value.sum(), params[name].dtype) for name, value in total.items()}


def slow_medians(losses: Losses, params: Params, batch: Examples, keys: Tensor) -> tuple[Params, dict[str, float]]:
    """The sum of gradients, each parameter's clipped to its median norm over the batch, and these medians: the slow
    reference that `Sides(clip=None)` must equal.
    """
    grads = gradients(losses, params, batch, keys)
    norms = {name: norm_of(g.reshape(len(g), -1), 2, 1) for name, g in grads.items()}
    finite = torch.isfinite(torch.stack(list(norms.values()))).all(0)
    radii = {name: _median(norm[finite]) for name, norm in norms.items()}
    total = {
        name: torch.tensordot(clip_factor(norms[name], radii[name], g.dtype), only(finite, g), dims=1)
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
        norm = norm_of(torch.stack([norm_of(g.reshape(1, -1), order, 1) for g in grads.values()]), order, 0)
        for name, g in grads.items():
            total[name] += clip_factor(norm, clip, g.dtype) * g if bool(torch.isfinite(norm)) else 0
    return total


def _gradient(losses: Losses, params: Params, x: Tensor, y: Tensor, key: Tensor) -> Params:
    """The gradient of one example. Draws from torch's own generator follow from the example's key."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(key))
        return gradient(lambda leaves: losses(leaves, x, y, key).sum(), params)
