"""Store of a site's last answers, with the states of its clients. An answer counts as stored once the checkpoint that
names it is durable: a crash at any moment leaves the answer with the states after it, or neither."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sordino.engine import checkpoint
from sordino.engine.commands import Answered
from sordino.errors import LedgerError, damaged
from sordino.ledger.files import atomic_write
from sordino.transport.message import digest_of
from sordino.tree import Tree

KEPT = 3  # answers: a server that goes further back is refused


class StoredReply(NamedTuple):
    """Record of one stored answer and of the operation that it answers."""

    operation: str
    asked: str  # digest of the operation
    file: str
    clients: list[int]
    sizes: list[int]
    digest: str  # of the bodies


class ReplyStore:
    """The last answers of a site, in a folder."""

    def __init__(self, place: Path) -> None:
        self._place = place
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._step, meta = checkpoint.newest(place / "states") or (0, {"answers": []})
        self._known = {row[0]: StoredReply(*row) for row in meta["answers"]}

    @property
    def last(self) -> str:
        """Name of the operation that was answered last; empty where there is none."""
        return next(reversed(self._known), "")

    def states(self, template: Callable[[str], Tree]) -> Mapping[str, Tree]:
        """The states of the clients after the last answer, as trees of a checkpoint."""
        loaded = checkpoint.load(self._place / "states", template)
        return {} if loaded is None else loaded.trees

    def find(self, operation: str, asked: str) -> tuple[Answered, list[bytes]] | None:
        """Stored answer to an operation, None where there is none; refused where the operation was asked with another
        content.
        """
        if (known := self._known.get(operation)) is None:
            return None
        if known.asked != asked:
            raise LedgerError(
                f"{operation} was requested before with another content",
                why="a second answer would reveal its difference from the first, which is not paid for",
                fix="the server must continue from the checkpoint of this round",
                code="other-content",
            )
        path = self._place / known.file
        bodies, begin = [], 0
        data = path.read_bytes() if path.is_file() else b""
        for size in known.sizes:
            bodies.append(data[begin : begin + size])
            begin += size
        if len(data) != begin or digest_of(bodies) != known.digest:
            raise damaged(path, "it is not the answer that was kept", "put the file back from a copy")
        return Answered(known.clients), bodies

    def put(
        self, operation: str, asked: str, answer: Answered, bodies: Sequence[bytes], states: Mapping[str, Tree]
    ) -> None:
        """Makes an answer and the states after it durable, together."""
        self._step += 1
        file = f"answer-{self._step:06d}"
        atomic_write(self._place / file, b"".join(bodies), private=True)
        new = StoredReply(operation, asked, file, answer.clients, [len(body) for body in bodies], digest_of(bodies))
        kept = [*[*self._known.values()][-(KEPT - 1) :], new]
        checkpoint.save(self._place / "states", self._step, states, {"answers": [list(row) for row in kept]}, keep=1)
        for old in self._known.keys() - {row.operation for row in kept}:
            (self._place / self._known[old].file).unlink(missing_ok=True)
        self._known = {row.operation: row for row in kept}
