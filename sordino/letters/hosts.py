"""A simulation spread over hosts that come and go. Each takes clients when it is free; a host that is lost is asked no
more, and its clients move to another one. What clients keep travels with the round, so any host can compute any client,
and the result is that of one process.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import save

from sordino.engine import wire
from sordino.engine.commands import Command, Compute, End, Hand
from sordino.engine.executor import Executor, Scores
from sordino.engine.site import Site
from sordino.errors import ConfigError, RunError, WireError
from sordino.letters.answers import Refused, heard
from sordino.letters.carrier import Arrived, Carrier
from sordino.letters.letter import Letter, Letterhead
from sordino.tree import Tree
from sordino.types import Params, Terms

LOOK = 0.5  # seconds between two looks at who is there
SHARES = 2  # parts that each host gets of a round: a slow one holds the others up less


class Portion(NamedTuple):
    """Some clients of a round, and the host that computes them."""

    clients: tuple[int, ...]
    host: str = ""


@dataclass
class Hosts(Executor):
    """The clients of a simulation, on whatever hosts are there."""

    carrier: Carrier
    letterhead: Letterhead
    stage: int
    site: Site  # all clients as this process has them: their states, and their tests
    most: int  # clients in one letter
    note: Callable[[str], None] = lambda text: None
    stopped: Callable[[], bool] = lambda: False  # does somebody want the simulation to stop?
    _here: set[str] = field(default_factory=set)  # hosts that were asked in the last round
    _given: set[str] = field(default_factory=set)  # hosts that have what clients are handed

    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Iterator[tuple[int, Tree]]:
        order = sorted(terms)
        uplink = self.site.algorithm.uplink.at(t, down)
        shape = uplink.shape(self.site.algorithm.zero(self.site.task, down))
        waiting, out, found = collections.deque(self._portions(order)), dict[int, Portion](), dict[int, Tree]()
        shared = None if self.site.algorithm.tells_each else wire.encode(self.site.header(t, -1), down)
        silent = False
        self._here.clear()
        for k in order:
            while k not in found:
                self._hand_out(t, down, terms, shared, waiting, out)
                if not out and not silent:
                    silent = True
                    self.note(f"round {t + 1} waits for a host")
                if not out and self.stopped():
                    raise KeyboardInterrupt  # nobody is at work
                for arrived in self.carrier.came(LOOK):
                    if (portion := out.pop(arrived.ticket, None)) is not None:
                        self._take(t, arrived, portion, shape, waiting, found)
            yield k, found.pop(k)

    def score(self, t: int, models: Sequence[Params], ways: Sequence[str]) -> Scores:
        return self.site.score(t, models, ways)

    def keep(self, step: int) -> Mapping[str, Tree]:
        return self.site.keep(step)

    def restore(self, step: int, place: Path) -> None:
        self.site.restore(step, place)

    def end(self, seconds: float) -> None:
        """Tells every host that it is over, for so many seconds: whoever is there, and whoever comes. It ends sooner
        when all hosts of the last round have been told.
        """
        told, out, until = set[str](), set[int](), time.monotonic() + seconds
        while time.monotonic() < until and not self.stopped():
            new = self.carrier.peers() - told
            out |= {self._send(host, End(), []) for host in new}
            told |= new
            if not out and self._here and told >= self._here:
                return
            out -= {arrived.ticket for arrived in self.carrier.came(LOOK)}

    # portions ---------------------------------------------------------------------------------------------------------

    def _portions(self, order: Sequence[int]) -> Iterator[Portion]:
        size = min(self.most, -(-len(order) // (SHARES * max(1, len(self.carrier.peers())))))
        for begin in range(0, len(order), max(1, size)):
            yield Portion(tuple(order[begin : begin + max(1, size)]))

    def _hand_out(
        self,
        t: int,
        down: Tree,
        terms: Mapping[int, Terms],
        shared: bytes | None,
        waiting: collections.deque[Portion],
        out: dict[int, Portion],
    ) -> None:
        here = self.carrier.peers()
        for ticket, portion in list(out.items()):
            if portion.host not in here:
                self.note(f"{portion.host} is gone: its {len(portion.clients)} clients move")
                self.carrier.cancel(ticket)
                self._given.discard(portion.host)
                waiting.appendleft(out.pop(ticket))
        for host in sorted(here - {portion.host for portion in out.values()}):
            if waiting:
                portion = waiting.popleft()._replace(host=host)
                self._here.add(host)
                out[self._ask(t, down, terms, shared, portion)] = portion

    def _ask(self, t: int, down: Tree, terms: Mapping[int, Terms], shared: bytes | None, portion: Portion) -> int:
        site, header = self.site, self.site.header(t, -1)
        if site.handed is not None and portion.host not in self._given:
            self._given.add(portion.host)
            self._send(portion.host, Hand(), [save({name: v.contiguous() for name, v in site.handed.items()})])
        told = (
            [shared]
            if shared is not None
            else [wire.encode(header, site.algorithm.told(down, k)) for k in portion.clients]
        )
        states = wire.encode(header, tuple(site.state(k) for k in portion.clients))
        command = Compute(t, {k: terms[k] for k in portion.clients}, shared is None, site.handed is not None)
        return self._send(portion.host, command, [*told, states])

    def _send(self, host: str, command: Command, bodies: Sequence[bytes]) -> int:
        return self.carrier.send(host, partial(self.letterhead.write, host, self.stage, asdict(command), bodies))

    def _take(
        self,
        t: int,
        arrived: Arrived,
        portion: Portion,
        shape: Tree,
        waiting: collections.deque[Portion],
        found: dict[int, Tree],
    ) -> None:
        """The uploads and the states in an answer; what a host could not do, another one does."""
        letter = self.letterhead.read(arrived.letter)
        if isinstance(answer := heard(letter.head.said), Refused):
            if answer.code != NOT_HANDED:
                raise answer.error(portion.host)
            self._given.discard(portion.host)
            waiting.appendleft(portion)
            return
        self._check(letter, portion)
        site = self.site
        for k, body in zip(portion.clients, letter.bodies, strict=False):
            found[k] = wire.decode(body, site.header(t, k), shape)[1]
        start = site.algorithm.init_client(site.task)
        try:
            _, states = wire.decode(letter.bodies[-1], site.header(t, -1), (start,) * len(portion.clients))
        except WireError as error:
            raise ConfigError(
                "what clients keep cannot move between hosts",
                why=f"it does not look as it did in the beginning: {error.why or error.what}",
                fix='engine.executor = "processes" on one machine, or an algorithm whose clients keep one shape',
                code="states-cannot-move",
            ) from None
        for k, state in zip(portion.clients, states, strict=True):
            site.states[k] = state

    def _check(self, letter: Letter, portion: Portion) -> None:
        if letter.head.sender != portion.host or len(letter.bodies) != len(portion.clients) + 1:
            raise RunError(
                f"{portion.host} sent what is no answer",
                why=f"{len(letter.bodies)} bodies came for {len(portion.clients)} clients",
                fix="run the same version of sordino on all hosts; then resume the run",
                code="no-answer-of-a-host",
            )


NOT_HANDED = "not-handed"
