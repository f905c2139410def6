"""Readers: interfaces by which client code reads examples, each with the noise and the guarantee that go with it.

`BesidePublic` trains on private examples and public ones, such as images from a generator, under one loss.

Public rows contain no private data, so client code may hold them. Only a reader without protection (`Open`) allows one
loss of both together: a clip needs the gradient of each private example by itself. Public examples need neither clip
nor noise.

`NoisyReader` and `ClippedReader` are the base classes of private readers: these compute, say, gradients on a client's
examples, clip and add noise; client code never sees the examples. All share the calibration of noise, privacy claims,
and a limit to the reads that the budget paid for. `GuardedShard` stands for one client's examples, and refuses every
kind of read (batches, sums, rows) that the guarantee does not cover.

An answer about an example may depend on that example alone: `check_apart` refuses networks that are known to mix
examples, and `alone` calls a function on each example by itself, so that no user's program has to be trusted with
several.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

import torch

from sordino import keys, tree
from sordino.accounting.claims import Status, is_real
from sordino.accounting.events import Event, Poisson, Repeat, check_multiplier
from sordino.errors import PrivacyError, UnsoundGuarantee
from sordino.keys import Key
from sordino.privacy.noise import NoiseLaw
from sordino.privacy.uplink.stages import Clip
from sordino.tree import Tree
from sordino.types import (
    Batch,
    Claim,
    Episode,
    EpisodeLoss,
    Examples,
    Grant,
    LocalWork,
    Neighbours,
    Offer,
    Params,
    Reader,
    Shard,
    Subject,
    Task,
    Tensor,
    Unit,
)

# how public rows are mixed with sealed ones: shuffled together; half of every batch; or a fixed number in every step
How = Literal["union", "half"] | int


@dataclass(frozen=True)
class BesidePublic:
    """One training step: a batch of private rows, which may be empty, with public rows beside it."""

    batch: Batch
    public: Examples
    _raw: Callable[[], Examples] | None = field(repr=False)  # None where the reader is not open
    _draws: Tensor = field(repr=False)  # one key for each row of both

    def joint(self, loss: EpisodeLoss, params: Params) -> Params:
        """Unprotected gradient of a loss that compares private rows with public ones: loss(params, private rows, public
        rows, keys). Refused where gradients are noised."""
        if self._raw is None:
            raise PrivacyError(
                "a loss that joins sealed and public examples",
                why="then one example changes the gradients of others, and no clip bounds that",
                fix="ask for the gradient of the losses of single examples, and separately for the gradient of the "
                "public examples",
                code="joint-loss",
            )
        raw = self._raw()
        return gradient(lambda leaves: loss(leaves, raw, self.public, self._draws), params)


def gradient(loss: Callable[[Params], Tensor], params: Params) -> Params:
    """The gradient of a loss; zero for parameters that it does not depend on."""
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    value = loss(leaves)
    if not value.requires_grad:
        return tree.zeros_like(params)
    slopes = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, slopes, strict=True))


def taken(examples: Examples, rows: Tensor) -> Examples:
    """The examples at these row indices."""
    return Examples(examples.x.index_select(0, rows), examples.y.index_select(0, rows))


def piles(own: int, public: int, work: LocalWork, key: Key) -> Iterator[tuple[Tensor, Tensor]]:
    """The client's own rows and the public rows of each batch; every epoch shuffles the two together."""
    size = work.batch(own + public)
    for order, count in epochs(own + public, work, key):
        for i in range(count):
            rows = order[i * size : min((i + 1) * size, len(order))]
            yield rows[rows < own], rows[rows >= own] - own


def epochs(size: int, work: LocalWork, key: Key) -> Iterator[tuple[Tensor, int]]:
    """Shuffled rows of each epoch, with the number of batches to take from them. The last batch of an epoch may be
    shorter.
    """
    each, left = -(-size // work.batch(size)), work.count(size)
    for epoch in range(-(-left // each)):
        yield keys.permutation(keys.fold(key, "epoch", epoch), size), min(each, left - epoch * each)


def stream(size: int, each: int, key: Key) -> Iterator[Tensor]:
    """Endless batches of `each` rows, from one shuffled epoch after another."""
    epoch, left = 0, torch.empty(0, dtype=torch.int64)
    while True:
        while len(left) < each:
            left = torch.cat([left, keys.permutation(keys.fold(key, "public", epoch), size)])
            epoch += 1
        yield left[:each]
        left = left[each:]


def halved(work: LocalWork, size: int, how: How) -> tuple[LocalWork, int]:
    """Splits a client's work into steps on batches of private rows, and the number of public rows beside each batch:
    `how` "half": each is half of the batch; "union": as many public rows as private ones; or a number of public rows.
    The number of steps stays as it is without public rows.
    """
    batch = work.batch(size)
    if how == "half":
        return LocalWork(None, work.count(size), max(1, batch // 2)), max(1, batch // 2)
    return work, batch if how == "union" else how


R = TypeVar("R", bound=Reader)
SIZES = "the number of examples of each client is public"
PAID = "every noisy read is paid for before the round starts"


class NoisyReader(Reader):
    """Base class of mechanisms that answer questions about a client's examples with noise, at a multiplier that the
    user set or that the budget decides."""

    def __post_init__(self) -> None:
        check_multiplier(self.multiplier, "give a multiplier above 0, or a budget in [privacy]")

    @property
    @abstractmethod
    def mechanism(self) -> NoiseLaw:
        """The probability distribution of the noise."""

    @property
    @abstractmethod
    def neighbours(self) -> Neighbours:
        """The change that the noise hides: `replace` one unit, or `zero_out` its contribution."""

    @property
    def unit(self) -> Unit:
        """The protected unit: an example, or a cell (a fixed group of one client's examples)."""
        return "example"

    @property
    def status(self) -> Status:
        """Strength of the proof, as claims state it."""
        return "proved"

    @property
    def because(self) -> tuple[str, ...]:
        """Assumptions of the guarantee, which are part of every claim."""
        return (SIZES,)

    @property
    def sampled(self) -> float | None:
        """The rate of the secret Poisson sample on which each noised answer is computed; None where it uses all
        units.
        """
        return None

    def offer(self) -> Offer:
        rate = 1.0 if self.sampled is None else self.sampled
        subject = Subject(unit=self.unit, neighbours=self.neighbours, adversary="server")
        return Offer(subject, self.mechanism, everyone_pays=False, rate=rate)

    def used(self, planned: float | None) -> float:
        """The multiplier of the noise: the one that the user set, else the planned one."""
        multiplier = self.multiplier if self.multiplier is not None else planned
        assert multiplier is not None, "the plan prices every private reader before a round"
        return multiplier

    def event(self, multiplier: float) -> Event:
        """The privacy cost of one noised answer, as an event of the ledger."""
        event: Event = self.mechanism.event(multiplier)
        return event if self.sampled is None else Poisson(self.sampled, event)

    def claims(self, work: LocalWork, size: int, multiplier: float | None) -> list[Claim]:
        event, reads = self.event(self.used(multiplier)), self.reads(work, size)
        event = Repeat(event, reads) if reads > 1 else event
        return Claim.to_everyone(self.unit, self.neighbours, event, self.status, self.because)


class ClippedReader(NoisyReader):
    """Base class of mechanisms that clip the contribution of each unit to the norm `clip`, independently of other
    units, and add noise."""

    clip: float

    def __post_init__(self) -> None:
        Clip(self.clip)
        super().__post_init__()

    @property
    def cut(self) -> float:
        return self.clip

    def check(self, work: LocalWork, task: Task) -> None:
        check_apart(task)


@dataclass
class GuardedShard(ABC, Generic[R]):
    """One client's examples during one round, behind clip and noise: client code is refused every use of them, except
    those that a subclass allows."""

    _reader: R
    _examples: Examples = field(repr=False)
    _grant: Grant
    _task: Task = field(repr=False)

    @abstractmethod
    def refused(self, what: str) -> PrivacyError:
        """The error for a use of the examples that the guarantee does not cover."""

    @property
    def size(self) -> int:
        """The public number of examples, the same for all neighbouring data sets."""
        return self._grant.size

    def batches(self, work: LocalWork, key: Key) -> Iterator[Batch]:
        raise self.refused("a batch")

    def episodes(self, work: LocalWork, key: Key) -> Iterator[Episode]:
        raise self.refused("an episode")

    def mixed(self, work: LocalWork, key: Key, how: How) -> Iterator[BesidePublic]:
        raise self.refused("a batch beside public examples")

    def sum(self, of: Callable[[Tensor, Tensor], Tree]) -> Tree:
        raise self.refused("a sum over examples")

    def by_class(self, of: Callable[[Tensor], Tensor], classes: int) -> tuple[Tensor, Tensor]:
        raise self.refused("a sum per class")

    def split(self, share: float, key: Key) -> tuple[Shard, Shard]:
        raise self.refused("a part of the examples")

    @property
    def public(self) -> Examples | None:
        return self._grant.public


def check_reservation(opened: bool, reads: int, reserved: int | None, what: str) -> None:
    """Refuses a second pass over a client's examples (`opened`: there was one), and more noised answers than the round
    has paid for.
    """
    if opened or (reserved is not None and reads > reserved):
        raise PrivacyError(
            f"a second pass over the {what}" if opened else f"{reads} reads, but only {reserved} were reserved",
            why=PAID,
            fix="return the true number of reads from the algorithm's `work`, and go over the examples once",
            code="read-beyond-reservation",
        )


def check_unread(read: bool, what: str, fix: str) -> None:
    """Refuses to give a noisy answer twice: only one was paid for."""
    if read:
        raise PrivacyError(f"{what} was read a second time", why=PAID, fix=fix, code="read-beyond-reservation")


def check_apart(task: Task) -> None:
    """Refuses, before anything starts, a network in which one example influences what is computed from another."""
    if task.mixes_examples:
        raise UnsoundGuarantee(
            f"{task.mixes_examples} mixes examples",
            why="one example then changes the gradients of others, and its running statistics; no clip bounds that",
            fix='use nn.GroupNorm; BatchNorm only in a run without any guarantee, as with algorithm = "fedavg" and '
            "no [privacy]",
            code="batch-norm",
        )
    if task.remembers:
        raise remembering(task.remembers)


def remembering(name: str) -> UnsoundGuarantee:
    return UnsoundGuarantee(
        f"{name} changes during a forward pass",
        why="a kept value of one example reaches the gradients of other examples, where no clip bounds it",
        fix="compute it from its arguments alone, and write to nothing (weight_norm: of nn.utils.parametrizations)",
        code="model-remembers",
    )


def may_be_missing(reader: NoisyReader, grant: Grant) -> bool:
    """True if the guarantee must hide under real noise that an example exists (zero_out). Each example then has a pass
    through the network of its own: how many share a pass decides how each is rounded, and at weights of a server's
    choice that changes the sum by whole clips.
    """
    return reader.neighbours == "zero_out" and is_real(grant.source.name)


def alone(of: Callable[[Tensor], Tensor], rows: Tensor, solo: bool = False) -> Tensor:
    """Applies the function `of` to each row separately; returns the values [n, d]. `solo`: one call for each row, not
    one vectorised call.
    """
    if not solo:
        with suppress(RuntimeError):  # a branch on a value; any other error comes up again
            return torch.func.vmap(lambda row: of(row[None])[0])(rows)
    return torch.cat([of(row.clone()) for row in torch.split(rows, 1)])  # a view's place may decide how it is rounded
