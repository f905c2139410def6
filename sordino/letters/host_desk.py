"""The desk of a host in a simulation: it computes clients for a server, with the states that come with the letter, and
keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from safetensors.torch import load

from sordino import user_code
from sordino.engine import wire
from sordino.engine.commands import Compute, End, Hand, understood
from sordino.engine.site import Site
from sordino.errors import RunError, SordinoError, WireError
from sordino.letters.answers import Answer, Answered, Done, Refused, said
from sordino.letters.hosts import NOT_HANDED
from sordino.letters.letter import Letter, Letterhead
from sordino.types import Params


@dataclass
class HostDesk:
    """Answers the letters of one simulation."""

    letterhead: Letterhead
    sites: Callable[[int], Site]  # all clients, as they begin a phase
    over: bool = field(default=False, init=False)  # has the server said so?
    _made: dict[int, Site] = field(default_factory=dict, init=False)
    _handed: Params | None = field(default=None, init=False)

    def answer(self, data: bytes | memoryview) -> bytes:
        """The answer to a letter; a refusal, where that is the answer."""
        letter: Letter | None = None
        try:
            with user_code.blamed():
                letter = self.letterhead.read(data)
                answer, bodies = self._answered(letter)
        except SordinoError as error:
            answer, bodies = Refused.of(error), []
        to, stage = ("", 0) if letter is None else (letter.head.sender, letter.head.stage)
        return self.letterhead.write(to, stage, said(answer), bodies)

    def _answered(self, letter: Letter) -> tuple[Answer, list[bytes]]:
        command = understood(letter.head.said)
        if len(letter.bodies) != command.messages:
            raise WireError(
                "another number of messages came than the command has", fix="ignore it", code="other-messages"
            )
        if isinstance(command, Compute):
            return Answered(sorted(command.terms)), self._computed(letter, command)
        if isinstance(command, Hand):
            self._handed = load(bytes(letter.bodies[0]))
        elif isinstance(command, End):
            self.over = True
        else:
            raise RunError(
                f"a host is asked to {command.do}",
                why="it computes clients and keeps nothing",
                fix="run the same version of sordino on all hosts",
                code="not-for-hosts",
            )
        return Done(), []

    def _computed(self, letter: Letter, command: Compute) -> list[bytes]:
        if command.handed and self._handed is None:
            raise RunError(
                "this host was not given what clients are handed",
                why="it was started again since",
                fix="the server hands it out again by itself",
                code=NOT_HANDED,
            )
        stage, order = letter.head.stage, sorted(command.terms)
        if stage not in self._made:
            self._made[stage] = self.sites(stage)
        site = self._made[stage]
        site.handed = self._handed if command.handed else None
        start = site.algorithm.init_client(site.task)
        _, states = wire.decode(letter.bodies[-1], site.header(command.t, -1), (start,) * len(order))
        site.states = site.states.anew()
        for k, state in zip(order, states, strict=True):
            site.states[k] = state
        bodies = [
            wire.encode(site.header(command.t, k), up) for k, up in site.uploads(command.round, letter.bodies[:-1])
        ]
        return [*bodies, wire.encode(site.header(command.t, -1), tuple(site.state(k) for k in order))]
