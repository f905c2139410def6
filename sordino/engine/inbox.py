"""What a round's messages are and how long: the broadcast, what of it each client gets, and the uploads as they come
in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from sordino import tree
from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.algorithms.optional import PerClientMessages
from sordino.engine import wire
from sordino.engine.mail import Mail
from sordino.engine.secure_sum import SecureSum
from sordino.errors import NonFiniteModel, WireError
from sordino.privacy.uplink import Summed
from sordino.sampling.stragglers import Crew
from sordino.tree import Tree
from sordino.types import Task


@dataclass
class Inbox:
    """The server's mail: how long its messages are, and what comes back."""

    algorithm: AnyAlgorithm
    task: Task
    run: str
    config: str
    secure_sum: SecureSum | None = None  # what adds uploads that nobody reads
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

    def open(
        self, t: int, answers: Iterable[tuple[int, Tree] | Summed], crew: Crew, down: Tree, mail: Mail
    ) -> Iterator[tuple[int, Tree] | Summed]:
        """The uploads of those who were in time, noting on the way what came."""
        shape, length = self._shape(t, down), self.length(t, down)
        # where noise protects the sum, or nobody can read it, single uploads are not seen
        each_is_seen = not self.algorithm.uplink.central and self.algorithm.uplink.secure is None
        unbounded = self._unbounded(t, down)
        for one in answers:
            if isinstance(one, Summed):
                mail.size += sum(map(length, one.who))
                mail.answered += one.who
                yield one
                continue
            k, answer = one
            if k in crew.lost:
                continue
            upload = answer
            if isinstance(answer, bytes | memoryview):
                try:
                    _, upload = wire.decode(answer, self.header(t, k), shape)
                except WireError as error:  # a bad client is an absent one; what it was granted stays spent
                    why = f"{error.what} ({error.code})"
                    self.remarks.append(f"round {t + 1}: client {self.called(k)} counts as absent: {why}")
                    if each_is_seen:
                        mail.note(torch.frombuffer(bytearray(answer or b"\0"), dtype=torch.uint8))
                    continue
            if unbounded and k not in crew.late and not tree.finite(upload):
                raise _not_finite(t, self.called(k))
            mail.size += length(k)
            if k not in crew.late:
                mail.answered.append(k)
                yield k, upload
            elif each_is_seen:
                mail.note(upload)

    def _unbounded(self, t: int, down: Tree) -> bool:
        """May a single upload make the sum whatever it likes? An algorithm that reads each upload, and a robust sum,
        judge for themselves.
        """
        if self.algorithm.reads_each or self.algorithm.uplink.robust:
            return False
        return self.algorithm.uplink.at(t, down).unbounded(tree.size(self.algorithm.zero(self.task, down)))

    def length(self, t: int, down: Tree) -> Callable[[int], int]:
        """How long the upload of each client is, as a message."""
        return wire.sizes(self.header(t, 0), wire.schema(self._shape(t, down)))

    def payload(self, t: int, down: Tree) -> int:
        """Bytes of one upload without its envelope."""
        return wire.payload_bytes(wire.schema(self._shape(t, down)))

    def _shape(self, t: int, down: Tree) -> Any:
        return self.algorithm.uplink.at(t, down).shape(self.algorithm.zero(self.task, down))


def _not_finite(t: int, client: str) -> NonFiniteModel:
    return NonFiniteModel(
        f"the update of client {client} is not finite in round {t + 1}",
        why="no clip bounds what a client sends here, so the model would not be finite either",
        fix="lower algorithm.lr, or look for NaN in your own model; with a clip in [uplink], such an upload "
        "would count as zero. The last good model is in the run's checkpoints",
        code="model-not-finite",
    )
