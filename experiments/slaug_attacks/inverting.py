"""Images behind a prototype by descent: images are sought whose features are the prototype, and a prior chooses among
the many that there are.

by_network  a small convolutional network from fixed noise, whose structure is the prior, as SlaugFL attacks itself
            (IEEE Transactions on Mobile Computing, 2024)
by_pixels   the pixels themselves, smooth by total variation (Mahendran and Vedaldi, CVPR 2015), from an image that the
            attacker starts with

Many prototypes are inverted together, each by itself. Images are [n, c, h, w] between 0 and 1, features [n, d].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from sordino import keys
from sordino.attacks.reconstruction import variation
from sordino.keys import Key

Look: TypeAlias = Callable[[Tensor], Tensor]  # images -> features, differentiable: `task.look` at known parameters
NOISE, WIDTH = 64, 16


def by_network(
    look: Look, prototypes: Tensor, shape: Sequence[int], key: Key, steps: int = 2000, lr: float = 2e-3
) -> Tensor:
    """Images from features by one network for each prototype. `shape` of an image: (c, h, w)."""
    count, (_, height, width) = len(prototypes), shape
    net = _network(shape)
    weights = {name: _drawn(name, value, count, keys.fold(key, name)) for name, value in net.named_parameters()}
    noise = keys.normal(keys.fold(key, "noise"), count * NOISE).float().reshape(count, 1, NOISE)

    def one(params: dict[str, Tensor], fixed: Tensor) -> Tensor:
        made: Tensor = torch.func.functional_call(net, params, (fixed,))
        return made[0]

    def images() -> Tensor:
        made: Tensor = torch.func.vmap(one)(weights, noise)
        return made[..., :height, :width]

    _descend(list(weights.values()), lambda: _misses(look, images(), prototypes), steps, lr)
    return images().detach()


def by_pixels(
    look: Look, prototypes: Tensor, start: Tensor, steps: int = 300, lr: float = 0.05, smooth: float = 0.002
) -> Tensor:
    """Images from features by descent on pixels. `start`: an image [c, h, w], for instance the mean of the class in
    the attacker's own sample. `smooth` weighs total variation against the features' relative error.
    """
    x = start.float()[None].repeat(len(prototypes), 1, 1, 1).requires_grad_()

    def loss() -> Tensor:
        return _misses(look, x, prototypes) + smooth * variation(x)

    def inside() -> None:
        x.clamp_(0, 1)

    _descend([x], loss, steps, lr, inside)
    return x.detach()


def _misses(look: Look, x: Tensor, prototypes: Tensor) -> Tensor:
    """Squared distance of features to the prototypes, each in units of its own length, summed over images."""
    wanted = prototypes.float()
    return (((look(x) - wanted) ** 2).sum(1) / (wanted**2).sum(1).clamp_min(1e-12)).sum()


def _descend(
    leaves: list[Tensor], loss: Callable[[], Tensor], steps: int, lr: float, after: Callable[[], None] | None = None
) -> None:
    """Adam: every number takes its own step, so images do not get into each other's way."""
    adam = torch.optim.Adam(leaves, lr)
    for _ in range(steps):
        for leaf, slope in zip(leaves, torch.autograd.grad(loss(), leaves), strict=True):
            leaf.grad = slope
        adam.step()
        if after is not None:
            with torch.no_grad():
                after()


def _network(shape: Sequence[int]) -> nn.Module:
    channels, height, width = shape
    low = (2 * WIDTH, -(-height // 4), -(-width // 4))
    with torch.device("meta"):
        return nn.Sequential(
            *(nn.Linear(NOISE, math.prod(low)), nn.Unflatten(1, low), nn.LeakyReLU(0.2)),
            *(nn.Upsample(None, 2), nn.Conv2d(2 * WIDTH, WIDTH, 3, padding=1), nn.LeakyReLU(0.2)),
            *(nn.Upsample(None, 2), nn.Conv2d(WIDTH, channels, 3, padding=1), nn.Sigmoid()),
        )


def _drawn(name: str, like: Tensor, count: int, key: Key) -> Tensor:
    """He's initial weights, biases 0; `count` of them."""
    if name.endswith("bias"):
        return torch.zeros(count, *like.shape).requires_grad_()
    scale = math.sqrt(2 / like[0].numel())
    return (scale * torch.randn(count, *like.shape, generator=keys.generator(key))).requires_grad_()


def ranks(made: Tensor, truth: Tensor, others: Tensor) -> Tensor:
    """The place of each true image among it and `others`, by pixel distance to what was made of it: 1 is the
    nearest, a tie counts half.
    """
    flat, rest = made.double().flatten(1), others.double().flatten(1)
    own: Tensor = torch.linalg.vector_norm(flat - truth.double().flatten(1), dim=1, keepdim=True)
    far: Tensor = torch.cdist(flat, rest, compute_mode="donot_use_mm_for_euclid_dist")
    return 1 + (far < own).double().sum(1) + (far == own).double().sum(1) / 2
