"""Messages that meet a fate on their way, and a clock that runs only while nothing can come any more."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from sordino.engine.commands import Command, Mask, Refused, Round, read_answer, read_command
from sordino.sites import remote_sites
from sordino.sites.membership import Membership
from sordino.sites.secure_sums import HOLDER
from sordino.transport import sites
from sordino.transport.message import Arrived, Message, peek
from sordino.transport.sites import Patience
from tests.helpers.between_sites import SERVER, Federated
from tests.helpers.in_process import InProcess, Reply
from tests.stories.secure_sums.sums import Table, rows


class Sent(NamedTuple):
    """One message to a site and what came back."""

    to: str
    command: Command
    message: bytes
    answer: bytes


Meets = Callable[[str, Command, bytes], bytes | None]  # what reaches the site; None: nothing does
SECONDS = 9.0  # that a step waits, by the clock of the test
WAITS = Patience(timeout=SECONDS)


class Road(InProcess):
    """Carries messages, remembers them, and loses or changes some of them."""

    def __init__(self, handlers: Mapping[str, Reply], clock: list[float], meets: Meets) -> None:
        super().__init__(handlers)
        self._clock, self._meets = clock, meets
        self.sent: list[Sent] = []

    def came(self, seconds: float) -> Sequence[Arrived]:
        while self._waiting:
            ticket = next(iter(self._waiting))
            to, write = self._waiting.pop(ticket)
            command = read_command(peek(data := write()).said)
            if (met := self._meets(to, command, data)) is not None:
                answer = self._handlers[to](met)
                self.sent.append(Sent(to, command, met, answer))
                return [Arrived(ticket, answer)]
        assert math.isfinite(seconds), "somebody would wait for ever"
        self._clock[0] += seconds
        return []


def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the server's half: waiting takes no time."""
    now = [0.0]
    for module in (sites, remote_sites):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def step_of(command: Command) -> str:
    return command.step if isinstance(command, Mask) else "round" if isinstance(command, Round) else ""


class Play:
    """A run between sites on a road where a test decides what happens to messages."""

    def __init__(self, experiment: Any, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = stopped_clock(monkeypatch)
        self.between = Federated(experiment, place, patience=WAITS)
        self.between.carried = lambda handlers: self._road(Road(handlers, clock, self.meets))
        self.sites: dict[str, Membership] = {}  # as they are asked when the run is over
        self.meets: Meets = lambda to, command, message: message

    def _road(self, road: Road) -> Road:
        self.road, self.sites = road, dict(self.between.members)
        return road

    def play(self) -> list[Table]:
        self.between.play()
        return rows(self.between.folder)

    def first(self, site: str, kind: type[Command]) -> Sent:
        """The first message of this kind to a site."""
        return next(one for one in self.road.sent if one.to == site and isinstance(one.command, kind))

    def bodies(self, one: Sent) -> list[bytes]:
        """What stood in a message behind its head."""
        return [bytes(body) for body in self.between.signer(one.to).read(one.message).bodies]

    def asks(self, to: str, command: Command, bodies: Sequence[bytes]) -> Message:
        """A message by the server's own hand, at any time, and the answer."""
        message = self.between.signer(SERVER).write(to, 0, asdict(command), bodies, ledger="99:0")
        return self.hears(to, message)

    def hears(self, to: str, message: bytes) -> Message:
        handler = self.between.holder if to == HOLDER else self.sites[to].handler
        assert handler is not None
        return self.between.signer(SERVER).read(handler.answer(message))

    def found_in_clear(self, words: Sequence[Any]) -> int:
        """How many clients' integers stand in messages from sites, in four or eight bytes each."""
        messages = b"|".join(one.answer for one in self.road.sent if one.to != HOLDER)
        forms = [[values.astype(kind)[100:110].tobytes() for kind in ("<u4", "<i8")] for values in words]
        return sum(any(form in messages for form in both) for both in forms)


def code(answer: Message) -> str:
    """Why something was refused."""
    found = read_answer(answer.head.said)
    assert isinstance(found, Refused)
    assert found.fix
    assert not answer.bodies
    return found.code


def silent(script: dict[tuple[int, str], set[str]]) -> Meets:
    """Loses the messages of these (round, step) to these sites."""

    def meets(to: str, command: Command, message: bytes) -> bytes | None:
        lost = isinstance(command, Round | Mask) and to in script.get((command.t, step_of(command)), ())
        return None if lost else message

    return meets
