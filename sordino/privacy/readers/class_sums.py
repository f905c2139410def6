"""Sums per class of a statistic of single examples, such as features, from which prototypes are computed: exact, or
clipped and noised.

`ClassSums` releases, for every class, the sum of its examples' clipped statistics, and if `count` is above 0 their
number, in one Gaussian mechanism: an example lies in one class, so all classes cost one release.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from sordino.errors import NOT_NEGATIVE, PrivacyError, UnsoundGuarantee, check_range
from sordino.keys import Key
from sordino.privacy.noise import GaussianNoise
from sordino.privacy.readers import ClippedReader, GuardedShard, alone, check_unread, may_be_missing, taken
from sordino.privacy.uplink.stages import SLACK
from sordino.types import Examples, Grant, LocalWork, Shard, Task, Tensor

ROWS = 256  # of a statistic at a time


def class_sums(of: Callable[[Tensor], Tensor], examples: Examples, classes: int) -> tuple[Tensor, Tensor]:
    """The sum of `of(x)` [n, d] over the examples of each class, and their number, in float64."""
    from sordino.fast.row_sums import RunningSum

    found = [of(rows).double() for rows in torch.split(examples.x, ROWS) if len(rows)]
    counts = torch.bincount(examples.y, minlength=classes).double()
    if not found:  # a row that does not count says how wide it is
        found = [of(examples.x.new_zeros(1, *examples.x.shape[1:])).double()[:0]]
    zero = found[0].new_zeros(classes, found[0].shape[1])
    total = RunningSum(zero.clone())
    for labels, z in zip(torch.split(examples.y, ROWS), found, strict=True):
        total.add(zero.index_add(0, labels, z))
    return total.sum(), counts


@dataclass(frozen=True)
class ClassSums(ClippedReader):
    """Noised sums per class of a clipped statistic. clip: largest norm of one example's statistic. count: weight of one
    example in the counts, relative to that norm; at 0 examples are not counted, and counts are nan.

    Guarantees: the Gaussian event at the multiplier, for one example that is counted or not (zero_out), against every
    adversary who sees what the client sends. Proof: one row of the sums moves by a vector of norm clip, and one count
    by `count` * clip: sqrt(1 + count^2) * clip together. The statistic is shown one example at a time.
    """

    clip: float = 1.0
    count: float = 0.0
    mechanism: GaussianNoise = GaussianNoise()
    multiplier: float | None = None  # None: the plan decides from the budget
    gives = ("sums",)
    neighbours = "zero_out"

    def __post_init__(self) -> None:
        super().__post_init__()
        why = "it is how loudly examples are counted, 0 for not at all"
        check_range("count", self.count, NOT_NEGATIVE, "count-out-of-range", error=UnsoundGuarantee, why=why)

    @property
    def sensitivity(self) -> float:
        return self.clip * math.hypot(1, self.count)

    def reads(self, work: LocalWork, size: int) -> int:
        return 1

    def open(self, examples: Examples, grant: Grant, task: Task) -> Shard:
        return SumShard(self, examples, grant, task)


@dataclass
class SumShard(GuardedShard[ClassSums]):
    """One client's examples during one round, of which noised sums per class may be taken once."""

    _asked: bool = False

    def refused(self, what: str) -> PrivacyError:
        return PrivacyError(
            f"the algorithm asks for {what}, but the reader gives sums per class",
            why="the promise of this reader covers clipped sums per class and nothing else",
            fix="use another reader",
            code="sums-only",
        )

    def split(self, share: float, key: Key) -> tuple[Shard, Shard]:
        """Two parts of the examples, by a secret coin for each example, so that its part depends on no other one. Each
        part may be read once, instead of the whole.
        """
        self._spend()
        # secret ones: a public coin by place would let a missing example move the others
        coins = self._grant.source.child("split").coins(len(self._examples.y), share).bool()
        rows = [taken(self._examples, torch.nonzero(side).flatten()) for side in (coins, ~coins)]
        # noises of their own: of two with one noise the difference would be without any
        grants = [replace(self._grant, source=self._grant.source.child("part", i)) for i in range(2)]
        first, second = (
            SumShard(self._reader, own, grant, self._task) for own, grant in zip(rows, grants, strict=True)
        )
        return first, second

    def _spend(self) -> None:
        check_unread(self._asked, "a shard of sums per class", "ask once, for everything")
        self._asked = True

    def by_class(self, of: Callable[[Tensor], Tensor], classes: int) -> tuple[Tensor, Tensor]:
        self._spend()
        reader = self._reader
        multiplier = reader.used(self._grant.multiplier)
        with self._task.still(of):
            sums, counts = self._sums(of, classes)
        columns = torch.cat([sums, counts[:, None] * (reader.count * reader.clip)], 1) if reader.count else sums
        noisy = reader.mechanism.add(columns, multiplier * reader.sensitivity, self._grant.source.child("classes"))
        if not reader.count:
            return noisy, torch.full_like(counts, math.nan)
        return noisy[:, :-1], noisy[:, -1] / (reader.count * reader.clip)

    def _sums(self, of: Callable[[Tensor], Tensor], classes: int) -> tuple[Tensor, Tensor]:
        """The sums of clipped statistics, and the numbers of examples, before any noise."""
        solo = may_be_missing(self._reader, self._grant)
        return class_sums(lambda x: clipped(alone(of, x, solo), self._reader.clip), self._examples, classes)


def clipped(z: Tensor, radius: float) -> Tensor:
    """Each row clipped to the norm `radius`, in float64; a row that is not finite becomes zero."""
    z = z.double()
    norm = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    factor = (radius / (norm * SLACK).clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1.0)
    return torch.where(torch.isfinite(norm), z * factor, 0.0)
