"""Features (the input of a network's last linear layer) and their gradients.

For a `Chain` of known layers (`written_out_backward`), the backward pass is written out in one autograd function, in
the precision of training. In any other network a hook at the last layer records its input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sordino.errors import ConfigError
from sordino.fast.factored import dense
from sordino.tasks.written_out_backward import Chain
from sordino.types import Params


def of_chain(chain: Chain, params: Params, x: Tensor, draws: Tensor | None, precision: torch.dtype) -> Tensor:
    """The features of a network with written-out backward pass (`Chain`), computed in `precision` and returned in the
    dtype of the parameters.
    """
    body = {name: value for name, value in params.items() if name not in chain.head}
    wide = x.to(precision)
    arguments = (chain, tuple(body), precision, wide, draws, *body.values())
    z: Tensor = _Features.apply(*arguments)  # type: ignore[no-untyped-call]
    return z.to(next(iter(params.values())).dtype)


class _Features(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        chain: Chain,
        names: tuple[str, ...],
        precision: torch.dtype,
        x: Tensor,
        draws: Tensor | None,
        *values: Tensor,
    ) -> Tensor:
        cast = [value.to(precision) for value in values]
        ctx.save_for_backward(*cast)
        ctx.chain, ctx.names, ctx.kinds = chain, names, [value.dtype for value in values]
        z, ctx.kept = chain.body(dict(zip(names, cast, strict=True)), x, draws)
        return torch.clone(z)  # a kept tensor must not refer to the graph that keeps it

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        p = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
        found = ctx.chain.back(p, ctx.kept, g)
        return (None,) * 5 + tuple(dense(found[name].to(kind)) for name, kind in zip(ctx.names, ctx.kinds, strict=True))


class Head:
    """The linear layer that gives a network's logits."""

    def __init__(self, net: nn.Module, name: str, x: Tensor) -> None:
        """Finds the last linear layer of the network by a forward pass over a few rows `x`. `name`: of the model, for
        errors.
        """
        seen: list[tuple[str, nn.Linear, Tensor, Tensor]] = []
        layers = [(path, m) for path, m in net.named_modules() if type(m) is nn.Linear]
        watching = [
            m.register_forward_hook(lambda m, args, out, path=path: seen.append((path, m, args[0], out)))
            for path, m in layers
        ]
        net.eval()
        try:
            with torch.no_grad():
                logits = net(x)
        finally:
            for handle in watching:
                handle.remove()
        last = seen[-1] if seen else None
        if (
            last is None
            or last[2].dim() != 2
            or not torch.equal(last[3], logits)
            or [s[0] for s in seen].count(last[0]) > 1
        ):
            raise ConfigError(
                f"the model {name!r} has no features that can be found",
                why="features are the input of the last layer: an nn.Linear that is used once and whose output is the "
                "logits",
                fix="end the model with an nn.Linear",
                code="model-without-head",
            )
        self._path, self._layer = last[:2]

    def logits(self, params: Params, z: Tensor) -> Tensor:
        prefix = f"{self._path}." if self._path else ""
        own = dict(self._layer.named_parameters())  # where they are not trained
        held = {k: params.get(prefix + k, v) for k, v in own.items()}
        made: Tensor = torch.func.functional_call(self._layer, held, (z,))
        return made

    def input(self, net: nn.Module, params: Params, x: Tensor) -> Tensor:
        seen: list[Tensor] = []
        handle = self._layer.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
        try:
            torch.func.functional_call(net, params, (x,))
        finally:
            handle.remove()
        return seen[0]
