"""A network trained on public examples alone, and a projection drawn from nothing at all: what may be fixed before
anybody's data is looked at.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError

from sordino import keys
from sordino.errors import ConfigError
from sordino.keys import Key
from sordino.types import Examples, Params, Task

if TYPE_CHECKING:
    from torch import Tensor


def fitted(task: Task, examples: Examples, epochs: int, batch: int, lr: float, momentum: float, key: Key) -> Params:
    """Weights after some epochs of momentum SGD on these examples."""
    params, velocity = task.init(keys.fold(key, "init")), None
    for epoch in range(epochs):
        order = keys.permutation(keys.fold(key, "epoch", epoch), len(examples.y))
        for step, rows in enumerate(torch.split(order, batch)):
            x, y = task.ready(examples.x[rows], examples.y[rows])
            draws = keys.bits(keys.fold(key, "draw", epoch, step), len(rows))
            g = task.gradient(params, x, y, lambda draws=draws: draws)  # type: ignore[misc]
            velocity = g if velocity is None else {n: momentum * v + g[n] for n, v in velocity.items()}
            params = {name: p - lr * velocity[name] for name, p in params.items()}
    return params


def stored(task: Task, path: str) -> Params:
    """The weights of this network from a safetensors file."""
    from safetensors.torch import load_file

    wanted = task.init(0)
    try:
        found = load_file(Path(path))
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(
            f"an extractor cannot be read from {path}",
            why=str(error),
            fix="give a model.safetensors file",
            code="no-extractor",
        ) from None
    whole = task.state_dict(wanted)
    if {n: t.shape for n, t in found.items()} != {n: t.shape for n, t in whole.items()}:
        raise ConfigError(
            f"{path} holds another network",
            why="the extractor must have the same layers and sizes as the model",
            fix="train the extractor with the same [model] and as many classes",
            code="extractor-does-not-fit",
        )
    return {name: found[name].to(leaf.dtype) for name, leaf in wanted.items()}


def projection(width: int, to: int, key: Key) -> Tensor:
    """A matrix with orthonormal columns [width, to]."""
    found, _ = torch.linalg.qr(keys.normal(key, width * width).view(width, width))
    columns: Tensor = found[:, : min(to, width)]
    return columns.float()
