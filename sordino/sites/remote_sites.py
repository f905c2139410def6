"""Sites on other machines: they may refuse, be disconnected and come back, and they store their own states."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from sordino.engine.commands import BEGIN_FIRST, Accepted, Begin, Command, End, Round, Score, read_answer
from sordino.engine.executor import Answers
from sordino.errors import SordinoError, UnsoundGuarantee
from sordino.ledger.ledger import LedgerPosition
from sordino.privacy.uplink.secure_stages import SecureStage
from sordino.sites.connecting import PARTING
from sordino.transport.message import Message
from sordino.transport.run_events import RunEvent, What
from sordino.transport.sites import FOREVER, SOON, Bodies, Sites
from sordino.tree import Tree
from sordino.types import Terms

# by site: the number of rounds whose answers had left it, and the signed head of its message
SignedHeads: TypeAlias = dict[str, tuple[int, bytes]]
LEAVE = 10.0  # seconds that sites have to finish a round once a stop was requested
AGAIN = 10.0  # seconds until a site that has refused is asked again, where the round needs it


@dataclass
class RemoteSites(Sites):
    """Sites of a phase, on machines of their own."""

    secure: SecureStage | None = field(kw_only=True)  # secure sum of uploads, if there is one
    note: Callable[[RunEvent], None] = lambda event: None
    ledger: Callable[[], str] = lambda: ""  # number and hash of the last record in the server's ledger
    called: Callable[[int], str] = str  # the name of a client, or its number
    prelude: Sequence[tuple[Command, Sequence[bytes]]] = ()  # commands that a site gets before its first round
    accepted: dict[str, Accepted] = field(default_factory=dict)  # the sites that take part
    stopped: Callable[[], bool] = lambda: False  # true where the run shall stop
    repeats: bool = False  # true: an interrupted round can be repeated, so a stop loses nothing
    signed: SignedHeads = field(default_factory=dict)  # newest signed head of each site, to be returned to it
    keep_signed: Callable[[SignedHeads], None] = lambda signed: None
    _gathered: bool = False  # true once the server has waited for all sites, before the first round
    _here: set[str] = field(default_factory=set)  # sites that were connected when the round began
    _ready: set[str] = field(default_factory=set)  # the sites that have answered the prelude
    _refusing: dict[str, float] = field(default_factory=dict)  # when a site refused the prelude
    _first: set[int] = field(default_factory=set)  # tickets of the prelude's messages
    _rounds: dict[int, int] = field(default_factory=dict)  # by ticket: the round it asks for, unless refused
    _asked: dict[int, int] = field(default_factory=dict)  # the ticket of each client of a round
    _asked_at: dict[str, float] = field(default_factory=dict)  # when a site was last asked for this round
    _logged: tuple[str, float] = ("", 0.0)  # last log text on a waiting round, and its time
    _there: int = 0  # bytes of the last message to a site in a round
    _back: int = 0  # bytes of the messages in the longest answer
    _stop: float = FOREVER  # when a round ends without silent sites, after a stop was requested
    _newer: bool = False  # true: a site has signed a head that is not saved yet
    _idle: bool = False  # true: nothing to do but wait, beyond the deadline or at the end, so a stop acts at once

    def gather(self) -> None:
        """Wait until as many clients can be reached as a round needs; before the first round for all of them, but no
        longer than the timeout of a round once there are enough.
        """
        first, last_count = not self._gathered, -1
        until = time.monotonic() + (self.patience.timeout if first else 0.0)
        while True:
            for peer in self.members:
                self._introduce(peer)
            here = [peer for peer in self.members if peer in self._ready and self._free(peer)]
            many = sum(len(self.members[peer]) for peer in here)
            everybody = len(self._ready | self._refusing.keys()) == len(self.members)
            if len(here) != last_count and (first or many < self.patience.minimum):
                last_count = len(here)
                self.note(RunEvent(event="gathering", count=last_count, of=len(self.members)))
            if many >= max(1, self.patience.minimum) and (time.monotonic() >= until or everybody):
                break
            if self.stopped():
                raise KeyboardInterrupt
            self._wait(time.monotonic() + SOON)
        self._gathered, self._here = True, set(here)

    def part(self, message: bytes | None) -> None:
        """Tell every site that the run is over. Waits for the sites of the last round, at most `PARTING` seconds; after
        a restart for all sites, at most the timeout of a round."""
        command, bodies, informed = End(int(message is not None)), [] if message is None else [message], set[str]()
        awaited = self._here if self._gathered else self.members.keys()
        until = time.monotonic() + min(PARTING if self._gathered else FOREVER, self.patience.timeout)
        with suppress(KeyboardInterrupt):  # the run is over, so a stop does no harm
            while True:
                here = [peer for peer in self.members if peer not in informed and self._free(peer)]
                self._idle = True
                self.exchange(dict.fromkeys(here, (command, bodies)), seconds=max(SOON, until - time.monotonic()))
                informed.update(here)
                if informed >= awaited or self.stopped() or time.monotonic() >= until:
                    return
                self._wait(min(until, time.monotonic() + SOON))

    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Answers:
        if self.secure is not None:
            raise UnsoundGuarantee(
                "uploads of a secure sum would be sent unencrypted",
                why="the server could read every one of them",
                fix="this is a mistake of the program: a secure sum between sites needs the sites that encrypt or mask",
                code="clear-uploads",
            )
        return super().__call__(t, down, terms)

    def keep(self, step: int) -> Mapping[str, Tree]:
        """Saves nothing and returns nothing to save: each site stored its clients' states on disk before it sent its
        answer.
        """
        return {}

    def restore(self, step: int, place: Path) -> None:
        """Does nothing: each site keeps its clients' states, and sends its stored answer when it is asked again."""

    @property
    def _patience_of_all(self) -> float:
        return self.patience.timeout

    def _may_be_asked(self, peer: str, command: Command) -> bool:
        if not isinstance(command, Score):
            return peer in self._ready
        return peer in self.accepted and self.accepted[peer].scores

    def _refused(self, peer: str, error: SordinoError) -> None:
        """Log why a site refused a message; the site counts as absent from the round."""
        if error.code != BEGIN_FIRST:
            self.note(RunEvent(event="refused", site=peer, why=error.what + (f" ({error.why})" if error.why else "")))

    def _wait(self, until: float) -> None:
        super()._wait(min(until, time.monotonic() + SOON))
        if self._idle and self.stopped():
            raise KeyboardInterrupt

    def _asks_again(self, ticket: int, error: SordinoError) -> bool:
        """True where a message that a site refused is sent again: because the round would otherwise end with too few
        clients, or because the site was started again since the round began. A site that was started again is first
        returned the ledger head that it has signed; it is not asked again right after it has refused that."""
        peer, now = self._out[ticket].peer, time.monotonic()
        if error.code == BEGIN_FIRST and not self._pauses(peer):
            if not self._begins(peer):
                self._begin(peer)
            self._out[ticket].retry = now + SOON  # a new copy, queued after the first messages
            return True
        others = sum(one in self._rounds and one != ticket for one in self._asked.values())
        if ticket not in self._rounds or others >= min(self.patience.minimum, len(self._asked)):
            return False
        self._out[ticket].retry = now + AGAIN
        return True

    def _enough(self, t: int, of: Mapping[int, int]) -> bool:
        there = sum(ticket in self._rounds and ticket not in self._out for ticket in of.values())
        return self.suffices(t, there, len(of))

    def suffices(self, t: int, there: int, asked: int) -> bool:
        """Decide at the deadline whether the `there` clients that have answered, of those `asked`, are enough, and note
        whether the round waits or goes on.
        """
        enough = there >= self.patience.minimum
        self._idle = not enough
        if self.stopped() and not enough:
            raise KeyboardInterrupt
        how: What = "waiting" if not enough else "closing" if self._stop < FOREVER else "deadline"
        if self._logged[0] == how and time.monotonic() < self._logged[1] + self.patience.timeout:
            return enough
        self._logged = how, time.monotonic()
        late = tuple(sorted({out.peer for out in self._out.values() if out.peer in self._ready}))
        gone = tuple(peer for peer in late if peer in self.carrier.shut_out())
        event = RunEvent(event=how, sites=late, revoked=gone, round=t + 1, count=there, of=asked, why=self._slow(late))
        self.note(event if enough else event.beside(needed=self.patience.minimum))
        return enough

    def _slow(self, late: Sequence[str]) -> str:
        """Text on silent sites whose measured connection is too slow for the deadline."""
        reasons = []
        for peer in late:
            rate, many = self.carrier.rate(peer), self._there + self._back
            if rate and many / rate > self.patience.timeout:
                reasons.append(
                    f"the line of {peer} carries {rate / 1e3:.3g} kB/s, and {many / 1e6:.3g} MB there and back need "
                    f"{many / rate:.0f} s: the deadline of {self.patience.timeout:g} s is too short for it"
                )
        return "; ".join(reasons)

    def _due(self, until: float) -> float:
        """End of a wait. After a stop was requested, rounds that can be repeated end within `LEAVE` seconds, since
        nothing is lost by that."""
        if self.repeats and self.stopped():
            self._stop = min(self._stop, time.monotonic() + LEAVE)
        return min(until, self._stop)

    def latecomers(self, terms: Mapping[int, Terms], asked: Collection[str] = ()) -> dict[str, list[int]]:
        """Clients of sites that can answer now and have not: the site came after the round had begun, or has refused
        before.
        """
        for peer in self.members:
            self._introduce(peer)
        done = {*asked, *(self._site_of[k] for k, ticket in self._asked.items() if ticket in self._rounds)}
        now = time.monotonic()
        came = {
            peer
            for peer in self._ready - done
            if self._free(peer) and now >= self._asked_at.get(peer, -FOREVER) + AGAIN
        }
        found = self._at(came, terms)
        self._asked_at |= dict.fromkeys(found, now)
        return found

    def _ask_others(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> dict[int, int]:
        of = self._ask_these(t, down, terms, found := self.latecomers(terms))
        self._asked |= of
        self._rounds |= dict.fromkeys(of.values(), t)
        if found:
            self.have_been_asked(t, found)
        return of

    def have_been_asked(self, t: int, peers: Iterable[str]) -> None:
        self.note(RunEvent(event="asked", sites=tuple(sorted(peers)), round=t + 1))

    def have_answered(self, t: int, clients: Iterable[int]) -> None:
        for peer in sorted({self._site_of[k] for k in clients}):
            self.note(RunEvent(event="answered", site=peer, round=t + 1))

    def _close(self) -> None:
        """Cancel all messages that were not answered."""
        super()._close()
        if self._newer:
            self.keep_signed(self.signed)
            self._newer = False
        for ticket in self._tickets:
            self.carrier.cancel(ticket)
        self._tickets.clear()
        self._out.clear()
        self._rounds.clear()
        self._first.clear()
        self._asked, self._asked_at, self._logged, self._idle = {}, {}, ("", 0.0), False

    def named(self, peer: str) -> str:
        return peer

    def _writer(
        self, peer: str, command: Command, bodies: Bodies, ledger: str = "", digest: str = ""
    ) -> Callable[[], bytes]:
        begin, stands = super()._writer, self.ledger()
        write = begin(peer, command, bodies, stands, digest)
        anew = self.carrier.starts_anew and not isinstance(command, Begin)

        def written() -> bytes:
            first, message = begin(peer, *self._first_messages(peer)[0], stands)() if anew else b"", write()
            if isinstance(command, Round):
                self._there = len(message)
            return first + message if first else message  # without a copy of a long one

        return written

    def away(self, client: int) -> bool:
        return self._site_of[client] not in self._here or super().away(client)

    def _expected(self) -> set[str]:
        """Sites that were connected when the round began; one that has gone since is waited for like one at work."""
        return self._here

    def _ask_round(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> dict[int, int]:
        of = super()._ask_round(t, down, terms)
        self._asked, self._rounds = dict(of), dict.fromkeys(of.values(), t)
        asked = {self._site_of[k] for k in of}
        self._asked_at = dict.fromkeys(asked, time.monotonic())
        self.have_been_asked(t, asked)
        return of

    def _introduce(self, peer: str) -> None:
        """Sends a site the messages that must come first in a run, unless it has answered them or has just refused
        them."""
        # in this order: its answer may just have come
        if self._free(peer) and peer not in self._ready and not self._pauses(peer):
            self._begin(peer)

    def _pauses(self, peer: str) -> bool:
        """True where the site has refused less than `AGAIN` seconds ago."""
        return time.monotonic() < self._refusing.get(peer, -FOREVER) + AGAIN

    def _begin(self, peer: str) -> None:
        self._first |= {self._send(peer, command, bodies) for command, bodies in self._first_messages(peer)}
        self._ready.discard(peer)
        self._refusing.pop(peer, None)

    def _begins(self, peer: str) -> bool:
        """True while the site has not yet answered the messages that begin a run."""
        return any(out.peer == peer and ticket in self._first for ticket, out in self._out.items())

    def _first_messages(self, peer: str) -> Sequence[tuple[Command, Sequence[bytes]]]:
        """Messages that a site is sent before any other. They return to it the newest ledger head that it has signed:
        its folder may be an older copy."""
        if peer not in self.signed:
            return self.prelude
        return [(Begin(answered=True), [self.signed[peer][1]]), *self.prelude[1:]]

    def _heard(self, peer: str, message: Message) -> None:
        with suppress(ValueError):
            rounds = LedgerPosition.parse(message.head.ledger).length
            if rounds > self.signed.get(peer, (0, b""))[0]:
                self.signed[peer], self._newer = (rounds, message.signed), True

    def _settled(self, ticket: int, found: Message | SordinoError) -> None:
        peer = self._out[ticket].peer
        if isinstance(found, Message):
            self._back = max(self._back, sum(map(len, found.bodies)))
        super()._settled(ticket, found)
        if isinstance(found, Message):
            self._heard(peer, found)
        if ticket in self._rounds and isinstance(found, Message):
            self.note(RunEvent(event="answered", site=peer, round=self._rounds[ticket] + 1))
        elif isinstance(found, SordinoError):
            self._rounds.pop(ticket, None)  # a refusal does not count as an answer
        if peer in self._ready:
            return
        if isinstance(found, SordinoError):
            self._refusing[peer] = time.monotonic()
        elif isinstance(answer := read_answer(found.head.said), Accepted):
            self.accepted[peer] = answer
        if ticket in self._first and peer not in self._refusing and not self._begins(peer):
            self._ready.add(peer)
            self.note(RunEvent(event="accepted", site=peer))
