"""Backward pass written out by hand for a chain of known layers: gradients of a small network without an autograd
graph.

On batches of ten images the bookkeeping of automatic differentiation costs more than the arithmetic. A
`torch.nn.Sequential` of the layers in `LINKS` is run forward and backward here by the same kernels that autograd would
call, in the layout and precision the task asks for. The gradient of a linear layer stays a product
(`fast.factored.Product`) until it is added to something. Any other network takes the general way.

ReLU and max-pooling commute, with their gradients wherever these exist, so a ReLU before a pooling is applied after it,
to a quarter of the numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.accounting.events import Json
from sordino.fast import linear, times, transforming
from sordino.fast.factored import Part, Product, Ready, Span
from sordino.tasks.nets import Dropout, MeanPool
from sordino.types import Params

aten = torch.ops.aten

Kept: TypeAlias = Any  # private values from the forward of a link to its own backward
Gradients: TypeAlias = Json  # tensors, or products of two that are not formed yet
Slope: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # (logits, target) -> the gradient of a loss at the logits


class LayerPass(NamedTuple):
    """The input of a layer with parameters, and the gradient at its output, from one forward and backward pass."""

    name: str
    module: nn.Module
    a: Tensor
    g: Tensor


@dataclass(frozen=True)
class Link(ABC):
    """One layer with its backward pass written out. `forward` returns the output and what `backward` needs."""

    name: str
    module: Any

    @abstractmethod
    def forward(self, p: Params, x: Tensor, draws: Tensor | None) -> tuple[Tensor, Kept]: ...

    @abstractmethod
    def backward(self, p: Params, kept: object, g: Tensor, deeper: bool) -> Tensor:
        """The gradient at the input; any value where `deeper` is False, as it is not used."""

    def seen(self, kept: object) -> Tensor | None:
        """The input of a layer that has parameters, from the kept values; None for other layers."""
        return None

    def weights(self, p: Params, kept: object, g: Tensor, deeper: bool) -> tuple[Tensor, Gradients]:
        """The gradient at the input, together with those of the layer's own parameters."""
        return self.backward(p, kept, g, deeper), {}

    @cached_property
    def weight(self) -> str:
        return f"{self.name}.weight"

    @cached_property
    def bias(self) -> str:
        """Name of the bias among the parameters; "" where the layer has none."""
        return "" if self.module.bias is None else f"{self.name}.bias"


class Linear(Link):
    def forward(self, p: Params, x: Ready, draws: Tensor | None) -> tuple[Tensor, Kept]:
        if isinstance(x, Part):
            return x.rows.times(p[self.weight], p.get(self.bias), x.index), x
        return linear(x, p[self.weight], p.get(self.bias)), x

    def backward(self, p: Params, kept: object, g: Tensor, deeper: bool) -> Tensor:
        return times(g, p[self.weight]) if deeper else g

    def seen(self, kept: Kept) -> Tensor | None:
        return kept  # type: ignore[no-any-return]

    def weights(self, p: Params, kept: Kept, g: Tensor, deeper: bool) -> tuple[Tensor, Gradients]:
        found: Gradients
        if isinstance(kept, Part):
            left, found = g, {self.weight: Span(kept.rows, g, kept.index)}
        else:
            left, right = (g, kept) if g.dim() == 2 else (g.flatten(0, -2), kept.flatten(0, -2))
            found = {self.weight: Product(left, right)}
        if self.bias:
            found[self.bias] = Product(left)
        return (times(g, p[self.weight]) if deeper else g), found


class Conv(Link):
    def forward(self, p: Params, x: Tensor, draws: Tensor | None) -> tuple[Tensor, Kept]:
        m = self.module
        bias = p[self.bias] if self.bias else None
        return F.conv2d(x, p[self.weight], bias, m.stride, m.padding, m.dilation), x

    def _back(self, p: Params, x: Tensor, g: Tensor, mask: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
        m, w = self.module, p[self.weight]
        sizes = [w.shape[0]] if self.bias else None
        found: tuple[Tensor, Tensor, Tensor] = aten.convolution_backward(
            g, x, w, sizes, m.stride, m.padding, m.dilation, False, [0, 0], 1, mask
        )
        return found

    def backward(self, p: Params, kept: Kept, g: Tensor, deeper: bool) -> Tensor:
        return self._back(p, kept, g, [True, False, False])[0] if deeper else g

    def seen(self, kept: Kept) -> Tensor | None:
        return kept  # type: ignore[no-any-return]

    def weights(self, p: Params, kept: Kept, g: Tensor, deeper: bool) -> tuple[Tensor, Gradients]:
        gx, gw, gb = self._back(p, kept, g, [deeper, True, bool(self.bias)])
        return gx, {self.weight: gw} | ({self.bias: gb} if self.bias else {})


class Norm(Link):
    def forward(self, p: Params, x: Tensor, draws: Tensor | None) -> tuple[Tensor, Kept]:
        n, c, m = x.shape[0], x.shape[1], self.module
        # exact because statistics are over all positions of a group, whose arrangement does not enter
        flat = x.reshape(n, c, -1).contiguous()
        rest = flat.shape[2]
        out, mean, rstd = aten.native_group_norm(flat, p[self.weight], p[self.bias], n, c, rest, m.num_groups, m.eps)
        return out.view(x.shape), (flat, mean, rstd, x)

    def _back(self, p: Params, kept: Kept, g: Tensor, mask: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
        x, mean, rstd, _ = kept
        n, c, rest = x.shape
        found: tuple[Tensor, Tensor, Tensor] = aten.native_group_norm_backward(
            g.reshape(x.shape).contiguous(), x, mean, rstd, p[self.weight], n, c, rest, self.module.num_groups, mask
        )
        return found

    def backward(self, p: Params, kept: object, g: Tensor, deeper: bool) -> Tensor:
        return self._back(p, kept, g, [True, False, False])[0].view(g.shape) if deeper else g

    def seen(self, kept: Kept) -> Tensor | None:
        return kept[3]  # type: ignore[no-any-return]

    def weights(self, p: Params, kept: object, g: Tensor, deeper: bool) -> tuple[Tensor, Gradients]:
        gx, gw, gb = self._back(p, kept, g, [deeper, True, True])
        return gx.view(g.shape) if deeper else g, {self.weight: gw, self.bias: gb}


class Relu(Link):
    def forward(self, p: Params, x: Tensor, draws: Tensor | None) -> tuple[Tensor, Kept]:
        out = torch.relu(x)
        return out, out

    def backward(self, p: Params, kept: object, g: Tensor, deeper: bool) -> Tensor:
        found: Tensor = aten.threshold_backward(g, kept, 0)
        return found


class MaxPool(Link):
    @cached_property
    def _sizes(self) -> tuple[Any, ...]:
        m = self.module
        pair = [
            v if isinstance(v, tuple) else (v, v)
            for v in (m.kernel_size, m.stride or m.kernel_size, m.padding, m.dilation)
        ]
        return (*pair, m.ceil_mode)

    def forward(self, p: Params, x: Tensor, draws: Tensor | None) -> tuple[Tensor, Kept]:
        if not self._by_halves(x):
            out, where = aten.max_pool2d_with_indices(x, *self._sizes)
            return out, (x, where)
        pixels = x.permute(0, 2, 3, 1)
        columns = torch.maximum(pixels[:, :, 0::2], pixels[:, :, 1::2])
        return torch.maximum(columns[:, 0::2], columns[:, 1::2]).permute(0, 3, 1, 2), (pixels, columns)

    def backward(self, p: Params, kept: Kept, g: Tensor, deeper: bool) -> Tensor:
        x, seen = kept
        if seen.dtype != x.dtype:
            places: Tensor = aten.max_pool2d_with_indices_backward(g, x, *self._sizes, seen)
            return places
        rows, found = torch.empty_like(seen), torch.empty_like(x)
        _to_the_larger(g.permute(0, 2, 3, 1), seen[:, 0::2], seen[:, 1::2], rows[:, 0::2], rows[:, 1::2])
        _to_the_larger(rows, x[:, :, 0::2], x[:, :, 1::2], found[:, :, 0::2], found[:, :, 1::2])
        return found.permute(0, 3, 1, 2)

    def _by_halves(self, x: Tensor) -> bool:
        """True if 2x2 pooling can be done by two element-wise maxima: bfloat16, even sides, channels last. They give
        the kernel's numbers without its 64-bit indices. In float32 this gains nothing.
        """
        return (
            x.dtype == torch.bfloat16
            and self._sizes == ((2, 2), (2, 2), (0, 0), (1, 1), False)
            and not transforming()
            and x.is_contiguous(memory_format=torch.channels_last)
            and x.shape[2] % 2 == x.shape[3] % 2 == 0
        )


def _to_the_larger(g: Tensor, a: Tensor, b: Tensor, at_a: Tensor, at_b: Tensor) -> None:
    """Writes each gradient to the position of the larger of two numbers, of the first if they are equal."""
    # exact because b - a > 0 just where b > a, and the other position gets g - g = 0 or g - 0 = g
    aten.threshold_backward.grad_input(g, b - a, 0, grad_input=at_b)
    torch.sub(g, at_b, out=at_a)


class AdaptivePool(Link):
    def forward(self, p: Params, x: Tensor, draws: Tensor | None) -> tuple[Tensor, Kept]:
        return self.module(x), x

    def backward(self, p: Params, kept: object, g: Tensor, deeper: bool) -> Tensor:
        found: Tensor = aten._adaptive_avg_pool2d_backward(g, kept)
        return found


class Flatten(Link):
    def forward(self, p: Params, x: Tensor, draws: Tensor | None) -> tuple[Tensor, Kept]:
        return x.flatten(1), x.shape

    def backward(self, p: Params, kept: Kept, g: Tensor, deeper: bool) -> Tensor:
        return g.reshape(kept)


class Mean(Link):
    def forward(self, p: Params, x: Tensor, draws: Tensor | None) -> tuple[Tensor, Kept]:
        return x.mean((2, 3)), x.shape

    def backward(self, p: Params, kept: Kept, g: Tensor, deeper: bool) -> Tensor:
        # exact because each of the pixels enters the mean with the same weight
        found: Tensor = (g / (kept[2] * kept[3]))[:, :, None, None].expand(kept)
        return found


class Drop(Link):
    def forward(self, p: Params, x: Tensor, draws: Tensor | None) -> tuple[Tensor, Kept]:
        mask = self.module.mask(x, draws)
        return (x, None) if mask is None else (x * mask, mask)

    def backward(self, p: Params, kept: Kept, g: Tensor, deeper: bool) -> Tensor:
        return g if kept is None else g * kept


LINKS: dict[type[nn.Module], Callable[[str, Any], Link]] = {
    nn.Linear: Linear,
    nn.Conv2d: Conv,
    nn.GroupNorm: Norm,
    nn.ReLU: Relu,
    nn.MaxPool2d: MaxPool,
    nn.AdaptiveAvgPool2d: AdaptivePool,
    nn.Flatten: Flatten,
    MeanPool: Mean,
    Dropout: Drop,
}


def _plain(m: nn.Module) -> bool:
    """True if the layer has only settings that its link implements, its class's own `forward`, and no hooks."""
    if "forward" in vars(m) or m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks:
        return False
    if isinstance(m, nn.Conv2d):
        return m.groups == 1 and m.padding_mode == "zeros" and not isinstance(m.padding, str)
    if isinstance(m, nn.MaxPool2d):
        return not m.return_indices
    if isinstance(m, nn.Flatten):
        return m.start_dim == 1 and m.end_dim == -1
    return not isinstance(m, nn.GroupNorm) or m.affine


class Chain:
    """The layers of a feed-forward network, first to last, each with its written-out backward pass."""

    def __init__(self, links: list[Link]) -> None:
        self.links = links
        self.classes = int(links[-1].module.out_features)
        self.head = (links[-1].weight, links[-1].bias)
        self.drops = any(isinstance(link, Drop) for link in links)
        self.images = any(isinstance(link, Conv) for link in links)
        self.first = next((i for i, link in enumerate(links) if isinstance(link, Linear | Conv | Norm)), 0)
        self._linear = isinstance(links[self.first], Linear) and all(
            isinstance(link, Flatten) for link in links[: self.first]
        )

    @staticmethod
    def of(net: nn.Module, shape: tuple[int, ...]) -> Chain | None:
        """The chain of a network. None where the network is not a chain of known layers that ends in a linear one,
        each used once with parameters of its own.

        No link mixes examples, on which per-example clipping relies. `shape` is that of one example; it tells a batch
        of planes from the channels of one image.
        """
        if type(net) is not nn.Sequential or (len(shape) != 3 and any(isinstance(m, nn.Conv2d) for m in net)):
            return None
        modules = list(net._modules.items())  # named_children leaves out a layer that is used again
        owned = [p for _, m in modules for p in m.parameters()]
        known = (
            bool(modules)
            and all(type(m) in LINKS and _plain(m) for _, m in modules)
            and type(modules[-1][1]) is nn.Linear
        )
        if not known or len({id(p) for p in owned}) < len(owned) or not all(p.requires_grad for p in owned):
            return None
        links = [LINKS[type(m)](name, m) for name, m in modules]
        for i in range(len(links) - 1):
            # exact because ReLU is monotone: the ReLU of the largest number is the largest of the ReLUs
            if isinstance(links[i], Relu) and isinstance(links[i + 1], MaxPool):
                links[i], links[i + 1] = links[i + 1], links[i]
        return Chain(links)

    def forward(self, p: Params, x: object, draws: Tensor | None) -> tuple[Tensor, list[Kept]]:
        """The output for `x`: images, or, for a network that only flattens them before a linear layer, a `Part` of
        `ClientRows`.
        """
        z, kept = self.body(p, x, draws)
        logits, saved = self.links[-1].forward(p, z, draws)
        return logits, [*kept, saved]

    def body(self, p: Params, x: Ready, draws: Tensor | None) -> tuple[Ready, list[Kept]]:
        """The input of the last layer, which computes the logits, and the values kept for the backward pass."""
        # exact because a `Part` holds flat rows, and before the first layer there is nothing but `Flatten`
        start = self.first if isinstance(x, Part) else 0
        kept: list[Kept] = [None] * start
        for link in self.links[start:-1]:
            x, saved = link.forward(p, x, draws)
            kept.append(saved)
        return x, kept

    def back(self, p: Params, kept: list[object], g: Tensor) -> Gradients:
        """The gradients of all parameters up to the last link with kept values, whose output has the gradient `g`."""
        found: Gradients = {}
        for i in range(len(kept) - 1, self.first - 1, -1):
            g, own = self.links[i].weights(p, kept[i], g, i > self.first)
            found.update(own)
        return found

    def logits(self, p: Params, x: Tensor) -> Tensor:
        for link in self.links:
            x, _ = link.forward(p, x, None)
        return x

    def spans(self, n: int) -> bool:
        """True if n rows cost less as `ClientRows` than as images: the first layer is linear, and has at least as many
        weights as n rows have coefficients.
        """
        if not self._linear:
            return False
        first = self.links[self.first].module
        return bool(n * (first.in_features + first.out_features) <= first.in_features * first.out_features)

    def floats(self, p: Params, one: Tensor) -> int:
        """Numbers that are read or written in a forward and backward pass over one row, including the windows of
        convolutions.
        """
        total, x = one.numel(), one
        for link in self.links:
            x, _ = link.forward(p, x, None)
            windows = link.module.weight[0].numel() * x[0, 0].numel() if isinstance(link, Conv) else 0
            total += 2 * x.numel() + windows
        return total

    def gradient(
        self, p: Params, x: object, target: Tensor, draws: Tensor | None, slope: Slope, share: Tensor | None = None
    ) -> Gradients:
        """The gradient of the mean loss, in the precision of `p`; leaves are tensors or products of two. `slope` gives
        the gradient of the summed losses with respect to the logits, in the precision of the target, which is at least
        float32; `share` is the weight of each row in the mean, where weights differ.
        """
        logits, kept = self.forward(p, x, draws)
        g = slope(logits, target)
        g = g.div_(target.shape[0]) if share is None else g * share.to(g.dtype)[:, None]
        if g.dtype != logits.dtype:
            g = g.to(logits.dtype)
        found = self.back(p, kept, g)
        return {name: found[name] for name in p}

    def tape(self, p: Params, x: Tensor, target: Tensor, draws: Tensor | None, slope: Slope) -> list[LayerPass]:
        """The inputs and output gradients of all layers with parameters, for the summed losses of the examples."""
        logits, kept = self.forward(p, x, draws)
        g, passed = slope(logits, target), []
        for i in range(len(self.links) - 1, self.first - 1, -1):
            link = self.links[i]
            if (a := link.seen(kept[i])) is not None:
                passed.append(LayerPass(link.name, link.module, a, g))
            g = link.backward(p, kept[i], g, i > self.first)
        return passed[::-1]
