"""FedGen's generator over features (Zhu, Hong and Zhou, ICML 2021): noise and a label to what the head of a classifier reads.

A state is a plain dict, as everything here is a pure function of it; the norm's running mean and variance travel in it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino import keys
from sordino.generators.nets import State
from sordino.generators.streams import stream

STATISTICS = ("norm.mean", "norm.variance")
MOMENTUM, EPS = 0.1, 1e-5


def init(classes: int, noise: int, out: int, key: keys.Key, hidden: int = 512) -> State:
    """Linear(noise + classes, hidden), batch norm, ReLU, Linear(hidden, out); weights and biases uniform within 1/sqrt(inputs)."""
    state = {}
    for name, outputs, inputs in (("first", hidden, noise + classes), ("last", out, hidden)):
        for part, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
            drawn = torch.rand(shape, generator=stream(keys.fold(key, name, part)))
            state[f"{name}.{part}"] = (2 * drawn - 1) / inputs**0.5
    state |= {"norm.weight": torch.ones(hidden), "norm.bias": torch.zeros(hidden)}
    return state | {"norm.mean": torch.zeros(hidden), "norm.variance": torch.ones(hidden)}


def trainable(state: State) -> State:
    return {name: value for name, value in state.items() if name not in STATISTICS}


def parameters(state: State) -> int:
    return sum(value.numel() for value in trainable(state).values())


def forward(state: State, epsilon: Tensor, y: Tensor) -> Tensor:
    """Features [n, d] by the running statistics."""
    return _last(state, _normed(state, _first(state, epsilon, y), state["norm.mean"], state["norm.variance"]))


def training_forward(state: State, epsilon: Tensor, y: Tensor) -> tuple[Tensor, State]:
    """Features by the statistics of the batch, and the running statistics after it."""
    x = _first(state, epsilon, y)
    mean, variance = x.mean(0), x.var(0, correction=0)
    seen = dict(zip(STATISTICS, (mean.detach(), x.detach().var(0)), strict=True))
    moved = {name: (1 - MOMENTUM) * state[name] + MOMENTUM * seen[name] for name in STATISTICS}
    return _last(state, _normed(state, x, mean, variance)), moved


def _first(state: State, epsilon: Tensor, y: Tensor) -> Tensor:
    classes = state["first.weight"].shape[1] - epsilon.shape[1]
    read = torch.cat([epsilon, F.one_hot(y, classes).to(epsilon.dtype)], 1)
    return F.linear(read, state["first.weight"], state["first.bias"])


def _normed(state: State, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return (x - mean) * torch.rsqrt(variance + EPS) * state["norm.weight"] + state["norm.bias"]


def _last(state: State, x: Tensor) -> Tensor:
    return F.linear(torch.relu(x), state["last.weight"], state["last.bias"])
