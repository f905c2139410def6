"""Algorithms with an adaptive uplink: its rates or radii change from round to round, and are public, because they are
computed from releases.

These values are broadcast with the model and stored in checkpoints beside the algorithm's own state; the algorithm does
not see them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import new_class
from typing import Any, NamedTuple, cast

from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.algorithms.optional import Home, PerClientMessages, RequestsClients, first_state
from sordino.algorithms.phases import AnyPhase, Facts, FeatureMean, Table
from sordino.keys import Key
from sordino.tree import Tree
from sordino.types import Params, Received, Shard, Task


class Server(NamedTuple):
    own: Tree
    public: Tree


class Down(NamedTuple):
    own: Tree
    public: Tree


class Adapting:
    """Wrapper that gives an algorithm an adaptive uplink. The server's state becomes a pair: the algorithm's state and
    the uplink's. Methods that take or return a state or a broadcast pass `own` its part of it; all others are
    inherited.
    """

    own: AnyAlgorithm

    def init(self, task: Task, key: Key) -> Server:
        return self._first(task, self.own.init(task, key))

    def begin(self, task: Task, key: Key, before: Any, home: Home) -> Server:
        return self._first(task, first_state(self.own, task, key, before, home))

    def _first(self, task: Task, server: Tree) -> Server:
        zero = self.own.zero(task, self.own.broadcast(server))
        model = next(iter(self.own.models(server).values()), {})  # a phase may hold none
        return Server(server, self.own.uplink.begin(zero, model))

    def broadcast(self, s: Server) -> Down:
        return Down(self.own.broadcast(s.own), s.public)

    def per_client_message(self, down: Down, client: int) -> Down:
        return Down(PerClientMessages.of(self.own).per_client_message(down.own, client), down.public)

    def requested_clients(self, s: Server) -> Sequence[int]:
        return RequestsClients.of(self.own).requested_clients(s.own)

    def zero(self, task: Task, down: Down) -> Tree:
        return self.own.zero(task, down.own)

    def local(self, task: Task, down: Down, c: Tree, shard: Shard, key: Key) -> tuple[Tree, Tree]:
        return self.own.local(task, down.own, c, shard, key)

    def update(self, s: Server, r: Received[Tree], home: Home) -> Server:
        return Server(self.own.update(s.own, r, home), r.public)

    def models(self, s: Server) -> Mapping[str, Params]:
        return self.own.models(s.own)

    def behind(self, *gates: Any, **named: Any) -> AnyAlgorithm:
        return _around(self.own.behind(*gates, **named))

    # of a phase -------------------------------------------------------------------------------------------------------

    @property
    def _phase(self) -> AnyPhase:
        return cast("AnyPhase", self.own)

    def over(self, s: Server) -> bool:
        return self._phase.over(s.own)

    def result(self, s: Server) -> Any:
        return self._phase.result(s.own)

    def means(self, s: Server, task: Task) -> Sequence[FeatureMean]:
        return self._phase.means(s.own, task)

    def tables(self, s: Server) -> Mapping[str, Table]:
        return self._phase.tables(s.own)

    def facts(self, s: Server, before: Facts) -> Facts:
        return self._phase.facts(s.own, before)


def adapting(own: AnyAlgorithm) -> AnyAlgorithm:
    """The algorithm itself, or an `Adapting` wrapper of it if its uplink is adaptive."""
    return _around(own) if own.uplink.learns else own


def _around(own: AnyAlgorithm) -> AnyAlgorithm:
    made: AnyAlgorithm = object.__new__(_class(type(own)))
    vars(made).update(vars(own), own=own)
    return made


@cache
def _class(own: type[AnyAlgorithm]) -> type[AnyAlgorithm]:
    """A class for an algorithm with an adaptive uplink: a subclass of `Adapting` and of the algorithm's class, whose
    optional features it has."""
    words = {"takes_mean": own.takes_mean, "carries_statistics": own.carries_statistics}
    return cast("type[AnyAlgorithm]", new_class(f"Adapting{own.__name__}", (Adapting, own), words))
