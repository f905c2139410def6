"""Several full-batch steps without clipping, where convexity keeps neighbouring runs together.

Softmax regression on features with ||(x, 1)|| <= B: record gradients have norm at most sqrt(2) B, the loss is convex and (B^2/2)-smooth, so a full-batch
step with eta <= 4/B^2 is non-expansive and E steps move two neighbouring runs apart by at most 2 sqrt(2) eta B E / n (Hardt, Recht and Singer 2016;
Wu et al. 2017). With gradient clipping the step is no longer the gradient step of a convex function, so nothing is clipped here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from sordino.errors import ConfigError, PrivacyError, UnsoundGuarantee
from sordino.keys import Key
from sordino.privacy.mechanisms import GaussianNoise
from sordino.privacy.open_reader import OpenShard
from sordino.privacy.readers import GradientsOnly
from sordino.types import ADVERSARIES, Batch, Claim, Examples, Grant, Losses, Offer, Params, Shard, Task, Work


@dataclass(frozen=True)
class ConvexStable:
    """Plain full-batch gradients; the last one of a round carries the noise of the whole round.

    Requires: the `logistic` model with the same `radius`, full batches, eta <= 4/radius^2.
    Guarantees: one Gaussian event per round, for one example, replace; everything else uploaded follows from it.
    """

    radius: float  # B
    multiplier: float | None = None
    gives: ClassVar[str] = "batches"
    mechanism: GaussianNoise = GaussianNoise()

    def __post_init__(self) -> None:
        if not 1 < self.radius < math.inf:
            raise ConfigError(
                f"radius is {self.radius}", why="it bounds (x, 1), so it must exceed 1", code="radius-too-small"
            )

    def offer(self) -> Offer | None:
        return Offer("example", "replace", "server", self.mechanism, everyone_pays=False)

    def claims(self, work: Work, size: int, multiplier: float | None) -> list[Claim]:
        used = self.multiplier if self.multiplier is not None else multiplier
        assert used is not None
        because = ("the number of examples of each client is public",)
        return [Claim("example", "replace", a, self.mechanism.event(used), "proved", because) for a in ADVERSARIES]

    def reads(self, work: Work, size: int) -> int:
        return 1

    def check(self, work: Work, task: Task) -> None:
        if work.batch_size is not None:
            raise UnsoundGuarantee(
                f"batches of {work.batch_size} in convex_stable",
                why="the step is non-expansive for the full batch only",
                fix='batch_size = "full"',
                code="minibatch-under-full-batch-bound",
            )
        if getattr(task, "feature_radius", None) != self.radius:
            raise UnsoundGuarantee(
                "convex_stable without bounded features",
                why="the bound holds for logistic regression on features scaled into a public ball",
                fix=f'model = {{name = "logistic", radius = {self.radius}}}',
                code="convex-needs-bounded-logistic",
            )

    def open(self, examples: Examples, grant: Grant, task: Task) -> Shard:
        return StableShard(self, examples, grant, task)

    def noise_std(self, multiplier: float, size: int, steps: int = 1) -> float:
        """Of one coordinate of the last gradient: the parameter sensitivity divided by eta."""
        return multiplier * 2 * math.sqrt(2) * self.radius * steps / size


@dataclass(frozen=True)
class StableShard(GradientsOnly):
    _reader: ConvexStable
    _examples: Examples = field(repr=False)
    _grant: Grant
    _task: Task = field(repr=False)
    _noised: list[int] = field(default_factory=list, repr=False)

    @property
    def size(self) -> int:
        return len(self._examples.y)

    def batches(self, work: Work, key: Key) -> Iterator[Batch]:
        steps = work.count(self.size)
        # without the grant's smaller effort: the noise comes with the last of exactly these steps
        plainly = OpenShard(self._examples, replace(self._grant, epochs=None), self._task)
        for step, plain in enumerate(plainly.batches(Work(None, steps, None), key)):
            yield LastBatch(self, plain, steps) if step == steps - 1 else plain

    def add_noise(self, mean: Params, steps: int) -> Params:
        if self._noised:
            raise PrivacyError(
                "a second noised gradient in one round",
                why="the ledger reserved one release, and two of them cost two",
                fix="read the last batch once",
                code="read-beyond-reservation",
            )
        self._noised.append(steps)
        multiplier = self._reader.multiplier if self._reader.multiplier is not None else self._grant.multiplier
        assert multiplier is not None, "the plan prices every private reader before a round"
        std, source = self._reader.noise_std(multiplier, self.size, steps), self._grant.source.child("read", 1)
        return {
            name: self._reader.mechanism.add(value.double(), std, source.child(name)).to(value.dtype)
            for name, value in mean.items()
        }


@dataclass(frozen=True)
class LastBatch:
    _shard: StableShard
    _batch: Batch
    _steps: int

    def grad(self, losses: Losses, params: Params) -> Params:
        return self._shard.add_noise(self._batch.grad(losses, params), self._steps)
