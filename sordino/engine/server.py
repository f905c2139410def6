"""The server's side of a run: everything `one_round` needs, and nothing of any client's data; with the messages of a
round and their lengths: the broadcast, the part of it that each client gets, and the uploads as they come in.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from sordino import tree
from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.algorithms.optional import Estimates, Home, PerClientMessages
from sordino.budget.plan import Price
from sordino.engine import wire
from sordino.engine.executor import Answers, SecureSum, Tally
from sordino.errors import NonFiniteModel, WireError
from sordino.planning.accounts import Accounts, OpenRound
from sordino.planning.planner import of_reader, of_uplink
from sordino.privacy.noise.sources import for_round
from sordino.privacy.uplink import Summed, Uplink
from sordino.privacy.uplink.robust import fewest
from sordino.privacy.uplink.stages import Weigh
from sordino.sampling.draws import Turnout
from sordino.tree import Tree
from sordino.types import NoiseSource, Received, Task, Terms

STALL = 1.1  # a mean update within a tenth of its expected noise norm carries no visible signal


class Release(NamedTuple):
    """One round's release, and the messages that it was made from."""

    received: Received[Tree]
    came: Tally
    digest: bytes  # of all that it lets the server see
    stalled: bool  # true: the model moves no further than its noise; from released values and public scales alone


@dataclass(kw_only=True)
class FederatedServer(Accounts):
    """Server of one phase: its privacy accounts, its own data, and how it sums uploads. It holds no examples of
    clients.
    """

    home: Home  # the server's own data

    # the sum ----------------------------------------------------------------------------------------------------------

    def source(self, t: int) -> NoiseSource:
        return for_round(self.policy.noise, self.key, t)

    def all_terms(self, now: OpenRound, turnout: Turnout) -> dict[int, Terms]:
        """Terms of every client that takes part in the round: its noise multiplier and its amount of work."""
        terms = {k: self.terms(k, now.prices[k], turnout.epochs.get(k), turnout.parts.get(k)) for k in now.granted}
        if self.algorithm.uplink.shared:  # shares of one noise are all alike
            return {k: replace(each, multiplier=now.central) for k, each in terms.items()}
        return terms

    def terms(self, client: int, price: Price | None, epochs: int | None = None, part: float | None = None) -> Terms:
        """Terms of a round for one client: the noise that it pays for, and how much it computes (`epochs`, or `part` of
        its batches, for a slow one).
        """
        return Terms(
            largest=self.largest,
            multiplier=None if price is None else price.multiplier,
            epochs=epochs,
            part=part,
            reach=self._reach(price),
            precision=self._precisions[client] if self._precisions else 1.0,
        )

    def _reach(self, price: Price | None) -> float:
        """Factor on a client's clip radius in an uplink with personal clips: smallest planned noise multiplier divided
        by the client's own. One noise then protects all: a client with a smaller budget is clipped harder. 1 in other
        uplinks."""
        personal = self.algorithm.uplink.personal and price is not None
        return self.plan.quietest / price.multiplier if personal and price is not None else 1.0

    def receive(self, now: OpenRound, answers: Answers, turnout: Turnout, down: Tree) -> Release:
        """The release of a round: the sum of the uploads, noised, decoded and divided."""
        t, zero, source = now.t, self.algorithm.zero(self.home.task, down), self.source(now.t).child("server")
        uplink, coordinates = self.algorithm.uplink.at(t, down), tree.size(zero)
        mail = self.inbox.open(t, answers.uploads, turnout, down)
        uploads: RoundUploads | Summed = mail
        came = None
        if self.secure_sum is not None:
            uploads, came = self.secure_sum(now, mail, answers.sum, self.weights, uplink, zero, source)
        by_client = self.plan.offer is not None and self.plan.offer.subject.unit == "client"
        received: Received[Tree] = uplink.receive(
            uploads,
            zero,
            self.weights,
            self._denominator(now),
            now.central,
            source,
            each=self.algorithm.reads_each,
            weight=self._weight,
            reach=lambda client: self._reach(now.prices.get(client)),
            std=lambda who: self._std(now, who, coordinates) if by_client else 0.0,
        )
        came = came or mail.tally
        if (many := len(came.answered)) < (least := fewest(uplink.robust)):
            self.inbox.remarks.append(
                f"round {t + 1}: {many} uploads came, the robust sum needs {least}: nothing changes"
            )
        stalled = self.plan.adapts and float(tree.norm(received.mean)) <= STALL * (
            self._std(now, came.answered, coordinates) * math.sqrt(coordinates)
        )
        return Release(received, came, mail.digest(received.mean), stalled)

    def _std(self, now: OpenRound, answered: Sequence[int], coordinates: int) -> float:
        """Standard deviation of the noise in one coordinate of the mean upload, from the multipliers alone."""
        if self.plan.offer is None:
            return 0.0
        if self.plan.offer.subject.unit == "client" and self.algorithm.uplink.central:
            # one noise, over the public denominator, however many answered
            if now.central is None:
                return 0.0
            return self._noise_std(now.central, 0, coordinates) / self._denominator(now)
        noised = [(k, price.multiplier) for k in answered if (price := now.prices[k])]
        stds = (self.weights[k] * self._noise_std(z, self.sizes[k], coordinates) for k, z in noised)
        total = math.fsum(self.weights[k] for k, _ in noised)
        return math.hypot(*stds) / total if total else 0.0

    def _noise_std(self, multiplier: float, size: int, coordinates: int) -> float:
        """Standard deviation of the noise in one coordinate of the noised quantity: of one upload, or of the sum of
        uploads.
        """
        assert self.plan.offer is not None
        if self.plan.offer.subject.unit != "client":
            read = of_reader(self.algorithm.read, self.algorithm.work, multiplier, size)
            step = Estimates.of(self.algorithm).step_size  # of a method that does not say, nothing is known
            return float(step * read.std) if read and step is not None else 0.0
        return of_uplink(self.algorithm.uplink, multiplier, coordinates).std

    def _denominator(self, now: OpenRound) -> float:
        """Public denominator: the weight that a cohort of the expected size would have."""
        if now.rates is not None:
            return math.fsum(rate * weight for rate, weight in zip(now.rates.tolist(), self.weights, strict=True))
        return self.cohort.expected(self.population) * self._weight / self.population

    @cached_property
    def inbox(self) -> Inbox:
        return Inbox(self.algorithm, self.home.task, self.run, self.config, self.secure_sum, self.called)

    @cached_property
    def secure_sum(self) -> SecureSum | None:
        return None if self.algorithm.uplink.secure is None else SecureSum(self.algorithm.uplink, self.run)

    @cached_property
    def largest(self) -> int:
        """Number of examples of the largest client."""
        return max(self.sizes)

    @cached_property
    def weights(self) -> Sequence[float]:
        """The public weight of every client."""
        uplink = self.algorithm.uplink
        if self._precisions:
            return [uplink.weight(n, self.largest, p) for n, p in zip(self.sizes, self._precisions, strict=True)]
        return Weights(self.sizes, {size: uplink.weight(size, self.largest) for size in set(self.sizes)})

    @cached_property
    def _precisions(self) -> Sequence[float]:
        """Precision of every client's noise, where uploads are weighted by it."""
        weighed = any(isinstance(stage, Weigh) and stage.by == "precision" for stage in self.algorithm.uplink.client)
        return [self.plan.precision(k) for k in range(self.population)] if weighed else []

    @cached_property
    def _weight(self) -> float:
        """Sum of the weights of all clients."""
        return math.fsum(self.weights)


@dataclass(frozen=True)
class Weights(Sequence[float]):
    """Public weight of every client, looked up by its size, since there are fewer sizes than clients."""

    sizes: Sequence[int]
    of: Mapping[int, float]

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, client: Any) -> Any:
        return self.of[self.sizes[client]]

    def __iter__(self) -> Iterator[float]:
        return map(self.of.__getitem__, self.sizes)


if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Inbox:
    """Decoder of the uploads that reach the server, and the lengths of its broadcasts in bytes."""

    algorithm: AnyAlgorithm
    task: Task
    run: str
    config: str
    secure_sum: SecureSum | None = None  # adds uploads that are never read alone
    called: Callable[[int], str] = str  # the name of a client, or its number
    signed: bool = False  # True where uploads come in messages whose signed digests were compared
    remarks: list[str] = field(default_factory=list)  # what the user should know of answers that could not be used

    def header(self, t: int, sender: int) -> wire.Header:
        return wire.Header(self.run, self.config, t, sender, "down" if sender < 0 else "up")

    def bytes_down(self, t: int, down: Tree, clients: Sequence[int]) -> int:
        # from the second round on, those who hold a key open the sum of the round before
        held = self.secure_sum.broadcast if t and self.secure_sum is not None else 0
        if isinstance(own := self.algorithm, PerClientMessages):
            return sum(wire.size(self.header(t, -1), wire.schema(own.per_client_message(down, k))) for k in clients)
        return len(clients) * (held or wire.size(self.header(t, -1), wire.schema(down)))

    def open(self, t: int, uploads: Iterable[tuple[int, Tree] | Summed], turnout: Turnout, down: Tree) -> RoundUploads:
        return RoundUploads(self, t, uploads, turnout, down)


class RoundUploads:
    """Iterator over the uploads of one round, which does not store them. After the last upload, `tally` and `digest`
    summarise them.
    """

    def __init__(
        self, inbox: Inbox, t: int, uploads: Iterable[tuple[int, Tree] | Summed], turnout: Turnout, down: Tree
    ) -> None:
        self._inbox, self._t, self._uploads, self._turnout, self._down = inbox, t, uploads, turnout, down
        self._answered = list[int]()
        self._size = 0
        self._seen = list[int]()  # checksums of single uploads that the server sees

    def __iter__(self) -> Iterator[tuple[int, Tree] | Summed]:
        """Yields the uploads that came in time, decoded and checked."""
        inbox, t, late = self._inbox, self._t, self._turnout.late
        length = wire.sizes(inbox.header(t, 0), self._schema)
        # where noise protects the sum, or it cannot be read, single uploads are not seen
        each_is_seen = not self._uplink.hides_each and self._uplink.secure is None
        unbounded = self._unbounded
        for one in self._uploads:
            if isinstance(one, Summed):
                self._size += sum(map(length, one.who))
                self._answered += one.who
                yield one
                continue
            k, answer = one
            if k in self._turnout.lost:
                continue
            upload = answer
            if isinstance(answer, bytes | memoryview):
                try:
                    _, upload = wire.decode(answer, inbox.header(t, k), self._shape, inbox.signed)
                except WireError as error:  # a bad client is an absent one; what it was granted stays spent
                    why = f"{error.what} ({error.code})"
                    inbox.remarks.append(f"round {t + 1}: client {inbox.called(k)} counts as absent: {why}")
                    if each_is_seen:
                        self._note(torch.frombuffer(bytearray(answer or b"\0"), dtype=torch.uint8))
                    continue
            if unbounded and k not in late and not tree.finite(upload):
                raise _not_finite(t, inbox.called(k))
            self._size += length(k)
            if k not in late:
                self._answered.append(k)
                yield k, upload
            elif each_is_seen:
                self._note(upload)

    @property
    def tally(self) -> Tally:
        # groups of clients are done in any order
        return Tally(sorted(self._answered), self._size, wire.payload_bytes(self._schema))

    def digest(self, mean: Tree) -> bytes:
        """Digest of all that the server sees in the round: of the mean, which covers the uploads in time and tells any
        two releases apart, and of checksums of late uploads that it sees."""
        digest = hashlib.sha256(json.dumps(self._seen).encode())
        for leaf in tree.leaves(mean):
            digest.update(_buffer(leaf))
        return digest.digest()

    def _note(self, upload: Tree) -> None:
        self._seen += [zlib.crc32(_buffer(leaf)) for leaf in tree.leaves(upload)]

    @property
    def _unbounded(self) -> bool:
        """True where one upload could give the sum any value. False if uploads are judged anyway: by an algorithm that
        reads each one, or by a robust sum.
        """
        if self._inbox.algorithm.reads_each or self._uplink.robust:
            return False
        return self._uplink.unbounded(tree.size(self._zero))

    @cached_property
    def _uplink(self) -> Uplink:
        return self._inbox.algorithm.uplink.at(self._t, self._down)

    @cached_property
    def _zero(self) -> Tree:
        return self._inbox.algorithm.zero(self._inbox.task, self._down)

    @cached_property
    def _shape(self) -> Tree:
        return self._uplink.shape(self._zero)

    @cached_property
    def _schema(self) -> wire.Schema:
        return wire.schema(self._shape)


def _buffer(leaf: Tensor) -> Any:
    return leaf.contiguous().cpu().numpy().reshape(-1).view(np.uint8)


def _not_finite(t: int, client: str) -> NonFiniteModel:
    return NonFiniteModel(
        f"the update of client {client} is not finite in round {t + 1}",
        why="no clip bounds what a client sends here, so the model would not be finite either",
        fix="lower algorithm.lr, or look for NaN in your own model; with a clip in [uplink], such an upload "
        "would count as zero. The last good model is in the run's checkpoints",
        code="model-not-finite",
    )
