"""All that a client is: its own examples, its own state, and one answer per round. The same code runs in the loop and in another process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sordino import keys
from sordino.engine import wire
from sordino.keys import Key
from sordino.types import Examples, Grant, Task


@dataclass
class Clients:
    """The clients that live in this process."""

    algorithm: Any
    task: Task
    shards: Mapping[int, Examples]
    header: Callable[[int, int], wire.Header]  # (round, sender; -1 the server) -> what a message must say
    states: dict[int, Any] = field(default_factory=dict)

    def __call__(self, t: int, message: bytes, grants: Mapping[int, Grant], key: Key) -> dict[int, bytes]:
        """One round of every client named in `grants`. The executor of one process; several of them make a parallel one."""
        if not grants:
            return {}
        template = self.algorithm.broadcast(self.algorithm.init(self.task, 0))
        _, down = wire.decode(message, self.header(t, -1), template)
        return {k: self._one(t, k, down, grant, keys.fold(key, "client", k)) for k, grant in grants.items()}

    def _one(self, t: int, k: int, down: Any, grant: Grant, key: Key) -> bytes:
        state = self.states.get(k)
        if state is None:
            state = self.algorithm.init_client(self.task)
        reader = self.algorithm.read
        shard = reader.open(
            self.shards[k], replace(grant, reads=reader.reads(self.algorithm.work, grant.size)), self.task
        )
        upload, self.states[k] = self.algorithm.local(self.task, down, state, shard, key)
        return wire.encode(self.header(t, k), self.algorithm.uplink.encode(upload, grant))
