"""An algorithm whose uplink learns from round to round: rates or radii that are public, computed from what was
released.

They go down with the model. The algorithm knows nothing of it: what the stages have learnt travels beside its own
state, into checkpoints and messages alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self

from sordino.algorithms.algorithm import Algorithm, AnyAlgorithm, Asked, Home, Known, Table
from sordino.algorithms.phases import Facts, FeatureMean, Phase, RunNumbers, Said
from sordino.keys import Key
from sordino.privacy.uplink import Uplink
from sordino.tree import Tree
from sordino.types import C, D, Examples, Formula, Params, Reader, Received, S, Scorer, Shard, Task, U, Work

if TYPE_CHECKING:
    from torch import Tensor


class Server(NamedTuple, Generic[S]):
    own: S
    public: Tree


class Down(NamedTuple, Generic[D]):
    own: D
    public: Tree


@dataclass(frozen=True)
class Adapting(Algorithm[Server[S], C, Down[D], U]):
    """The algorithm `own`, with what its uplink has learnt beside each of its states and messages."""

    own: Algorithm[S, C, D, U]

    # with what was learnt ---------------------------------------------------------------------------------------------

    def init(self, task: Task, key: Key) -> Server[S]:
        return self._first(task, self.own.init(task, key))

    def begin(self, task: Task, key: Key, before: Any, home: Home) -> Server[S]:
        return self._first(task, self.own.begin(task, key, before, home))

    def _first(self, task: Task, server: S) -> Server[S]:
        zero = self.own.zero(task, self.own.broadcast(server))
        model = next(iter(self.own.models(server).values()), {})  # a phase may hold none
        return Server(server, self.own.uplink.begin(zero, model))

    def broadcast(self, s: Server[S]) -> Down[D]:
        return Down(self.own.broadcast(s.own), s.public)

    def told(self, down: Down[D], client: int) -> Down[D]:
        return Down(self.own.told(down.own, client), down.public)

    def asks(self, s: Server[S]) -> Sequence[int]:
        return self.own.asks(s.own)

    def zero(self, task: Task, down: Down[D]) -> U:
        return self.own.zero(task, down.own)

    def local(self, task: Task, down: Down[D], c: C, shard: Shard, key: Key) -> tuple[U, C]:
        return self.own.local(task, down.own, c, shard, key)

    def update(self, s: Server[S], r: Received[U], home: Home) -> Server[S]:
        return Server(self.own.update(s.own, r, home), r.public)

    def models(self, s: Server[S]) -> Mapping[str, Params]:
        return self.own.models(s.own)

    def tables(self, s: Server[S]) -> Mapping[str, Table]:
        return self.own.tables(s.own)

    def fitted(self, known: Known) -> Self:
        return replace(self, own=self.own.fitted(known))

    # as the algorithm answers -----------------------------------------------------------------------------------------

    @property
    def read(self) -> Reader:
        return self.own.read

    @property
    def uplink(self) -> Uplink:
        return self.own.uplink

    @property
    def work(self) -> Work:
        return self.own.work

    @property
    def wants(self) -> Asked:
        return self.own.wants

    @property
    def reads_each(self) -> bool:
        return self.own.reads_each

    @property
    def personalises(self) -> bool:
        return self.own.personalises

    @property
    def own_way(self) -> str | None:
        return self.own.own_way

    @property
    def tells_each(self) -> bool:
        return self.own.tells_each

    @property
    def names_clients(self) -> bool:
        return self.own.names_clients

    @property
    def sets_loss(self) -> bool:
        return self.own.sets_loss

    @property
    def heads(self) -> int:
        return self.own.heads

    @property
    def projection(self) -> int:
        return self.own.projection

    @property
    def step_size(self) -> float | None:
        return self.own.step_size

    def change(self, upload: U) -> Params | None:
        return self.own.change(upload)

    def behind(self, read: Reader | None = None, uplink: Uplink | None = None) -> Self:
        return replace(self, own=self.own.behind(read, uplink))

    def having(self, **settings: Any) -> Self:
        return replace(self, own=self.own.having(**settings))

    def init_client(self, task: Task) -> C:
        return self.own.init_client(task)

    def personal(self, task: Task, params: Params, c: C, shard: Shard) -> Scorer:
        return self.own.personal(task, params, c, shard)

    def check(self, home: Home) -> None:
        self.own.check(home)

    def warns(self, home: Home) -> list[str]:
        return self.own.warns(home)

    def handed(self, before: Any, home: Home) -> Params | None:
        return self.own.handed(before, home)

    def equip(self, task: Task, handed: Mapping[str, Tensor], size: int, key: Key) -> Examples | None:
        return self.own.equip(task, handed, size, key)

    def passes(self, size: int) -> float | None:
        return self.own.passes(size)


@dataclass(frozen=True)
class AdaptingPhase(Adapting[S, C, D, U], Phase[Server[S], C, Down[D], U]):
    """The same of a phase that prepares a training."""

    own: Phase[S, C, D, U]

    @property
    def name(self) -> str:
        return self.own.name

    @property
    def rounds(self) -> int:
        return self.own.rounds

    def over(self, s: Server[S]) -> bool:
        return self.own.over(s.own)

    def result(self, s: Server[S]) -> Any:
        return self.own.result(s.own)

    def means(self, s: Server[S], task: Task) -> Sequence[FeatureMean]:
        return self.own.means(s.own, task)

    @property
    def says(self) -> Said:
        return self.own.says

    def facts(self, s: Server[S], before: Facts) -> Facts:
        return self.own.facts(s.own, before)

    def counted(self, training: AnyAlgorithm, public: RunNumbers) -> Formula | None:
        return self.own.counted(training, public)


def adapting(own: AnyAlgorithm) -> AnyAlgorithm:
    """The algorithm as it is, or with what its uplink learns."""
    if not own.uplink.learns:
        return own
    return AdaptingPhase(own) if isinstance(own, Phase) else Adapting(own)
