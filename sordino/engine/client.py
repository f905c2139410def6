"""All that a client is: its own examples, its own state, and one answer per round. The same code runs in the loop and
in another process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from sordino import keys, tree
from sordino.algorithms.algorithm import Algorithm
from sordino.engine import wire
from sordino.engine.client_states import States
from sordino.engine.shards import Prepared
from sordino.engine.stack import Member, stacks, together
from sordino.keys import Key
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.open import Open
from sordino.privacy.readers.shared_pass import SharedPass
from sordino.tasks.personalise import WAYS
from sordino.types import Examples, Grant, Params, Scorer, Shard, Task


@dataclass
class Clients:
    """The clients that live in this process."""

    algorithm: Algorithm[Any, Any, Any, Any]
    task: Task
    shards: Mapping[int, Examples]
    header: Callable[[int, int], wire.Header]  # (round, sender; -1 the server) -> what a message must say
    states: States
    tests: Mapping[int, Examples] = field(default_factory=dict)  # what each keeps to be tested on
    handed: Mapping[str, Tensor] | None = None  # what everybody was given before the first round
    key: Key = 0  # of the run: what a client makes of it is drawn from there
    # who shares a pass over the network: "pooled" clients at the same weights, "stack" clients of equal shape
    executor: str = "loop"
    _made: dict[int, Examples | None] = field(default_factory=dict, repr=False)  # what each has made of it

    def __call__(
        self, t: int, down: Any, grants: Mapping[int, Grant], key: Key, apart: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """One round of every client named in `grants`, in their order. Nothing needs to be packed in one process.
        `apart`: `down` is what one client is told."""
        order, uplink = sorted(grants), self.algorithm.uplink.at(t, down)
        shards = self.shards.at(t) if isinstance(self.shards, Prepared) else self.shards
        pool = SharedPass(self.task, order, shards.__getitem__) if self.executor == "pooled" else None
        members = (
            Member(
                k,
                shards[k],
                self._state(k),
                replace(grants[k], pool=pool, public=self._public(k, grants[k].size)),
                keys.word(keys.fold(key, "client", k)),
            )
            for k in order
        )
        # a stack has one broadcast and one set of public examples: not where clients are told, or hold, something of
        # their own
        shared = self.executor == "stack" and self.handed is None and not self.algorithm.tells_each
        for stack in stacks(members, self.task.stacks if shared else lambda n: 1):
            for member, (upload, state) in zip(stack, self._local(down, stack, apart), strict=True):
                self.states[member.client] = state
                yield member.client, uplink.encode(upload, member.grant)

    def answer(
        self, t: int, message: bytes, grants: Mapping[int, Grant], key: Key, apart: bool = False
    ) -> Iterator[tuple[int, bytes]]:
        """The same for a server in another process: the broadcast as it came, or what one client is told of it, and the
        answers as they go."""
        if grants:
            template = self.algorithm.broadcast(self.algorithm.init(self.task, 0))
            if apart:
                template = self.algorithm.told(template, next(iter(grants)))
            _, down = wire.decode(message, self.header(t, -1), template)
            for k, upload in self(t, down, grants, key, apart):
                yield k, wire.encode(self.header(t, k), upload)

    def score(self, t: int, models: Sequence[Params], ways: Sequence[str]) -> dict[int, list[float]]:
        """Of every client here that has test examples: the means of its metrics, way after way of model after model.
        Nothing is released by it.
        """
        return {k: self._scored(k, models, ways) for k, test in self.tests.items() if len(test.y)}

    def answer_scores(self, command: Mapping[str, Any], message: bytes) -> dict[int, list[float]]:
        """The same for a server in another process."""
        templates = (self.task.init(0),) * command["models"]
        _, models = wire.decode(message, self.header(command["t"], -1), templates)
        return self.score(command["t"], models, command["ways"])

    def _scored(self, k: int, models: Sequence[Params], ways: Sequence[str]) -> list[float]:
        own = self.shards[k]
        shard = Open().open(own, Grant(k, len(own.y), len(own.y), Counter(0)), self.task)
        found: list[float] = []
        for params in models:
            for way in ways:
                scores = self._own_model(k, way, params, shard).score(self.tests[k])
                found += [float(scores[name].mean()) for name in self.task.metrics]
        return found

    def _own_model(self, k: int, way: str, params: Params, shard: Shard) -> Scorer:
        """Who has no examples of its own to learn from is left with the shared model."""
        if not shard.size:
            return WAYS["plain"](self.task, params, shard)
        if way in WAYS:
            return WAYS[way](self.task, params, shard)
        return self.algorithm.personal(self.task, params, self._state(k), shard)

    def _public(self, k: int, size: int) -> Examples | None:
        """What the client has beside its own examples: made of what was handed to everybody, once."""
        if self.handed is None:
            return None
        if k not in self._made:
            self._made[k] = self.algorithm.equip(self.task, self.handed, size, keys.fold(self.key, "equip", k))
        return self._made[k]

    def _state(self, k: int) -> Any:
        state = self.states.get(k)
        return self.algorithm.init_client(self.task) if state is None else state

    def _local(self, down: Any, stack: list[Member], apart: bool) -> Iterable[tuple[Any, Any]]:
        if len(stack) > 1:
            try:
                return together(self.algorithm, self.task, down, stack)
            except RuntimeError:
                # client code that looks at a value; an error of its own comes up again. Nothing is remembered of it: a
                # run that goes on after a crash must take the same turns
                pass
        return self._alone(down, stack, apart)

    def _alone(self, down: Any, stack: list[Member], apart: bool) -> Iterator[tuple[Any, Any]]:
        for member in stack:
            reader = self.algorithm.read
            grant = replace(member.grant, reads=reader.reads(self.algorithm.work, member.grant.size))
            shard = reader.open(member.examples, grant, self.task)
            mine = down if apart else self.algorithm.told(down, member.client)
            upload, state = self.algorithm.local(self.task, mine, member.state, shard, member.key)
            # alone is the reference: the same bytes as from a process of its own, which has to write them out
            yield (tree.formed(upload) if self.executor == "loop" else upload), state
