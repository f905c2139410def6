"""Uplink: the stages that clip, weight, compress, noise and add uploads, and so decide what the server sees of them.

Each client stage has a client half (`encode`) and a server half (`decode`, in reverse order, on the sum). Server stages
act on the sum. The sum is taken in float64 over clients in the order of their ids, so that arrival order cannot change
a result.

The bound follows from the stages, and the noise from the bound. Nobody types a sensitivity:

>>> from sordino.privacy.uplink.stages import Clip, Noise
>>> central = Uplink(client=(Clip(0.5),), server=(Noise(neighbours="zero_out"),))
>>> central.bound(100)
Bound(l1=5.0, l2=0.5)
>>> central.noise().std(central.bound(100), multiplier=2.0, coordinates=100)
1.0

The same noise before the upload is local privacy. Two different uploads lie up to two radii apart:

>>> local = Uplink(client=(Clip(0.5), Noise()))
>>> local.noise().std(central.bound(100), multiplier=2.0, coordinates=100)
2.0

Stages that guarantee nothing together are refused:

>>> Uplink(client=(Noise(), Clip(0.5)))
Traceback (most recent call last):
sordino.errors.UnsoundGuarantee: a clip after the noise
why: the clip must come first: the noise is sized for vectors that are already clipped
fix: put the clip before the noise
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from sordino import tree
from sordino.errors import ConfigError, UnsoundGuarantee
from sordino.privacy.uplink.robust import robust_mean
from sordino.privacy.uplink.rules import UplinkStages
from sordino.privacy.uplink.stages import Noise, private
from sordino.tree import Tree
from sordino.types import Bound, Grant, NoiseSource, Params, Received, Tensor

U = TypeVar("U")


@dataclass(frozen=True)
class Summed:
    """Uploads that were already added up: their sum in float64, and the clients that they come from."""

    total: Tree
    who: list[int]
    # needs no noise of the server any more: it was added before the sum was opened, or there is no sum
    noised: bool = False
    kept: list[Tree] = field(default_factory=list)  # single uploads, where a stage reads them


@dataclass(frozen=True)
class Uplink(UplinkStages):
    """Stages that every upload passes, which decide what the server sees. `client=(Clip(1), Noise())` is local privacy,
    `client=(Clip(1),), server=(Noise(neighbours="zero_out"),)` is central privacy."""

    @property
    def reads_each(self) -> bool:
        """True where a stage needs each upload by itself at the server, not only their sum."""
        return any(stage.reads_each for stage in (*self.client, *self.server))

    @property
    def hides_each(self) -> bool:
        """True where noise protects the sum alone: single uploads may not be read, and nothing may tell them."""
        return self.central or self.per_coordinate is not None

    @property
    def sum_only(self) -> bool:
        """True where the server may read the sum of uploads and no single one: behind such noise, or encryption."""
        return self.hides_each or any(stage.aggregate_only for stage in self.client)

    @property
    def error(self) -> float:
        """Bound on how far real noise on one coordinate deviates from its ideal law, in total variation."""
        return max((s.error for s in (*self.client, *self.server) if isinstance(s, Noise)), default=Noise.error)

    # what changes from round to round ---------------------------------------------------------------------------------

    @property
    def learns(self) -> bool:
        return any(stage.learns for stage in self.client)

    def begin(self, zero: Tree, model: Params) -> tuple[Tree, ...]:
        """The public values (such as adaptive clip radii) with which the stages start, in the order of the stages."""
        return tuple(stage.begin(x, model) for stage, x in zip(self.client, self._looks(zero), strict=False))

    def at(self, t: int, down: Tree) -> Uplink:
        """The uplink in round t, with what its stages have learned from earlier releases."""
        public = down.public if self.learns else [()] * len(self.client)
        stages = tuple(stage.at(t, known) for stage, known in zip(self.client, public, strict=True))
        return self if all(map(operator.is_, stages, self.client)) else replace(self, client=stages)

    # what it does -----------------------------------------------------------------------------------------------------

    def bound(self, coordinates: int) -> Bound:
        bound = Bound()
        for stage in self.client:
            if isinstance(stage, Noise):
                stage.sensitivity(bound)
            bound = stage.bound(bound, coordinates)
        for central in private(self.server):
            central.sensitivity(bound)
        return bound

    def fitted(self, coordinates: int, least: float) -> Uplink:
        """Copy of the uplink, whose per-coordinate noise is fitted to the size of the model and the smallest weight of
        a cohort."""
        if (noise := self.per_coordinate) is None:
            return self
        fit = noise.fitted(self.bound(coordinates).l1 / self.scale, least, self.grid is not None)
        return replace(self, server=tuple(fit if stage is noise else stage for stage in self.server))

    def encode(self, upload: Tree, grant: Grant) -> Tree:
        bound, coordinates, x = Bound(), tree.size(upload), upload
        for stage in self.client:
            x = stage.encode(x, bound, grant)
            bound = stage.bound(bound, coordinates)
        return x

    def shape(self, upload: Tree) -> Tree:
        for stage in self.client:
            upload = stage.shape(upload)
        return upload

    def weight(self, size: int, largest: int, precision: float = 1.0) -> float:
        """The public weight of one client: the product of its stages' weights."""
        return math.prod(stage.weight(size, largest, precision) for stage in self.client)

    def receive(
        self,
        uploads: Mapping[int, U] | Iterable[tuple[int, U] | Summed] | Summed,
        zero: U,
        weights: Sequence[float],
        expected: float,
        multiplier: float | None,
        source: NoiseSource,
        *,
        each: bool = True,
        weight: float | None = None,
        reach: Callable[[int], float] = lambda client: 1.0,
        std: Callable[[list[int]], float] = lambda who: 0.0,
    ) -> Received[U]:
        """The round's result for the server: the uploads' sum, noised, decoded and divided.

        Uploads may come one by one, in the order of their clients, and are deleted once added, unless the algorithm
        reads `each`; or already added up (`Summed`). `zero` is an upload of zeros: it gives the structure, so that an
        empty round is allowed. `weights` are the public weights of the whole population and `weight` their sum, where
        it is known; `expected` is the public number to divide by where the mean is over the expected cohort, `reach`
        the part of its clip that a client uses under a personal budget, `std` the deviation of the noise in the mean of
        those who answered.
        """
        bound = self.bound(tree.size(zero))
        kept: list[U] = []
        if not isinstance(uploads, Summed):
            uploads = self.sum(uploads, zero, kept if each or self.reads_each else None, reach)
        total, who = uploads.total, uploads.who
        for stage in () if uploads.noised else private(self.server):
            used = stage.multiplier if stage.multiplier is not None else multiplier
            if used is None and not who:  # a visible cohort in which every client abstained: nothing to protect
                continue
            assert used is not None, "the plan prices every noise stage before a round"
            total = stage.release(total, bound, used, source)
        realised = math.fsum(weights[client] for client in who)
        if self.per_coordinate is not None and who and not uploads.noised:
            total = self.per_coordinate.release(total, [weights[k] for k in who], uploads.kept, self.scale, source)
        denominator = expected if self.denominator == "expected" else realised
        divided = tree.map(lambda y: y.double() / denominator if denominator > 0 else y.double(), total)
        if self.robust and who:
            admitted = [self._admit(u, bound, reach(k)) for k, u in zip(who, uploads.kept, strict=True)]
            divided = robust_mean(self.robust, admitted, [weights[k] for k in who], divided)
        mean = tree.map(lambda y, leaf: y.to(leaf.dtype), self._decode(divided, zero), zero)
        public = self._learn(divided, zero, std(who), kept) if self.learns else ()
        # central noise hides who took part, too: the server learns the public expectation
        hidden = self.central
        everybody = math.fsum(weights) if weight is None else weight
        participation = expected / everybody if hidden else len(who) / len(weights)
        own = [weights[client] for client in who]
        return Received(mean, participation, lambda: self._single(kept if each else None, zero, own), public)

    def sum(
        self,
        uploads: Mapping[int, U] | Iterable[tuple[int, U] | Summed],
        zero: U,
        kept: list[U] | None = None,
        reach: Callable[[int], float] = lambda client: 1.0,
    ) -> Summed:
        """The sum of admitted uploads, and of sums that were added up before; single uploads are appended to `kept`.
        `reach`: the part of its clip that a client uses under a personal budget.
        """
        from sordino.fast.row_sums import RunningSum

        bound, who = self.bound(tree.size(zero)), []
        total = tree.map(_wide_zero, self.shape(zero))
        sums = [RunningSum(leaf) for leaf in tree.leaves(total)]
        for one in sorted(uploads.items()) if isinstance(uploads, Mapping) else uploads:
            if isinstance(one, Summed):
                added, clients = one.total, one.who
            else:
                client, upload = one
                added, clients = self._admit(upload, bound, reach(client)), [client]
                if kept is not None:
                    kept.append(upload)
            for t, leaf in zip(sums, tree.leaves(added), strict=True):
                t.add(leaf)
            who += clients
        return Summed(tree.like(total, [t.sum() for t in sums]), who, kept=kept or [])

    def unbounded(self, coordinates: int) -> bool:
        """True where one upload can move the sum without limit: it is neither clipped nor noised by its client.
        Elsewhere an upload that is not finite counts as zero.
        """
        return not private(self.client) and math.isinf(self.bound(coordinates).l2)

    def _admit(self, upload: Tree, bound: Bound, reach: float) -> Tree:
        """The upload as it enters the sum: unchanged, bit for bit, or zero if it exceeds the bound of its own stages,
        also in the norm of the noise, since a personal clip may shorten another one alone.
        """
        if private(self.client):
            kept = tree.finite(upload)  # the bound held before the noise; now one can only test that values are finite
        elif math.isfinite(bound.l2):
            orders = {1 if bound.l1 <= bound.l2 else 2, *(noise.mechanism.order for noise in private(self.server))}
            kept = all(tree.norm(upload, of) <= bound.of(of) * (reach if self.personal else 1.0) for of in orders)
        else:
            kept = True
        return upload if kept else tree.zeros_like(upload)

    def _looks(self, zero: Tree) -> list[Tree]:
        """Structure of an upload before each client stage, and after the last one."""
        looks = [zero]
        for stage in self.client:
            looks.append(stage.shape(looks[-1]))
        return looks

    def _decode(self, y: Tree, zero: Tree) -> Tree:
        for stage, like in zip(reversed(self.client), reversed(self._looks(zero)[:-1]), strict=True):
            y = stage.decode(y, like)
        return y

    def _learn(self, y: Tree, zero: Tree, std: float, each: list[Tree]) -> tuple[Tree, ...]:
        found: list[Tree] = []
        for stage, like in zip(reversed(self.client), reversed(self._looks(zero)[:-1]), strict=True):
            found.append(stage.learn(y, like, std, each))
            y, each = stage.decode(y, like), [stage.decode(upload, like) for upload in each]
        return tuple(reversed(found))

    def _single(self, uploads: Sequence[U] | None, zero: U, weights: Sequence[float]) -> list[U]:
        """Single uploads, decoded, without their weights."""
        if self.sum_only:
            raise single_uploads()
        if uploads is None:
            raise ConfigError(
                "this algorithm reads single uploads, but does not say so",
                why="an upload is deleted as soon as it is added, so that a large cohort fits into memory",
                fix="write `reads_each = True` in the class of the algorithm",
                code="reads-each",
            )
        return [self.opened(u, zero, w) for u, w in zip(uploads, weights, strict=True)]

    def opened(self, upload: Tree, zero: U, weight: float) -> U:
        """One upload as whoever receives it by itself can read it: decoded, without its weight."""
        opened: U = self._decode(upload if weight == 1.0 else tree.scale(1 / weight, upload), zero)
        return opened


def single_uploads() -> UnsoundGuarantee:
    return UnsoundGuarantee(
        "this algorithm reads single uploads, but the uplink releases only their sum",
        why="the promise covers the noised sum, not single uploads",
        fix="use an uplink without central noise or encryption, or another algorithm",
        code="aggregate-only",
    )


def _wide_zero(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf, dtype=torch.float64 if leaf.is_floating_point() else leaf.dtype)
