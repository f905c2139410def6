"""Several full-batch steps without clipping, where convexity keeps neighbouring runs together.

Softmax regression on features with ||(x, 1)|| <= B: record gradients have norm at most sqrt(2) B, the loss is convex
and (B^2/2)-smooth, so a full-batch step with eta <= 4/B^2 is non-expansive and E steps move two neighbouring runs apart
by at most 2 sqrt(2) eta B E / n (Hardt, Recht and Singer 2016; Wu et al. 2017). With gradient clipping the step is no
longer the gradient step of a convex function, so nothing is clipped here.

The bound holds for exactly these steps: with momentum, weight decay, a larger step or another loss it is false. So the
reader takes the steps itself, and client code gets one answer: the noised sum of their gradients. Whatever client code
does with it costs no further privacy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from sordino import keys, tree
from sordino.errors import PrivacyError, Range, UnsoundGuarantee, check_range
from sordino.keys import Key
from sordino.privacy.noise import GaussianNoise
from sordino.privacy.readers import NoisyReader, check_reservation, check_unread
from sordino.privacy.readers.noisy_gradient import GradientsOnly, GuardedBatch
from sordino.types import Batch, Examples, Grant, LocalWork, Losses, Params, Shard, Task

FAR = 100.0  # largest weight from which steps begin
LONGEST = 1e3  # largest radius: features of 10^12 change a gradient by their own length where a weight is rounded
ROUNDING = 1e-9  # most that float64 may change a gradient of a step from there, relative to the longest


@dataclass(frozen=True)
class ConvexStable(NoisyReader):
    """Noised sum of the gradients along all full-batch steps of a round, given as the gradient of a single batch. One
    step of `lr` along this sum equals all steps of the round together.

    Requires: the `logistic` model with the same `radius`, the task's own losses, full batches, lr <= 4/radius^2.
    Guarantees: one Gaussian event per round, for one example, replace; client code sees nothing else.
    """

    radius: float  # B
    lr: float  # eta
    multiplier: float | None = None
    gives = ("batches",)
    neighbours = "replace"
    mechanism: GaussianNoise = GaussianNoise()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(
            "radius",
            self.radius,
            Range(above=1, most=LONGEST),
            "radius-out-of-range",
            why="it bounds the length of the features with a 1 appended, which is always above 1; beyond, float64 may "
            "round a step by more than the noise counts",
            fix="scale the features into a smaller radius",
        )
        most = 4 / self.radius**2
        if not 0 < self.lr <= most:
            raise UnsoundGuarantee(
                f"the step size {self.lr} is too large for radius {self.radius}",
                why=f"a step of gradient descent moves two models no further apart only up to 4/radius^2 = {most:.3g}",
                fix=f"set lr to at most {most:.3g}, or scale the features into a smaller radius",
                code="step-too-large-for-convexity",
            )

    def reads(self, work: LocalWork, size: int) -> int:
        return 1

    def check(self, work: LocalWork, task: Task) -> None:
        if work.batch_size is not None:
            raise UnsoundGuarantee(
                f"convex_stable with batches of {work.batch_size}",
                why="the proof behind it holds for full batches only",
                fix='set algorithm.batch_size = "full"',
                code="minibatch-under-full-batch-bound",
            )
        if task.feature_radius != self.radius:
            raise UnsoundGuarantee(
                "convex_stable needs bounded features",
                why="its bound holds for the cross-entropy of logistic regression, on features that are scaled into "
                "a public ball",
                fix=f'set model = {{name = "logistic", radius = {self.radius}}}, and no loss of your own',
                code="convex-needs-bounded-logistic",
            )

    def open(self, examples: Examples, grant: Grant, task: Task) -> Shard:
        return StableShard(self, examples, grant, task)

    def noise_std(self, multiplier: float, size: int, steps: int) -> float:
        """The standard deviation of the noise in one coordinate of the sum of gradients: the sensitivity of the
        parameters divided by eta.
        """
        return multiplier * 2 * math.sqrt(2) * self.radius * steps * (1 / size + ROUNDING)


@dataclass
class StableShard(GradientsOnly[ConvexStable]):
    """One client's examples during one round; the sum of the gradients of all steps is released once, with noise."""

    _opened: bool = False
    _read: bool = False

    def __post_init__(self) -> None:
        work = LocalWork(None, 1, None)
        self._reader.check(work, self._task)  # again, for a shard that was opened directly

    def batches(self, work: LocalWork, key: Key) -> Iterator[Batch]:
        """A single batch, whose gradient sums all steps of the round. A straggler's smaller number of steps is ignored:
        the noise is sized for exactly these.
        """
        check_reservation(self._opened, 1, self._grant.reads, "examples")
        self._opened = True
        yield GuardedBatch(partial(self.walked, work.count(self.size), key))

    def walked(self, steps: int, key: Key, losses: Losses, params: Params) -> Params:
        """The noised sum of the gradients along all steps of the round."""
        check_unread(self._read, "the batch", "call grad once")
        if losses != self._task.losses:
            raise PrivacyError(
                "a loss of the algorithm's own, with a reader whose bound is for convex steps",
                why="the bound holds for the cross-entropy of logistic regression; for another loss the slope is not "
                "known",
                fix="ask for the gradient of task.losses, or use a reader that clips: noisy_steps pays for every step "
                "of any loss",
                code="convex-needs-own-losses",
            )
        self._read = True
        total = self._sum(params, steps, key)
        multiplier = self._reader.used(self._grant.multiplier)
        std, source = self._reader.noise_std(multiplier, self.size, steps), self._grant.source.child("read", 1)
        add = self._reader.mechanism.add
        return {name: add(total[name], std, source.child(name)).to(p.dtype) for name, p in params.items()}

    def _sum(self, params: Params, steps: int, key: Key) -> Params:
        """The sum of the exact gradients along all full-batch steps of a round, in float64. Steps begin from weights
        cut to [-FAR, FAR]: at larger weights the rounding error of a step is many times the step, and no longer within
        the sensitivity that convexity gives.
        """
        start = {name: torch.nan_to_num(p.double()).clamp(-FAR, FAR) for name, p in params.items()}
        total = tree.zeros_like(start)
        for step in range(steps):
            draws = keys.bits(keys.fold(key, "draw", step), len(self._examples.y))
            here = {name: p.requires_grad_() for name, p in tree.axpy(-self._reader.lr, total, start).items()}
            mean = self._task.losses(here, *self._examples, draws).sum() / self.size
            found = torch.autograd.grad(mean, list(here.values()))
            total = tree.add(total, dict(zip(here, found, strict=True)))
        return total
