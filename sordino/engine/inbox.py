"""Messages of a round and their lengths: the broadcast, the part of it that each client gets, and the uploads as they
come in.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sordino import tree
from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.algorithms.optional import PerClientMessages
from sordino.engine import wire
from sordino.engine.executor import Tally
from sordino.engine.secure_sum import SecureSum
from sordino.errors import NonFiniteModel, WireError
from sordino.privacy.uplink import Summed, Uplink
from sordino.sampling.stragglers import Crew
from sordino.tree import Tree
from sordino.types import Task

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Inbox:
    """Messages of the server: the lengths of its broadcasts, and the uploads that come back."""

    algorithm: AnyAlgorithm
    task: Task
    run: str
    config: str
    secure_sum: SecureSum | None = None  # adds uploads that are never read alone
    called: Callable[[int], str] = str  # the name of a client, or its number
    remarks: list[str] = field(default_factory=list)  # what the user should know of answers that could not be used

    def header(self, t: int, sender: int) -> wire.Header:
        return wire.Header(self.run, self.config, t, sender, "down" if sender < 0 else "up")

    def bytes_down(self, t: int, down: Tree, clients: Sequence[int]) -> int:
        # from the second round on, those who hold a key open the sum of the round before
        held = self.secure_sum.broadcast if t and self.secure_sum is not None else 0
        if isinstance(own := self.algorithm, PerClientMessages):
            return sum(wire.size(self.header(t, -1), wire.schema(own.per_client_message(down, k))) for k in clients)
        return len(clients) * (held or wire.size(self.header(t, -1), wire.schema(down)))

    def open(self, t: int, uploads: Iterable[tuple[int, Tree] | Summed], crew: Crew, down: Tree) -> Mail:
        return Mail(self, t, uploads, crew, down)


class Mail:
    """Iterator over the uploads of one round, none of which is kept. Once all were read, `tally` and `digest` describe
    them.
    """

    def __init__(
        self, inbox: Inbox, t: int, uploads: Iterable[tuple[int, Tree] | Summed], crew: Crew, down: Tree
    ) -> None:
        self._inbox, self._t, self._uploads, self._crew, self._down = inbox, t, uploads, crew, down
        self._answered = list[int]()
        self._size = 0
        self._seen = list[int]()  # checksums of single uploads that the server sees

    def __iter__(self) -> Iterator[tuple[int, Tree] | Summed]:
        """Yields the uploads that came in time, decoded and checked."""
        inbox, t, late = self._inbox, self._t, self._crew.late
        length = wire.sizes(inbox.header(t, 0), self._schema)
        # where noise protects the sum, or it cannot be read, single uploads are not seen
        each_is_seen = not self._uplink.central and self._uplink.secure is None
        unbounded = self._unbounded
        for one in self._uploads:
            if isinstance(one, Summed):
                self._size += sum(map(length, one.who))
                self._answered += one.who
                yield one
                continue
            k, answer = one
            if k in self._crew.lost:
                continue
            upload = answer
            if isinstance(answer, bytes | memoryview):
                try:
                    _, upload = wire.decode(answer, inbox.header(t, k), self._shape)
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
        # units of clients come in an order of their own
        return Tally(sorted(self._answered), self._size, wire.payload_bytes(self._schema))

    def digest(self, mean: Tree) -> bytes:
        """Digest of all that the round lets the server see. Uploads in time enter by the mean, which tells any two
        releases apart; late uploads that the server sees enter by their checksums.
        """
        digest = hashlib.sha256(json.dumps(self._seen).encode())
        for leaf in tree.leaves(mean):
            digest.update(_buffer(leaf))
        return digest.digest()

    def _note(self, upload: Tree) -> None:
        self._seen += [zlib.crc32(_buffer(leaf)) for leaf in tree.leaves(upload)]

    @property
    def _unbounded(self) -> bool:
        """True where a single upload can set the sum to any value. False for an algorithm that reads each upload and
        for a robust sum: both judge uploads themselves.
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
