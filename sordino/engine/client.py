"""All that a client is: its own examples, its own state, and one answer per round. The same code runs in the loop and in another process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sordino import keys
from sordino.engine import wire
from sordino.engine.store import States
from sordino.keys import Key
from sordino.privacy.pool import Pool
from sordino.types import Examples, Grant, Task


@dataclass
class Clients:
    """The clients that live in this process."""

    algorithm: Any
    task: Task
    shards: Mapping[int, Examples]
    header: Callable[[int, int], wire.Header]  # (round, sender; -1 the server) -> what a message must say
    states: States
    pooled: bool = False  # may clients at the same weights share a pass over the network?

    def __call__(self, t: int, down: Any, grants: Mapping[int, Grant], key: Key) -> Iterator[tuple[int, Any]]:
        """One round of every client named in `grants`, one after another. The executor of one process: nothing needs to be packed."""
        order = sorted(grants)
        pool = Pool(self.task, order, self.shards.__getitem__) if self.pooled else None
        for k in order:
            yield k, self._one(k, down, replace(grants[k], pool=pool), keys.fold(key, "client", k))

    def answer(self, t: int, message: bytes, grants: Mapping[int, Grant], key: Key) -> Iterator[tuple[int, bytes]]:
        """The same for a server in another process: the broadcast as it came, the answers as they go."""
        if grants:
            template = self.algorithm.broadcast(self.algorithm.init(self.task, 0))
            _, down = wire.decode(message, self.header(t, -1), template)
            for k, upload in self(t, down, grants, key):
                yield k, wire.encode(self.header(t, k), upload)

    def _one(self, k: int, down: Any, grant: Grant, key: Key) -> Any:
        state = self.states.get(k)
        if state is None:
            state = self.algorithm.init_client(self.task)
        reader = self.algorithm.read
        reads = reader.reads(self.algorithm.work, grant.size)
        shard = reader.open(self.shards[k], replace(grant, reads=reads), self.task)
        upload, self.states[k] = self.algorithm.local(self.task, down, state, shard, key)
        return self.algorithm.uplink.encode(upload, grant)
