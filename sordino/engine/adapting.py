"""An algorithm whose uplink learns from round to round: rates or radii that are public, computed from what was released, and go down with the model.

It wraps the algorithm, which knows nothing of it: what the stages have learnt travels beside the algorithm's own state, into checkpoints and messages alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sordino.keys import Key
from sordino.tree import Tree
from sordino.types import Params, Received, Shard, Task


class Server(NamedTuple):
    own: Any
    public: Tree


class Down(NamedTuple):
    own: Any
    public: Tree


@dataclass(frozen=True)
class Adapting:
    own: Any

    def __getattr__(self, name: str) -> Any:
        """Everything else is the algorithm's."""
        if name == "own":  # of a copy that is not made yet
            raise AttributeError(name)
        return getattr(self.own, name)

    def init(self, task: Task, key: Key) -> Server:
        server = self.own.init(task, key)
        zero, model = self.own.zero(self.own.broadcast(server)), next(iter(self.own.models(server).values()))
        return Server(server, self.own.uplink.begin(zero, model))

    def broadcast(self, s: Server) -> Down:
        return Down(self.own.broadcast(s.own), s.public)

    def zero(self, down: Down) -> Any:
        return self.own.zero(down.own)

    def local(self, task: Task, down: Down, c: Any, shard: Shard, key: Key) -> tuple[Any, Any]:
        found: tuple[Any, Any] = self.own.local(task, down.own, c, shard, key)
        return found

    def update(self, s: Server, r: Received[Any]) -> Server:
        return Server(self.own.update(s.own, r), r.public)

    def models(self, s: Server) -> Mapping[str, Params]:
        found: Mapping[str, Params] = self.own.models(s.own)
        return found
