"""A site: clients with their own examples and states, each of which answers once per round. The same code runs in the
server's process, in another one, or on another machine; the server sends commands, which the site executes.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino import keys, tree
from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.algorithms.optional import PerClientMessages, PublicTensors
from sordino.engine import checkpoint, wire
from sordino.engine.client_states import PreparedShards, States, shape_of
from sordino.engine.commands import Command, Keep, Restore, Round, Score
from sordino.engine.executor import Answers, Executor, Scores
from sordino.engine.forks import Forks, ForksWork, Templates, Unit, UnitAnswers
from sordino.engine.stack import (
    WINDOW,
    Differences,
    Member,
    alike,
    by_size,
    differences,
    least,
    pools,
    sharing,
    stacks,
    together,
)
from sordino.errors import ConfigError
from sordino.fast.parallel import Ends, Threads, heavy
from sordino.privacy.noise.sources import Counter, for_client, for_round
from sordino.privacy.readers.open import Open
from sordino.privacy.uplink import Summed
from sordino.tasks.personalise import PLAIN, WAYS, OwnModels
from sordino.tree import Tree
from sordino.types import Examples, Grant, Params, Scorer, Shard, Task, Terms

if TYPE_CHECKING:
    from torch import Tensor

BESIDE = 20  # fixed cost of a client, in rows that take as long to compute
LONG = 0.05  # seconds of a round, from which on processes gain more than they cost


@dataclass
class Site(Executor):
    """The clients at one place, with their examples and states. In a simulation it is the executor of all clients."""

    algorithm: AnyAlgorithm
    task: Task
    shards: Mapping[int, Examples]
    header: Callable[[int, int], wire.Header]  # (round, sender; -1 the server) -> what a message must say
    states: States
    tests: Mapping[int, Examples] = field(default_factory=dict)  # test examples of each client
    public_tensors: Mapping[str, Tensor] | None = None  # tensors that every client was given before the first round
    # the agreed number of examples of each client, by client number, whatever its data hold; None: not known here
    sizes: Sequence[int] | Mapping[int, int] | None = None
    key: int = 0  # of a simulation's draws
    noise: str = "counter"  # where noise comes from
    # who shares a pass over the network: "pooled" clients at the same weights, "stack" clients of equal shape
    sharing: str = "loop"
    state_folder: Path | None = None  # where the site keeps its states; None where the server's checkpoint holds them
    threads: Threads[Task] | None = None  # None: one thread
    forks: Forks | None = None  # processes that help, once a round has been long
    adds: bool = False  # true: uploads computed in one call may be added up, since none is read alone
    hears: Callable[[int, Tree], None] | None = None  # called with every upload before it is added to others
    _made: dict[int, Examples | None] = field(default_factory=dict, repr=False)  # what each has made of public tensors
    _bears: Differences | None = field(default=None, repr=False)  # of clients in one call; None: not tried yet
    _pace: float = 0.0  # seconds for each example of the first long round, from which on help is worth it

    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Answers:
        """Computes the uploads of all clients named in `terms`; where the site may add them, sums over clients computed
        in one call. Messages are not encoded, as all is in one process."""
        if not self.adds:
            return Answers(self.each(t, down, terms))
        return Answers(self._by_unit(self._found(RoundHere(self, t, down, apart=False, adds=True), terms)))

    def each(self, t: int, down: Tree, terms: Mapping[int, Terms], apart: bool = False) -> Iterator[tuple[int, Tree]]:
        """Computes the upload of every client in `terms`, in order. `apart`: `down` is one client's message only."""
        yield from self._by_client(self._found(RoundHere(self, t, down, apart), terms), sorted(terms))

    def _found(self, now: RoundHere, terms: Mapping[int, Terms]) -> Iterator[tuple[int, UnitAnswers]]:
        """Answers of each unit (clients computed in one call) with its number, in order of completion."""
        _ = self.first_state  # made before anybody is at work: it takes the network
        begun = time.perf_counter()
        units = self._units((now.member(k, terms[k], self.state(k)) for k in sorted(terms)), now.down, len(terms))
        yield from self._trained(now, units, terms)
        if not self._pace and (took := time.perf_counter() - begun) > LONG:
            self._pace = took / max(1, now.rows)

    def _by_client(self, found: Iterable[tuple[int, UnitAnswers]], order: Sequence[int]) -> Iterator[tuple[int, Tree]]:
        early: dict[int, tuple[Tree, Tree]] = {}  # answers that came before their turn
        waited = iter(order)
        turn = next(waited, None)
        for _, answers in found:
            early |= {k: (upload, state) for k, upload, state in zip(*answers, strict=True)}
            while turn in early:
                upload, self.states[turn] = early.pop(turn)
                yield turn, upload
                turn = next(waited, None)

    def _by_unit(self, found: Iterable[tuple[int, UnitAnswers]]) -> Iterator[tuple[int, Tree] | Summed]:
        early: dict[int, UnitAnswers] = {}  # answers of groups that came before their turn
        turn = 0
        for number, answers in found:
            early[number] = answers
            while turn in early:
                clients, uploads, states = early.pop(turn)
                for k, state in zip(clients, states, strict=True):
                    self.states[k] = state
                if len(uploads) < len(clients):
                    yield Summed(uploads[0], list(clients))
                else:
                    yield from zip(clients, uploads, strict=True)
                turn += 1

    def _trained(
        self, now: RoundHere, units: Iterable[list[Member]], terms: Mapping[int, Terms]
    ) -> Iterator[tuple[int, UnitAnswers]]:
        """Answers of all units (groups of clients) with their numbers, in whichever process they are computed."""
        alone = now.apart or now.adds != self.adds  # a fork answers as the site does
        if alone or not self._pace or self.forks is None or not self.forks.begin(self._serve, self._pace):
            numbers, step = tree.size(now.down), self.algorithm.work.batch
            yield from enumerate(
                self._threads.map(
                    now.work, units, lambda unit: heavy(numbers, sum(step(one.grant.size) for one in unit))
                )
            )
            return
        given: Iterable[Unit] = (now.unit(unit, terms) for unit in units)
        cost = None
        if self._ordered and len(terms) <= WINDOW:  # to be put in order, all of them are held at once anyway
            given = list(given)
            cost = sum(unit.cost for unit in given)
        yield from self.forks.map(now.t, now.down, given, now.templates, now.keeps, cost)

    def _serve(self, ends: Ends) -> None:
        """Main loop of a fork of this process, which computes groups of clients."""
        now, asked = None, ForksWork(ends, self.first_state)
        broadcast = self.algorithm.broadcast(self.algorithm.init(self.task, 0))  # what it looks like
        for (request, tensors), states in asked:
            if request["do"] == "round":
                now = RoundHere(self, request["t"], tree.like(broadcast, tensors), False, self.adds)
                continue
            assert now is not None
            each = zip(request["clients"], request["terms"], states, strict=True)
            try:
                unit = [now.member(k, Terms(**terms), state) for k, terms, state in each]
                asked.tell(request["number"], now.work(self.task, unit), now.templates)
            except Exception:  # any error: the parent computes the group again, and reports the error
                asked.give_up(request["number"])

    def _units(self, members: Iterable[Member], down: Tree, cohort: int) -> Iterator[list[Member]]:
        """Divide clients into groups computed in one call, in an order that every process computes alike."""
        if self.sharing == "pooled":
            return pools(members, self.task, tree.size(down))
        if not self._shared:
            return ([member] for member in members)
        waiting = iter(members)
        few = list(itertools.islice(waiting, 2))
        if len(few) < 2:  # no clients to stack: testing whether they can be stacked is not worth its time
            return iter([few] if few else [])
        if self._bears is None:
            self._bears = differences(self.algorithm, self.task, few[0])
        bears, whole = self._bears, itertools.chain(few, waiting)
        if bears.sizes:
            return by_size(whole, self.task.stacks, least(cohort), bears.counts)
        return stacks(whole, self.task.stacks, least(cohort), partial(alike, counts=bears.counts))

    @property
    def _shared(self) -> bool:
        """True where clients can be stacked: they have one broadcast, no tensors sent to them before the first round,
        and no message of their own."""
        told_alike = self.public_tensors is None and not isinstance(self.algorithm, PerClientMessages)
        return self.sharing == "stack" and told_alike

    @property
    def _ordered(self) -> bool:
        """True where clients are sorted by their sizes before any of them is computed."""
        return self._bears is not None and self._bears.sizes

    def score(self, t: int, models: Sequence[Params], ways: Sequence[str]) -> Scores:
        who = [k for k, test in self.tests.items() if len(test.y)]
        numbers = tree.size(tuple(models)) * len(ways)
        found = self._threads.map(
            lambda task, k: self._scored(task, k, models, ways), who, lambda k: heavy(numbers, len(self.tests[k].y))
        )
        return dict(zip(who, found, strict=True))

    @cached_property
    def first_state(self) -> Any:
        """The state of a client before its first round."""
        return self.algorithm.init_client(self.task)

    @property
    def _threads(self) -> Threads[Task]:
        if self.threads is None:
            self.threads = Threads(self.task)
        return self.threads

    def keep(self, step: int) -> Mapping[str, Tree]:
        if self.state_folder is None:
            return self.states.trees()
        checkpoint.save(self.state_folder, step, self.states.trees(live=True), {})
        return {}

    def restore(self, step: int, place: Path) -> None:
        start = self.algorithm.init_client(self.task)
        loaded = checkpoint.load(place, lambda name: shape_of(name, start), at=step)
        assert loaded is not None
        self.states = self.states.anew().restore(loaded.trees)

    # for a server elsewhere -------------------------------------------------------------------------------------------

    def obey(self, command: Command, messages: Sequence[bytes | memoryview]) -> Iterator[bytes]:
        """Executes a command of the server; yields what its answer carries, such as encoded uploads."""
        if isinstance(command, Round):
            for k, upload in self.uploads(command, messages):
                yield wire.encode(self.header(command.t, k), upload)
        elif isinstance(command, Score):
            yield json.dumps(self.scores(command, messages[0])).encode()
        elif isinstance(command, Keep):
            self.keep(command.step)
            yield b"kept"
        elif isinstance(command, Restore):
            assert self.state_folder is not None
            self.restore(command.step, Path(command.place) / self.state_folder.name)
            yield b"restored"

    def uploads(self, command: Round, messages: Sequence[bytes | memoryview]) -> Iterator[tuple[int, Tree]]:
        """Uploads of a round, computed from the broadcast as received, or from the message of each client."""
        if not command.terms:
            return
        for k, down in broadcasts(self.algorithm, self.task, self.header, command, messages):
            terms = command.terms if k is None else {k: command.terms[k]}
            yield from self.each(command.t, down, terms, command.apart)

    def scores(self, command: Score, message: bytes | memoryview) -> Scores:
        templates = (self.task.init(0),) * command.models
        _, models = wire.decode(message, self.header(command.t, -1), templates)
        return self.score(command.t, models, command.ways)

    # one client -------------------------------------------------------------------------------------------------------

    def _scored(self, task: Task, k: int, models: Sequence[Params], ways: Sequence[str]) -> list[float]:
        own = self.shards[k]
        shard = Open().open(own, Grant(k, len(own.y), len(own.y), Counter(0)), task)
        found: list[float] = []
        for params in models:
            for way in ways:
                scores = self._own_model(task, k, way, params, shard).score(self.tests[k])
                found += [float(scores[name].mean()) for name in task.metrics]
        return found

    def _own_model(self, task: Task, k: int, way: str, params: Params, shard: Shard) -> Scorer:
        """Personal model of a client, to be scored; a client without examples keeps the shared model."""
        if not shard.size:
            return WAYS["plain"](task, params, shard)
        if way in WAYS:
            return WAYS[way](task, params, shard)
        if isinstance(self.algorithm, OwnModels):
            return self.algorithm.personal(task, params, self.state(k), shard)
        return WAYS[PLAIN](task, params, shard)

    def public(self, k: int, size: int) -> Examples | None:
        """A client's public examples, such as generated images: made once from the tensors that all clients receive."""
        if self.public_tensors is None:
            return None
        if k not in self._made:
            makes, key = PublicTensors.of(self.algorithm), keys.fold(self.key, "equip", k)
            self._made[k] = makes.public_examples(self.task, self.public_tensors, size, key)
        return self._made[k]

    def state(self, k: int) -> Any:
        """Current state of a client."""
        state = self.states.get(k)
        return tree.map(lambda leaf: leaf.clone(), self.first_state) if state is None else state

    def local(self, task: Task, down: Tree, unit: list[Member], apart: bool) -> Iterable[tuple[Tree, Tree]]:
        """Upload and new state of each client computed in this call. `apart`: `down` is one client's message only."""
        if self.sharing == "pooled":
            return self._alone(task, down, sharing(unit, task, down), apart)
        if len(unit) > 1:
            try:
                return together(self.algorithm, task, down, unit, (self._bears or Differences()).counts)
            except RuntimeError:
                # client code that looks at a value; an error of its own comes up again. Nothing is remembered of it: a
                # run that goes on after a crash must take the same turns
                pass
        return self._alone(task, down, unit, apart)

    def _alone(self, task: Task, down: Tree, unit: list[Member], apart: bool) -> Iterator[tuple[Tree, Tree]]:
        for member in unit:
            reader = self.algorithm.read
            grant = replace(member.grant, reads=reader.reads(self.algorithm.work, member.grant.size))
            shard = reader.open(member.examples, grant, task)
            message = down if apart else PerClientMessages.of(self.algorithm).per_client_message(down, member.client)
            upload, state = self.algorithm.local(task, message, member.state, shard, member.key)
            # alone is the reference: the same bytes as from a process of its own, which has to write them out
            yield (tree.formed(upload) if self.sharing == "loop" else upload), state


def broadcasts(
    algorithm: AnyAlgorithm,
    task: Task,
    header: Callable[[int, int], wire.Header],
    command: Round,
    messages: Sequence[bytes | memoryview],
) -> Iterator[tuple[int | None, Tree]]:
    """Broadcasts of a round: one for all (None), or one for each client."""
    whole = algorithm.broadcast(algorithm.init(task, 0))
    each = sorted(command.terms) if command.apart else [None]
    for k, message in zip(each, messages, strict=True):
        template = whole if k is None else PerClientMessages.of(algorithm).per_client_message(whole, k)
        yield k, wire.decode(message, header(command.t, -1), template)[1]


class RoundHere:
    """One round at a site: the broadcast, the keys and the noise source from which its clients compute uploads."""

    def __init__(self, site: Site, t: int, down: Tree, apart: bool, adds: bool = False) -> None:
        """`apart`: `down` is one client's message only; `adds`: add up the uploads of clients computed in one call."""
        self._site, self.t, self.down, self.apart, self.adds = site, t, down, apart, adds
        self.rows = 0  # of all clients so far
        self._compared = False  # whether an upload was compared with `zero`; comparing the first suffices
        self._uplink = site.algorithm.uplink.at(t, down)
        self._key, self._noise = keys.fold(site.key, "round", t), for_round(site.noise, site.key, t)
        self._shards = site.shards.at(t) if isinstance(site.shards, PreparedShards) else site.shards

    def member(self, k: int, terms: Terms, state: Tree) -> Member:
        site, own = self._site, self._shards[k]
        self.rows += len(own.y)
        size = len(own.y) if site.sizes is None else site.sizes[k]
        grant = terms.granted(k, size, for_client(self._noise, k))
        grant = replace(grant, public=site.public(k, grant.size))
        return Member(k, own, state, grant, keys.word(keys.fold(self._key, "client", k)))

    def work(self, task: Task, unit: list[Member]) -> UnitAnswers:
        clients, states = [one.client for one in unit], []

        def uploads() -> Iterator[tuple[int, Tree]]:
            for one, (upload, state) in zip(unit, self._site.local(task, self.down, unit, self.apart), strict=True):
                states.append(state)
                self._compare(upload)
                encoded = self._uplink.encode(upload, one.grant)
                if self._site.hears is not None:
                    self._site.hears(one.client, encoded)
                yield one.client, encoded

        if not self.adds or len(unit) == 1:
            return UnitAnswers(clients, [upload for _, upload in uploads()], states)
        held = list(uploads()) if self._uplink.unbounded(tree.size(self._zero)) else None
        reach = {one.client: one.grant.reach for one in unit}
        total = self._uplink.sum(held or uploads(), self._zero, reach=reach.__getitem__).total
        # a sum that is finite has finite summands, so that none is looked at alone; else its client is named later
        if held and not tree.finite(total) and not all(tree.finite(upload) for _, upload in held):
            return UnitAnswers(clients, [upload for _, upload in held], states)
        return UnitAnswers(clients, [total], states)

    def _compare(self, upload: Tree) -> None:
        if self._compared:
            return
        if difference := tree.unlike(upload, self._zero):
            raise ConfigError(
                f"{type(self._site.algorithm).__name__}.local uploads {difference}",
                why="uploads are added to `zero`, so both need the same form",
                fix="make both the same tree; `sordino check` tries this and more",
                code="upload-unlike-zero",
            )
        self._compared = True

    def unit(self, members: list[Member], terms: Mapping[int, Terms]) -> Unit:
        """A group of clients of the round, to be computed in one call, perhaps in another process."""
        who = [one.client for one in members]
        cost = len(who) * (BESIDE + max(one.grant.size for one in members))
        terms_of, states = [vars(terms[k]) for k in who], [one.state for one in members]
        return Unit(who, terms_of, states, cost, partial(self.work, self._site.task, members))

    @property
    def keeps(self) -> bool:
        """True where the algorithm or the uplink needs each upload by itself, so that uploads may be kept after the
        round."""
        return self._site.algorithm.reads_each or self._uplink.reads_each

    @cached_property
    def templates(self) -> Templates:
        return Templates(self._uplink.shape(self._zero), self._site.first_state)

    @cached_property
    def _zero(self) -> Tree:
        return self._site.algorithm.zero(self._site.task, self.down)
