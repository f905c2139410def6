"""FedGen's generator over features (Zhu, Hong and Zhou, ICML 2021): noise and a label to what the head of a classifier
reads.

A state is a plain dict, as everything here is a pure function of it; the norm's running mean and variance travel in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from sordino import keys
from sordino.synthesis.generators import streams
from sordino.synthesis.generators.shape import GeneratorState

if TYPE_CHECKING:
    from torch import Tensor


STATISTICS = ("norm.mean", "norm.variance")
MOMENTUM, EPS = 0.1, 1e-5


def init(classes: int, noise: int, out: int, key: keys.Key, hidden: int = 512) -> GeneratorState:
    """A feature generator: Linear(noise + classes, hidden), batch norm, ReLU, Linear(hidden, out); weights and
    biases uniform within 1/sqrt(inputs).
    """
    state = {}
    for name, outputs, inputs in (("first", hidden, noise + classes), ("last", out, hidden)):
        for part, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
            drawn = streams.uniform(keys.generator(keys.fold(key, name, part)), *shape)
            state[f"{name}.{part}"] = (2 * drawn - 1) / inputs**0.5
    state |= {"norm.weight": torch.ones(hidden), "norm.bias": torch.zeros(hidden)}
    return state | {"norm.mean": torch.zeros(hidden), "norm.variance": torch.ones(hidden)}


def trainable(state: GeneratorState) -> GeneratorState:
    return {name: value for name, value in state.items() if name not in STATISTICS}


def parameters(state: GeneratorState) -> int:
    return sum(value.numel() for value in trainable(state).values())


def forward(state: GeneratorState, epsilon: Tensor, y: Tensor) -> Tensor:
    """Features [n, d] by the running statistics."""
    return _last(state, _normed(state, _first(state, epsilon, y), state["norm.mean"], state["norm.variance"]))


def training_forward(state: GeneratorState, epsilon: Tensor, y: Tensor) -> tuple[Tensor, GeneratorState]:
    """Features by the statistics of the batch, and the running statistics after it."""
    x = _first(state, epsilon, y)
    mean, variance = x.mean(0), x.var(0, correction=0)
    seen = dict(zip(STATISTICS, (mean.detach(), x.detach().var(0)), strict=True))
    moved = {name: (1 - MOMENTUM) * state[name] + MOMENTUM * seen[name] for name in STATISTICS}
    return _last(state, _normed(state, x, mean, variance)), moved


def _first(state: GeneratorState, epsilon: Tensor, y: Tensor) -> Tensor:
    classes = state["first.weight"].shape[1] - epsilon.shape[1]
    read = torch.cat([epsilon, torch.nn.functional.one_hot(y, classes).to(epsilon.dtype)], 1)
    return torch.nn.functional.linear(read, state["first.weight"], state["first.bias"])


def _normed(state: GeneratorState, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return (x - mean) * torch.rsqrt(variance + EPS) * state["norm.weight"] + state["norm.bias"]


def _last(state: GeneratorState, x: Tensor) -> Tensor:
    return torch.nn.functional.linear(torch.relu(x), state["last.weight"], state["last.bias"])


# training -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FeatureSettings:
    updates: int = 50
    batch: int = 32
    lr: float = 3e-4
    weight_decay: float = 1e-2


def wanted(draws: Tensor, noise: int, classes: int) -> tuple[Tensor, Tensor]:
    """Uniform noise and a random label for every key."""
    epsilon = keys.uniform(keys.fold(draws, "epsilon"), noise).float()
    return epsilon, keys.integers(keys.fold(draws, "label"), 1, classes)[:, 0]


def distil(
    state: GeneratorState,
    heads: Sequence[Callable[[Tensor], Tensor]],
    counts: Tensor,
    noise: int,
    settings: FeatureSettings,
    key: keys.Key,
) -> GeneratorState:
    """The generator after some steps towards features that differ and that the heads call by their label, each head
    weighed by its share of the class.
    """
    offered = torch.nonzero((counts > 1).any(0)).flatten()
    share = counts / counts.sum(0).clamp_min(1)
    learned = {name: value.clone().requires_grad_() for name, value in trainable(state).items()}
    kept = {name: state[name] for name in STATISTICS}
    adam = torch.optim.Adam(list(learned.values()), settings.lr, weight_decay=settings.weight_decay)
    for step in range(settings.updates):
        epsilon, any_label = wanted(keys.bits(keys.fold(key, step), settings.batch), noise, len(offered))
        y = offered[any_label]
        z, kept = training_forward(learned | kept, epsilon, y)
        taught = sum(
            (share[k, y] * torch.nn.functional.cross_entropy(head(z), y, reduction="none")).mean()
            for k, head in enumerate(heads)
        )
        apart = (epsilon[:, None] - epsilon[None]).square().mean(2)
        differ = (z[:, None] - z[None]).abs().mean(2)
        loss = taught + torch.exp(-(apart * differ).mean())
        for p, g in zip(learned.values(), torch.autograd.grad(loss, list(learned.values())), strict=True):
            p.grad = g
        adam.step()
    return {name: value.detach() for name, value in learned.items()} | kept
