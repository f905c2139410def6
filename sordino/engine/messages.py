"""What a round's messages are and how long: the broadcast, what of it each client gets, and the uploads as they come in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from sordino.engine import wire
from sordino.engine.mail import Mail
from sordino.engine.secure_sum import SecureSum
from sordino.engine.stragglers import Crew


class Messages:
    algorithm: Any
    run: str
    config: str

    @property
    def secure_sum(self) -> SecureSum | None:
        """What adds uploads that nobody reads."""
        return None

    def header(self, t: int, sender: int) -> wire.Header:
        return wire.Header(self.run, self.config, t, sender, 0, "down" if sender < 0 else "up")

    def bytes_down(self, t: int, down: Any, clients: Sequence[int]) -> int:
        # from the second round on, those who hold a key open the sum of the round before
        held = self.secure_sum.broadcast if t and self.secure_sum is not None else 0
        if hasattr(self.algorithm, "told"):
            return sum(wire.size(self.header(t, -1), wire.schema(self.algorithm.told(down, k))) for k in clients)
        return len(clients) * (held or wire.size(self.header(t, -1), wire.schema(down)))

    def open(
        self, t: int, answers: Iterable[tuple[int, Any]], crew: Crew, down: Any, mail: Mail
    ) -> Iterator[tuple[int, Any]]:
        """The uploads of those who were in time, noting on the way what came."""
        shape, length = self._shape(t, down), self._length(t, down)
        # where noise protects the sum, or nobody can read it, single uploads are not seen
        each_is_seen = not self.algorithm.uplink.central and self.algorithm.uplink.secure is None
        for k, answer in answers:
            if k in crew.lost:
                continue
            upload = wire.decode(answer, self.header(t, k), shape)[1] if isinstance(answer, bytes) else answer
            mail.size += length(k)
            if k not in crew.late:
                mail.answered.append(k)
                yield k, upload
            elif each_is_seen:
                mail.note(upload)

    def _length(self, t: int, down: Any) -> Callable[[int], int]:
        return wire.sizes(self.header(t, 0), wire.schema(self._shape(t, down)))

    def payload(self, t: int, down: Any) -> int:
        """Bytes of one upload without its envelope."""
        return wire.payload_bytes(wire.schema(self._shape(t, down)))

    def _shape(self, t: int, down: Any) -> Any:
        return self.algorithm.uplink.at(t, down).shape(self.algorithm.zero(down))
