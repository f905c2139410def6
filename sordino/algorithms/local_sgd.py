"""Local SGD: the hyper-parameters that its methods share, and a client's loop of steps (`Walk`). Not an algorithm by
itself.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias

import torch

from sordino import tree
from sordino.algorithms.algorithm import Algorithm
from sordino.algorithms.optional import Estimates
from sordino.errors import BELOW_ONE, COUNT, NOT_NEGATIVE, POSITIVE, ConfigError, check_range
from sordino.privacy.readers.open import Open
from sordino.privacy.uplink import Uplink
from sordino.types import C, D, LocalWork, Params, Reader, S, Tensor, U

WORK = {"local_epochs", "local_steps"}  # of which one is set at most


class Walk:
    """The parameters of a client during local SGD, updated step by step.

    y <- y - eta (direction, clipped to the norm `most_grad`, + weight decay), with momentum where there is one.
    BatchNorm's running statistics change in forward passes, not in steps.
    """

    def __init__(
        self,
        rule: AnyLocalSgd,
        start: Params,
        eta: float,
        velocity: Params | None = None,
        statistics: Sequence[str] = (),
    ) -> None:
        if statistics:
            start = {**start, **own_statistics(start, statistics)}
        self._rule, self._start, self._eta, self._statistics = rule, start, eta, statistics
        self.y, self.velocity = start, velocity
        self.steps: int | Tensor = 0

    def __call__(self, direction: Params, live: Tensor | None = None) -> None:
        """Takes one step. `live`: 1 where the step belongs to this client, 0 where it only pads a stack of clients to
        equal numbers of steps; None: always a step."""
        rule = self._rule
        self.steps = self.steps + (1 if live is None else live)
        direction = self._of_weights(direction)
        if rule.most_grad is not None:
            factor = (rule.most_grad / tree.norm(direction)).clamp_max(1.0)
            direction = tree.times(factor, direction)
        if rule.weight_decay:
            direction = self._of_weights(tree.axpy(rule.weight_decay, self.y, direction))
        if rule.momentum:
            before = self.velocity
            direction = direction if before is None else tree.axpy(rule.momentum, before, direction)
            self.velocity = direction if before is None or live is None else _either(live, direction, before)
        if live is not None:
            direction = tree.scale(live.to(torch.float32), direction)
        self.y = tree.descend(self.y, self._eta, direction, self._start)

    def _of_weights(self, direction: Params) -> Params:
        """The direction with zeros for running statistics, which no step moves."""
        if not self._statistics:
            return direction
        return {**direction, **{name: torch.zeros_like(self.y[name]) for name in self._statistics}}


def own_statistics(params: Params, statistics: Sequence[str]) -> Params:
    """Copies of the running statistics in `params`, which training may change."""
    return {name: params[name].clone() for name in statistics}


def _either(live: Tensor, new: Params, old: Params) -> Params:
    return tree.map(lambda a, b: torch.where(live, a, b), new, old)


@dataclass(frozen=True)
class LocalSgd(Algorithm[S, C, D, U], Estimates, ABC):
    lr: float = 0.1  # eta
    local_epochs: int | None = None  # E; 1 where neither epochs nor steps are given
    local_steps: int | None = None  # instead of epochs
    batch_size: int | Literal["full"] = 10  # B
    lr_decay: float = 1.0
    lr_decay_per: Literal["round", "participation"] = "round"
    server_lr: float = 1.0
    weight_decay: float = 0.0
    momentum: float = 0.0  # fresh in every round
    most_grad: float | None = None  # the step is scaled down to this norm, weight decay aside
    read: Reader = Open()
    uplink: Uplink = Uplink()

    def __post_init__(self) -> None:
        if self.local_steps is not None and self.local_epochs is not None:
            raise ConfigError(
                "local_steps and local_epochs are both set",
                why="both set how long a client trains in one round",
                fix="set only one of them",
                code="steps-and-epochs",
            )
        for name in ("lr", "server_lr", "lr_decay"):
            check_range(name, getattr(self, name), POSITIVE, "not-positive")
        check_range("weight_decay", self.weight_decay, NOT_NEGATIVE, "not-positive")
        check_range("momentum", self.momentum, BELOW_ONE, "momentum-out-of-range")
        if self.most_grad is not None:
            check_range("most_grad", self.most_grad, POSITIVE, "not-positive")
        for name in ("local_epochs", "local_steps", "batch_size"):
            if isinstance(value := getattr(self, name), int):
                check_range(name, value, COUNT, "not-positive")

    def having(self, **settings: Any) -> Self:
        """A copy of this method with other settings. Setting steps or epochs clears the other one; a None for either is
        ignored.
        """
        given = {name: value for name, value in settings.items() if value is not None or name not in WORK}
        return replace(self, **(dict.fromkeys(WORK) | given if given.keys() & WORK else given))

    @property
    def work(self) -> LocalWork:
        batch = None if self.batch_size == "full" else self.batch_size
        epochs = None if self.local_steps is not None else self.local_epochs or 1
        return LocalWork(epochs, self.local_steps, batch)

    def walk(self, start: Params, eta: float, velocity: Params | None = None, statistics: Sequence[str] = ()) -> Walk:
        """A client's loop of local SGD steps (`Walk`), from `start` with step size `eta`. `statistics`: names of the
        task's running statistics, where the method carries them.
        """
        return Walk(self, start, eta, velocity, statistics)

    def models(self, s: Any) -> Mapping[str, Params]:
        return {"global": s.x}

    @property
    def step_size(self) -> float:
        return self.lr

    def passes(self, size: int) -> float:
        return self.read.touched(self.work, size)

    def rate(self, round: Tensor, participations: Tensor) -> float:
        if self.lr_decay == 1:
            return self.lr
        times = round if self.lr_decay_per == "round" else participations
        return self.lr * self.lr_decay ** int(times)


AnyLocalSgd: TypeAlias = LocalSgd[Any, Any, Any, Any]
