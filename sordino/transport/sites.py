"""The sites of a run as the server sees them: it sends commands, collects answers, and completes a round with those
that came in time.
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias

from pydantic import TypeAdapter, ValidationError

from sordino.accounting.facts import read_names_once
from sordino.engine import wire
from sordino.engine.commands import Answered, Command, Keep, Refused, Restore, Round, Score, read_answer
from sordino.engine.executor import Answers, Executor, Scores
from sordino.errors import SordinoError, WireError
from sordino.transport.message import Arrived, Carrier, Message, Signer, digest_of
from sordino.tree import Tree
from sordino.types import Params, Terms

_SCORES: TypeAdapter[Scores] = TypeAdapter(dict[int, list[float]])
Replies: TypeAlias = Mapping[str, Message]  # by site
Bodies: TypeAlias = Sequence[bytes] | Callable[[], Sequence[bytes]]  # of a message, or a function that makes them
FOREVER = math.inf
SOON = 0.5  # seconds between two checks which sites are connected, and whether to stop


@dataclass(frozen=True)
class Patience:
    """Deadline of a round in seconds, and the number of clients that it waits for."""

    timeout: float = FOREVER  # after it a round goes on without those who are silent
    minimum: int = 0  # clients that must have answered before a round goes on
    deadline: float = FOREVER  # a site that is silent for so long is given up, where a carrier can


@dataclass
class _OpenMessage:
    """Message that was sent and not answered yet."""

    peer: str
    write: Callable[[], bytes]  # the message
    retry: float = FOREVER  # when it is sent once more, after a refusal


@dataclass
class Sites(Executor):
    """All sites of a phase, reached through one carrier; here processes of one run, which ends if one of them fails."""

    carrier: Carrier
    signer: Signer
    stage: int
    members: Mapping[str, Sequence[int]]  # the clients of each site
    header: Callable[[int], wire.Header]  # of the broadcast of a round
    per_client: Callable[[Any, int], Any] | None = None  # a client's part of the broadcast; None: all get the same
    patience: Patience = Patience()
    most: int | None = None  # clients that one message may ask; None: all of a site
    _out: dict[int, _OpenMessage] = field(default_factory=dict)  # by ticket
    _tickets: dict[int, int] = field(default_factory=dict)  # of a message that was sent again: its first ticket
    _came: dict[int, Message | SordinoError] = field(default_factory=dict)
    _wanted: set[int] = field(default_factory=set)  # tickets whose answers are waited for
    _moved: dict[str, float] = field(default_factory=dict)  # when a site was last asked or heard

    def __post_init__(self) -> None:
        self._site_of = {k: peer for peer, clients in self.members.items() for k in clients}

    def __enter__(self) -> Self:
        self.carrier.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.carrier.__exit__(*_)

    def away(self, client: int) -> bool:
        """True where the client's site cannot be reached, or still owes an answer."""
        return not self._free(self._site_of[client])

    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Answers:
        return Answers(self.collected(t, down, terms))

    def collected(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Iterator[tuple[int, memoryview]]:
        """Messages of a round, one client after another; none from clients that are silent at the deadline."""
        of = self._ask_round(t, down, terms)
        until, answers = time.monotonic() + self.patience.timeout, dict[int, memoryview]()
        left = collections.deque(sorted(of))
        while left:
            k = left.popleft()
            while of[k] in self._out:
                if time.monotonic() >= self._due(until):
                    if self._enough(t, of):
                        break
                    others = self._ask_others(t, down, terms)
                    of |= others
                    left.extend(sorted(others))
                    until = time.monotonic() + SOON
                self._wait(until)
            if of[k] in self._came:
                answers |= self._uploads(of[k], [c for c, ticket in of.items() if ticket == of[k]])
            if k in answers:
                yield k, answers.pop(k)
        self._close()

    def score(self, t: int, models: Sequence[Params], ways: Sequence[str]) -> Scores:
        """Scores of models by all sites at once, each on its own clients' test examples."""
        sent = wire.encode(self.header(t), tuple(models))
        found: Scores = {}
        for peer, message in self.ask(Score(t, len(models), list(ways)), sent).items():
            try:
                found |= _scores(peer, message.bodies, self.members[peer])
            except WireError as error:
                self._refused(peer, error)
        return found

    def keep(self, step: int) -> Mapping[str, Tree]:
        self.ask(Keep(step))
        return {}

    def restore(self, step: int, place: Path) -> None:
        self.ask(Restore(step, str(place)))

    def ask(self, command: Command, message: bytes | None = None) -> Replies:
        """Sends a command to every site that can be reached and accepts it, and waits for the answers."""
        bodies = [] if message is None else [message]
        asked = [peer for peer in self.members if self._free(peer) and self._may_be_asked(peer, command)]
        return self.exchange(dict.fromkeys(asked, (command, bodies)))

    def exchange(
        self,
        messages: Mapping[str, tuple[Command, Sequence[bytes]]],
        enough: Callable[[Replies], bool] = lambda answers: True,
        seconds: float = FOREVER,
        others: Callable[[], Mapping[str, tuple[Command, Sequence[bytes]]]] = dict,
    ) -> Replies:
        """Send each of these sites its message and wait for the answers, at most `seconds` or the timeout of a round.
        If the answers then are not `enough`, send the messages of `others` too, and go on waiting.
        """
        tickets = {peer: self._send(peer, command, bodies) for peer, (command, bodies) in messages.items()}
        until = time.monotonic() + min(seconds, self._patience_of_all)

        def came() -> Replies:
            found = {peer: self._came.get(ticket) for peer, ticket in tickets.items()}
            return {peer: message for peer, message in found.items() if isinstance(message, Message)}

        while any(ticket in self._out for ticket in tickets.values()):
            if time.monotonic() >= self._due(until):
                if enough(came()):
                    break
                tickets |= {peer: self._send(peer, *message) for peer, message in others().items()}
                until = time.monotonic() + SOON
            self._wait(until)
        found = came()
        self._close()
        return found

    # overridden by RemoteSites ----------------------------------------------------------------------------------------

    @property
    def _patience_of_all(self) -> float:
        """Seconds to wait for the answers to a command that every site must answer."""
        return FOREVER

    def _may_be_asked(self, peer: str, command: Command) -> bool:
        """True where the site accepts this command."""
        return True

    def _among(self, terms: Mapping[int, Terms]) -> int:
        """Number of clients that begin a round of a secure sum; 0 where the server reads each upload by itself."""
        return 0

    def _refused(self, peer: str, error: SordinoError) -> None:
        """Handles the refusal of a command by a site; here it ends the run."""
        raise error

    def _asks_again(self, ticket: int, error: SordinoError) -> bool:
        """True where a message that a site has refused is to be sent once more."""
        return False

    def _due(self, until: float) -> float:
        """Current deadline of a wait that was to end at `until`; a subclass may end it earlier."""
        return until

    def _ask_others(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> dict[int, int]:
        """Sends the round's messages to sites that can answer only now, where too few clients have; returns the ticket
        of each client's answer.
        """
        return {}

    def _enough(self, t: int, of: Mapping[int, int]) -> bool:
        """True where a round may go on without the silent sites."""
        return True

    def _close(self) -> None:
        """Stop waiting for answers; sites that have not answered still count as busy."""
        self._wanted.clear()
        self._came.clear()
        self._tickets = {sent: first for sent, first in self._tickets.items() if first in self._out}

    # messages ---------------------------------------------------------------------------------------------------------

    def _ask_round(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> dict[int, int]:
        """Sends the messages of a round; returns the ticket of each client's answer."""
        return self._ask_these(t, down, terms, self.asked(terms))

    def _ask_these(
        self, t: int, down: Tree, terms: Mapping[int, Terms], asked: Mapping[str, Sequence[int]]
    ) -> dict[int, int]:
        shared = None if self.per_client is not None else wire.encode(self.header(t), down)
        digest = digest_of([shared]) if shared is not None and self.signer.key is not None else ""  # once for all
        of: dict[int, int] = {}
        for peer, clients in asked.items():
            for some in _parts(clients, self.most):
                bodies = self._parts_of(t, down, some) if shared is None else [shared]
                command = Round(t, {k: terms[k] for k in some}, shared is None, self._among(terms))
                of |= dict.fromkeys(some, self._send(peer, command, bodies, digest))
        return of

    def asked(self, terms: Mapping[int, Terms]) -> dict[str, list[int]]:
        """Clients to ask at each site, without sites that would not answer."""
        return self._at(self._expected(), terms)

    def _at(self, peers: Collection[str], terms: Mapping[int, Terms]) -> dict[str, list[int]]:
        """Clients in `terms` at each of these sites."""
        found: dict[str, list[int]] = {}
        for k in sorted(terms):
            if (peer := self._site_of[k]) in peers:
                found.setdefault(peer, []).append(k)
        return found

    def _expected(self) -> set[str]:
        """Sites that a round asks and waits for."""
        return {peer for peer in self.members if self._free(peer)}

    def _parts_of(self, t: int, down: Tree, clients: Sequence[int]) -> Callable[[], Sequence[bytes]]:
        """One message for each client, without anything that is meant for another. They are encoded when they are sent:
        those of all clients together may be many models.
        """
        assert self.per_client is not None
        parts = [self.per_client(down, k) for k in clients]
        return lambda: [wire.encode(self.header(t), part) for part in parts]

    def _free(self, peer: str) -> bool:
        while arrived := self.carrier.came(0.0) if self._owes(peer) else ():
            self._take(arrived)
        if owes := self._owes(peer):
            self._check_patience(peer)
        return not owes and peer in self.carrier.peers()

    def _owes(self, peer: str) -> bool:
        return any(out.peer == peer for out in self._out.values())

    def _send(self, peer: str, command: Command, bodies: Bodies, digest: str = "") -> int:
        write = self._writer(peer, command, bodies, digest=digest)
        self._moved[peer] = time.monotonic()
        ticket = self.carrier.send(peer, write)
        self._out[ticket] = _OpenMessage(peer, write)
        self._tickets[ticket] = ticket
        self._wanted.add(ticket)
        return ticket

    def _writer(
        self, peer: str, command: Command, bodies: Bodies, ledger: str = "", digest: str = ""
    ) -> Callable[[], bytes]:
        """Function that writes the message to a site, called each time that the message is delivered."""
        fields, make = asdict(command), bodies if callable(bodies) else lambda: bodies
        return lambda: self.signer.write(peer, self.stage, fields, make(), ledger, digest)

    def _wait(self, until: float) -> None:
        """Takes in the next answers, waiting at most until `until`; sends refused messages again when it is time, and
        gives up silent sites.
        """
        times = [until]
        for ticket, out in list(self._out.items()):
            self._check_patience(out.peer)
            if time.monotonic() >= out.retry:
                out.retry = FOREVER
                self._tickets[self.carrier.send(out.peer, out.write)] = ticket
            times += [self._moved[out.peer] + self.patience.deadline, out.retry]
        self._take(self.carrier.came(max(0.0, min(times) - time.monotonic())))

    def _check_patience(self, peer: str) -> None:
        """Ends the run with an error where a site has been silent for too long; some carriers wait on instead."""
        limit = self.patience.deadline
        if time.monotonic() >= self._moved[peer] + limit and (error := self.carrier.given_up(peer, limit)) is not None:
            raise error

    def _take(self, arrived: Sequence[Arrived]) -> None:
        for one in arrived:
            ticket = self._tickets.get(one.ticket, -1)
            if (out := self._out.get(ticket)) is None:
                continue  # the second answer to one message, or one that is not waited for any more
            try:
                message = self._read(out, one.message)
            except SordinoError as error:
                if not self._asks_again(ticket, error):
                    self._settled(ticket, error)
                self._refused(out.peer, error)
            else:
                self._moved[out.peer] = time.monotonic()
                self._settled(ticket, message)

    def _read(self, out: _OpenMessage, data: bytes) -> Message:
        message = self.signer.read(data)
        if message.head.sender != out.peer or message.head.stage != self.stage:
            raise WireError("an answer to another message came", fix="ignore it", code="other-answer")
        if isinstance(answer := read_answer(message.head.said), Refused):
            raise answer.error(self.named(out.peer))
        return message

    def named(self, peer: str) -> str:
        """Name of a site in texts for the user."""
        return "a client process"

    def _settled(self, ticket: int, found: Message | SordinoError) -> None:
        del self._out[ticket]
        if ticket in self._wanted:
            self._came[ticket] = found

    def _uploads(self, ticket: int, clients: Sequence[int]) -> dict[int, memoryview]:
        """Uploads in an answer, only those of clients that were asked."""
        if isinstance(message := self._came.pop(ticket), SordinoError):
            return {}
        answer = read_answer(message.head.said)
        if not isinstance(answer, Answered) or len(answer.clients) != len(message.bodies):
            error = WireError("a message came that does not answer a round", fix="ignore it", code="no-answer")
            self._refused(message.head.sender, error)
            return {}
        return {k: body for k, body in zip(answer.clients, message.bodies, strict=True) if k in clients}


def _parts(clients: Sequence[int], most: int | None) -> Iterator[Sequence[int]]:
    size = most or max(1, len(clients))
    for begin in range(0, len(clients), size):
        yield clients[begin : begin + size]


def _scores(peer: str, bodies: Sequence[memoryview], clients: Sequence[int]) -> Scores:
    try:
        scores = _SCORES.validate_python(read_names_once(b"".join(map(bytes, bodies)).decode()))
        if not scores.keys() <= set(clients):
            raise ValueError("it scores clients of other sites")
    except (ValueError, RecursionError, ValidationError) as error:
        raise WireError(f"the scores of {peer} cannot be read", why=str(error)[:300], code="no-scores") from None
    return scores
