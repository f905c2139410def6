"""Reader with noise on gradients (DP-SGD and its variants): client code gets noisy gradients, and never the examples.

`NoisyGradient` clips every example's gradient, sums, adds noise and divides by a public number; sampler, clip,
sensitivity, noise and event come out of this one object, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal

import torch

from sordino import keys, tree
from sordino.accounting.claims import Status, check_neighbours
from sordino.accounting.events import Event
from sordino.errors import FRACTION, PrivacyError, UnsoundGuarantee, check_range
from sordino.fast.factored import Scaled
from sordino.keys import Key
from sordino.privacy.noise import GaussianNoise, NoiseLaw
from sordino.privacy.readers import (
    SIZES,
    BesidePublic,
    ClippedReader,
    GuardedShard,
    How,
    R,
    check_reservation,
    check_unread,
    halved,
    may_be_missing,
    stream,
    taken,
)
from sordino.privacy.readers.open import effort
from sordino.types import Batch, Examples, Grant, LocalWork, Losses, Neighbours, Params, Shard, Task, Tensor

Sampling = Literal["full", "poisson", "fixed_batches", "fixed_subset"]
ONE_SUBSET = "a subset drawn once gives no amplification per round; epsilon holds for a record known to be in it"


@dataclass(frozen=True)
class NoisyGradient(ClippedReader):
    """Clipped and noised gradients of DP-SGD: (sum of clipped gradients + noise) / public number (Abadi et al., CCS
    2016; section numbers of the variants in algorithms/client_noise).

    sampling
        full            all n rows. Sensitivity of the sum: 2*clip (replace), clip (zero_out).
        poisson         every row with probability `rate`, redrawn for each gradient and kept secret; divided by
                        rate*n. zero_out only.
        fixed_batches   rows in public fixed batches: one epoch touches each row once, so it costs one release
                        (parallel composition).
        fixed_subset    one subset of rate*n rows, drawn once: what a published experiment did. Noise sized for clip,
                        not 2*clip: nominal only.

    Guarantees: the mechanism's event per gradient, for one example, against everybody who sees what the client sends.
    Proof: all summands but the changed one are evaluated at the same parameters and cancel; triangle inequality. n is
    the public number that the client agreed to, whatever lies in its data: between neighbours no divisor, number of
    steps or batch differs.
    """

    clip: float
    mechanism: NoiseLaw = GaussianNoise()
    clip_order: Literal[1, 2] | None = None  # None: the norm the mechanism needs
    sampling: Sampling = "full"
    rate: float = 1.0
    neighbours: Neighbours = "replace"
    multiplier: float | None = None  # None: the plan decides from the budget
    gives = ("batches", "batches beside public examples")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_neighbours(self.neighbours)
        if self.clip_order is None:
            object.__setattr__(self, "clip_order", self.mechanism.order)
        if self.mechanism.order == 1 and self.clip_order == 2:
            raise UnsoundGuarantee(
                f"{type(self.mechanism).__name__} with a clip in the 2-norm",
                why="this noise is sized by the 1-norm; a vector of 2-norm C can have a 1-norm of C*sqrt(d), so the "
                "noise would be too small by that factor",
                fix="clip in the 1-norm, or use Gaussian noise",
                code="noise-needs-l1-clip",
            )
        if self.sampling in ("poisson", "fixed_subset"):
            check_range("rate", self.rate, FRACTION, "rate-out-of-range")
        if self.sampling == "poisson" and self.neighbours != "zero_out":
            raise UnsoundGuarantee(
                "Poisson sampling with replace neighbours",
                why="the price of a Poisson sample is proved only for a record that is counted or not",
                fix='set read.neighbours = "zero_out"',
                code="poisson-needs-zero-out",
            )

    @property
    def sampled(self) -> float | None:
        return self.rate if self.sampling == "poisson" else None

    @property
    def status(self) -> Status:
        return "nominal" if self.sampling == "fixed_subset" else "proved"

    @property
    def because(self) -> tuple[str, ...]:
        return (SIZES, ONE_SUBSET) if self.sampling == "fixed_subset" else (SIZES,)

    def event(self, multiplier: float) -> Event:
        # a subset's noise was sized for clip/|subset|; replacing a record moves the mean by twice that
        return super().event(multiplier / 2 if self.sampling == "fixed_subset" else multiplier)

    def reads(self, work: LocalWork, size: int) -> int:
        return (work.epochs or 1) if self.sampling == "fixed_batches" else work.count(size)

    def touched(self, work: LocalWork, size: int) -> float:
        if self.sampling in ("poisson", "fixed_subset"):
            return work.count(size) * self.rate * size
        return super().touched(work, size)

    def check(self, work: LocalWork, task: Task) -> None:
        super().check(work, task)
        if self.sampling == "full" and work.batch_size is not None:
            raise UnsoundGuarantee(
                f"batches of {work.batch_size}, with noise for the full batch",
                why="after the first batch, the runs with and without a record have different weights, so all later "
                "gradients differ, and not that of one record alone",
                fix='set algorithm.batch_size = "full", or read.sampling = "fixed_batches", or "poisson" with a '
                "read.rate, or bound the whole update (whole_update)",
                code="minibatch-under-full-batch-bound",
            )
        if self.sampling == "fixed_batches" and (work.epochs is None or work.batch_size is None):
            raise UnsoundGuarantee(
                "fixed batches need local_epochs and batch_size",
                why="every record must be in exactly one batch of an epoch, which needs whole epochs with batches of "
                "a known size",
                fix="set local_epochs and batch_size instead of local_steps",
                code="fixed-batches-need-epochs",
            )

    def open(self, examples: Examples, grant: Grant, task: Task) -> Shard:
        return NoisyShard(self, examples, grant, task)

    @property
    def sensitivity(self) -> float:
        """Largest change of the sum of clipped gradients by one example."""
        twice = self.neighbours == "replace" and self.sampling != "fixed_subset"
        return 2 * self.clip if twice else self.clip

    def denominator(self, size: int, batch: int) -> float:
        """The public number that the noisy sum is divided by."""
        if self.sampling == "poisson":
            return self.rate * size
        if self.sampling == "fixed_subset":
            return max(1, int(self.rate * size))
        return batch

    def noise_std(self, multiplier: float, size: int) -> float:
        """The standard deviation of the noise in one coordinate of the mean gradient of a full batch."""
        return multiplier * self.sensitivity / self.denominator(size, size)


@dataclass(frozen=True)
class GuardedBatch:
    """A batch that gives its gradient, and nothing else of its rows."""

    live: ClassVar[None] = None
    _gradient: Callable[[Losses, Params], Params] = field(repr=False)

    def grad(self, losses: Losses, params: Params) -> Params:
        return self._gradient(losses, params)


class GradientsOnly(GuardedShard[R]):
    """One client's examples that give gradients of batches and nothing else: every other use is refused."""

    def refused(self, what: str) -> PrivacyError:
        return PrivacyError(
            f"the algorithm asks for {what}, but the reader gives gradients",
            why="the promise of this reader covers clipped gradients of single examples and nothing else",
            fix='use another reader: {name = "cells"} gives episodes, {name = "class_sums"} gives sums per class',
            code="gradients-only",
        )


@dataclass
class NoisyShard(GradientsOnly[NoisyGradient]):
    """One client's examples during one round; more noised gradients than the round has paid for are refused."""

    _opened: bool = False
    _read: set[int] = field(default_factory=set)

    def batches(self, work: LocalWork, key: Key) -> Iterator[Batch]:
        local = effort(work, self._grant)
        check_reservation(self._opened, self._reader.reads(local, self.size), self._grant.reads, "examples")
        self._opened = True
        for step, rows in enumerate(self._rows(local)):
            yield GuardedBatch(partial(self.read, step, rows, keys.fold(key, "draw", step), local.batch(self.size)))

    def mixed(self, work: LocalWork, key: Key, how: How) -> Iterator[BesidePublic]:
        """Noisy batches, and beside each of them public rows, which need no noise."""
        public = self._grant.public
        assert public is not None, "only who was given public examples mixes them with its own"
        _, each = halved(work, self.size, how)
        rows = stream(len(public.y), each, key)
        for step, (batch, others) in enumerate(zip(self.batches(work, key), rows, strict=False)):
            draws = keys.bits(keys.fold(key, "beside", step), each)
            yield BesidePublic(batch, taken(public, others), None, draws)

    def _rows(self, work: LocalWork) -> Iterator[Tensor]:
        """Rows of which each noised gradient is computed. They are drawn among as many positions as the client has
        announced; positions without a row are left out.
        """
        for places in self._places(work):
            yield places[places < len(self._examples.y)]

    def _places(self, work: LocalWork) -> Iterator[Tensor]:
        n, reader = self.size, self._reader
        if reader.sampling == "fixed_batches":
            for _ in range(work.epochs or 1):
                yield from torch.split(torch.arange(n), work.batch(n))
            return
        for step in range(work.count(n)):
            if reader.sampling == "poisson":
                yield torch.nonzero(self._grant.source.child("sample", step).coins(n, reader.rate)).flatten()
            elif reader.sampling == "fixed_subset":
                yield keys.permutation(keys.fold(keys.root(self._grant.client), "subset"), n)[
                    : max(1, int(reader.rate * n))
                ]
            else:
                yield torch.arange(n)

    def read(self, step: int, rows: Tensor, key: Key, batch_size: int, losses: Losses, params: Params) -> Params:
        """The noisy mean gradient of one batch."""
        check_unread(step in self._read, f"batch {step}", "call grad once per batch")
        self._read.add(step)
        reader = self._reader
        multiplier = reader.used(self._grant.multiplier)
        total = self._sum(rows, losses, params, self._draws(step, len(rows), key))
        scale = multiplier * reader.sensitivity
        source = self._grant.source.child("read", step)
        denominator = reader.denominator(self.size, batch_size)
        noisy = {name: reader.mechanism.add(total[name], scale, source.child(name)) for name in params}
        mean = {name: Scaled(noisy[name].to(params[name].dtype), 1 / denominator) for name in params}
        return mean  # type: ignore[return-value]  # as good as tensors

    def _draws(self, step: int, count: int, key: Key) -> Tensor:
        """One key per example, for crops and dropout. With zero_out, where an example may be missing, the keys are
        secret like the sample, since the others' keys would reveal it.
        """
        if self._reader.neighbours == "zero_out":
            return self._grant.source.child("draws", step).words(count)
        return keys.bits(key, count)

    def _sum(self, rows: Tensor, losses: Losses, params: Params, draws: Tensor) -> Params:
        """The sum of the clipped gradients of these rows, from a shared pass with other clients where there is one: the
        result is the same.
        """
        reader, pool = self._reader, self._grant.pool
        assert reader.clip_order is not None
        if not len(rows):
            return tree.zeros_like(params)
        solo = may_be_missing(reader, self._grant)
        if pool is not None and not solo and reader.sampling == "full" and losses == self._task.losses:
            pooled: Params | None = pool.sum(self._grant.client, params, reader.clip, reader.clip_order)
            if pooled is not None:
                return pooled
        batch = Examples(self._examples.x[rows], self._examples.y[rows])
        with self._task.still(losses, params=params):
            return self._task.clipped_sum(losses, params, batch, draws, reader.clip, reader.clip_order, solo)
