"""A loss of somebody's own, in place of cross-entropy: one number for each example, from that example alone.

Gradients are clipped example by example, which bounds what one of them can do only where no other example plays a part
in its loss. So a loss is never shown two of them: it is called with a batch of one, and `vmap` calls it for all.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import torch

from sordino import user_code
from sordino.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


LossFunction: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"


class Loss(ABC):
    """How wrong an output is. A plain function of the same two arguments will do as well."""

    @abstractmethod
    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        """The losses [n] of outputs [n, classes] and labels [n]."""


def loss_named(table: Mapping[str, object], built: Callable[[type[Loss]], Loss]) -> LossFunction:
    """The loss that a table of an experiment names; `built` makes one from its class and the rest of the table."""
    name = str(table.get("name"))
    made = user_code.load(name, "loss")
    if inspect.isfunction(made):
        return alone(made, name)
    return alone(built(user_code.of_kind(name, "loss", Loss)), name)  # type: ignore[type-abstract]


def alone(loss: LossFunction, name: str) -> LossFunction:
    """The same loss, of each example by itself."""

    def one(output: Tensor, label: Tensor) -> Tensor:
        found = loss(output[None], label[None])
        if not isinstance(found, torch.Tensor) or tuple(found.shape) != (1,):
            raise not_per_example(name, found)
        return found[0]

    def each(output: Tensor, label: Tensor) -> Tensor:
        return torch.vmap(one)(output, label)

    return each


def not_per_example(name: str, found: object) -> ConfigError:
    given = f"shape {tuple(found.shape)}" if isinstance(found, torch.Tensor) else f"a {type(found).__name__}"
    return ConfigError(
        f"the loss {name!r} gives {given} for one example, and not one number for each",
        why="gradients are clipped example by example, so a mean or a sum over the batch hides what must be bounded",
        fix='return a tensor with one loss for each example: reduction="none"',
        code="loss-not-per-example",
    )
