"""A run between sites inside another program, such as Flower or NVFlare, which starts the processes of server and
sites, and carries bytes between them.

    question <- the invitation | a challenge of 32 bytes | messages of the run
    answer   -> the name of the site | its signature of the challenge
             -> the answer to the last message

Each part is a frame (see `transport.message`). A question has a challenge or messages. A node proves with the key on
the list which site it is, before it is sent any message; messages are signed as between any sites. A node that fails
answers nothing, as the text of an error may repeat a row: the site's own log has it.
"""

from __future__ import annotations

import io
import logging
import secrets
import time
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from sordino import config, user_code
from sordino.config import Experiment
from sordino.errors import KeyMismatch, UnsoundGuarantee, WireError
from sordino.receipts.folder import absolute_folder
from sordino.receipts.signature import private_key, public_key
from sordino.runs.declared_data import DeclaredData
from sordino.runs.play import Ended, Progress
from sordino.sites import agreement_file
from sordino.sites.agreement_file import Invitation
from sordino.sites.grpc_line import CHALLENGE, claim
from sordino.sites.join import JoinOptions, Proposed, membership
from sordino.sites.membership import Membership
from sordino.sites.serve import ServeOptions, serve, settled
from sordino.transport import message
from sordino.transport.message import Arrived, Carrier, Writes, each
from sordino.transport.run_events import RunEvent
from sordino.transport.sites import Patience

log = logging.getLogger(__name__)
LOOK = 0.2  # seconds between two checks for answers that have come
AGAIN = 5.0  # seconds until a node whose answer was empty is asked again
BESIDE = 1 << 16  # bytes that an answer may have in addition to its message


# server ---------------------------------------------------------------------------------------------------------------


class Nodes(ABC):
    """Nodes (client processes) of another federated learning program, as its server sees them."""

    starts_anew = False  # true: the program may start a new process for each question

    @abstractmethod
    def present(self) -> Collection[Hashable]:
        """Nodes that can be asked now."""

    @abstractmethod
    def ask(self, node: Hashable, question: bytes) -> Hashable:
        """Send a question to a node; returns a ticket for its answer."""

    @abstractmethod
    def answers(self, tickets: Collection[Hashable]) -> Mapping[Hashable, bytes]:
        """Answers that have come to these questions; empty ones of nodes that have failed."""


class _Question(NamedTuple):
    """Question that a node has not answered yet."""

    node: Hashable
    challenge: bytes = b""
    site: str = ""
    ticket: int = -1  # of the message in it


class NodesCarrier(Carrier):
    """Carries messages to nodes of another program. A node is asked one question at a time, and a node that has gone is
    asked again once it is back.
    """

    def __init__(
        self,
        nodes: Nodes,
        invitation: Invitation,
        names: Sequence[str],
        most: int,
        keys: Mapping[str, Ed25519PublicKey],
        note: Callable[[RunEvent], None],
    ) -> None:
        """`names`: of all sites; `most`: longest message that is accepted, in bytes; `keys`: public keys of the allowed
        sites; `note`: receives events of the run.
        """
        self.starts_anew = nodes.starts_anew
        self._nodes, self._most, self._keys, self._note = nodes, most + BESIDE, keys, note
        self._run, self._invitation = invitation.fields.run, invitation.toml().encode()
        self._messages: dict[str, dict[int, Writes]] = {name: {} for name in names}  # unanswered, oldest first
        self._site_of: dict[Hashable, str] = {}  # by node that has proved it
        self._node_of: dict[str, Hashable] = {}  # the last that has
        self._asked: dict[Hashable, _Question] = {}
        self._pauses: dict[Hashable, float] = {}  # nodes that have failed, and until when they are not asked
        self._came: list[Arrived] = []
        self._there = frozenset[str]()
        self._sent, self._next = 0, 0.0

    @property
    def who(self) -> Sequence[str]:
        return list(self._messages)

    def peers(self) -> frozenset[str]:
        return self._there

    def shut_out(self) -> frozenset[str]:
        return frozenset(name for name in self._messages if name not in self._keys)

    def send(self, to: str, message: Writes) -> int:
        self._sent += 1
        self._messages[to][self._sent] = message
        return self._sent

    def cancel(self, ticket: int) -> None:
        for messages in self._messages.values():
            messages.pop(ticket, None)

    def came(self, seconds: float) -> Sequence[Arrived]:
        until = time.monotonic() + seconds
        while True:
            if time.monotonic() >= self._next:
                self._look()
                self._next = time.monotonic() + LOOK
            found, self._came = self._came, []
            if found or (left := until - time.monotonic()) <= 0:
                return found
            time.sleep(min(LOOK, left))

    def _look(self) -> None:
        """Collect the answers that have come, and send the next question to each idle node."""
        for ticket, data in self._nodes.answers(self._asked).items():
            self._take(self._asked.pop(ticket), data)
        present = set(self._nodes.present())
        self._asked = {ticket: one for ticket, one in self._asked.items() if one.node in present}
        self._there = frozenset(s for s, node in self._node_of.items() if node in present and s in self._keys)
        busy, now = {one.node for one in self._asked.values()}, time.monotonic()
        for node in present - busy:
            if now < self._pauses.get(node, 0.0):
                continue
            if (site := self._site_of.get(node)) is None:
                self._ask(_Question(node, secrets.token_bytes(CHALLENGE)))
            elif site in self._there and node == self._node_of[site] and (messages := self._messages[site]):
                ticket, write = next(iter(messages.items()))
                self._ask(_Question(node, site=site, ticket=ticket), write())

    def _ask(self, question: _Question, message: bytes = b"") -> None:
        data = framed([self._invitation, question.challenge, message])
        self._asked[self._nodes.ask(question.node, data)] = question

    def _take(self, one: _Question, data: bytes) -> None:
        try:
            if not data or len(data) > self._most:
                raise WireError("a node has failed, or its answer is too long", code="no-answer")
            if one.challenge:
                self._introduce(one, *unframed(data, 2))
            elif self._messages[one.site].pop(one.ticket, None) is not None:
                (message,) = unframed(data, 1)
                self._came.append(Arrived(one.ticket, message))
        except WireError as error:
            self._pauses[one.node] = time.monotonic() + AGAIN
            self._note(RunEvent(event="turned away", site=one.site, why=f"{error.what}: the log at the site says why"))

    def _introduce(self, one: _Question, name: bytes, proof: bytes) -> None:
        site = name.decode(errors="replace")[:64]
        try:
            if site not in self._messages:
                raise KeyError
            self._keys[site].verify(proof, claim(self._run, site, one.challenge))
        except (KeyError, InvalidSignature):
            raise WireError(f"{site!r} is not a site of this run, or has not its key", code="unknown-sender") from None
        if (before := self._node_of.get(site)) is not None:
            self._note(RunEvent(event="displaced", site=site, why=f"node {one.node}, in place of {before}"))
        self._site_of[one.node], self._node_of[site] = site, one.node


def serve_elsewhere(
    nodes: Nodes,
    *,
    experiment: str | Path,
    agreement: str | Path,
    identity: str | Path,
    sites: str | Path,
    folder: str | Path,
    own: str | Path | None = None,
    minimum: int = 2,
    deadline_s: float = 600.0,
    rehearsal: bool = False,
    moved: bool = False,
    watch: Callable[[Progress], None] | None = None,
) -> Ended:
    """Serves a run between sites, or continues the one in `folder`, where another federated learning program carries
    the messages to its nodes. The settings are those of `sordino serve`; `sites`: the list of allowed sites.
    """
    options = ServeOptions(
        experiment=config.load(Path(experiment)),
        agreement=Path(agreement),
        folder=absolute_folder(folder),
        identity=private_key(Path(identity)),
        allowed=Path(sites),
        address="inside another program",
        own=None if own is None else Path(own),
        patience=Patience(timeout=deadline_s, minimum=minimum),
        rehearsal=rehearsal,
        moved=moved,
    )

    def hears(event: RunEvent) -> None:
        log.info("%s", event.words)

    return serve(options, watch, hears, carried=lambda *about: NodesCarrier(nodes, *about))


# site -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SiteTerms:
    """Terms on which a site takes part: the experiment and the server that it accepts, and the site's own settings."""

    experiment: str | Path
    server_key: str | Path  # the public key of the server
    client: str  # its name in the agreement
    data: str | Path
    identity: str | Path
    folder: str | Path
    max_epsilon: float | None = None
    share_scores: bool = False
    rehearsal: bool = False
    moved: bool = False


class SiteElsewhere:
    """One site, in a process of another program."""

    def __init__(self, terms: SiteTerms) -> None:
        self._terms, self._stack = terms, ExitStack()
        self._asked: Proposed | None = None

    def answer(self, question: bytes) -> bytes:
        """Answer to a question; empty where this site refuses it or fails, which its own log explains."""
        try:
            invitation, challenge, messages = unframed(question, 3)
            asked = self._proposed(invitation)
            if challenge:
                text = claim(asked.invitation.fields.run, asked.site, challenge)
                return framed([asked.site.encode(), asked.options.identity.sign(text)])
            answers = [self._member.answer(message) for message in [*each(messages)]]
            return framed(answers[-1:])
        except Exception as error:
            # no error: NVFlare sends its server what a job logs as one
            log.warning("this site does not answer: %s", error, exc_info=error)
            return b""

    def close(self) -> None:
        """Writes the receipt, and releases the folder."""
        self._stack.close()
        self.__dict__.pop("_member", None)

    def _proposed(self, invitation: bytes) -> Proposed:
        """The run that the server invites to; refused where the invitation is not from the accepted server."""
        terms = self._terms
        experiment = tomllib.loads(tomllib.loads(invitation.decode())["experiment"])
        # anybody can write an invitation: code that this site has not accepted is not imported in order to read it
        known = {*user_code.named(experiment)} <= {*user_code.named(self._own.model_dump())}
        found = agreement_file.parsed_invitation(invitation, with_code=known)
        if found.server_key != public_key(Path(terms.server_key)):
            raise KeyMismatch(
                "the invitation is from another server than the one that this site has accepted",
                why=f"its key is not the one in {terms.server_key}",
                fix="ask the server's operator for the public key, by another way than through this program",
                code="other-server",
            )
        if self._asked is None or self._asked.invitation != found:
            self.close()
            options = JoinOptions(
                invitation=Path(),
                identity=private_key(Path(terms.identity)),
                folder=absolute_folder(terms.folder),
                with_code=True,
                rehearsal=terms.rehearsal,
                data=Path(terms.data),
                name=terms.client,
                max_epsilon=terms.max_epsilon,
                shares_scores=terms.share_scores,
                moved=terms.moved,
            )
            asked = Proposed(options, found)
            self._check_accepted(asked)
            self._asked = asked
        return self._asked

    @cached_property
    def _own(self) -> Experiment:
        return config.load(Path(self._terms.experiment))

    def _check_accepted(self, asked: Proposed) -> None:
        own = settled(self._own, self._terms.rehearsal)
        if (own.digest(), DeclaredData(own).schema) != (asked.experiment.digest(), asked.invitation.declared):
            raise UnsoundGuarantee(
                "the server plays another experiment than the one that this site has accepted",
                why=f"it differs from {self._terms.experiment}, or its schema does",
                fix="compare the two; a site that agrees with the other one takes it as its own",
                code="other-experiment",
            )

    @cached_property
    def _member(self) -> Membership:
        assert self._asked is not None
        found = self._stack.enter_context(membership(self._asked, lambda asked: True))
        assert found is not None
        self._stack.callback(found[0].receipt)
        return found[0]


# bytes ----------------------------------------------------------------------------------------------------------------


def framed(parts: Iterable[bytes]) -> bytes:
    stream = io.BytesIO()
    for part in parts:
        message.write(stream, part)
    return stream.getvalue()


def unframed(data: bytes, many: int) -> list[bytes]:
    """Splits a question or an answer into its parts; refused unless there are exactly `many`."""
    stream = io.BytesIO(data)
    found = [message.read(stream) for _ in range(many)]
    parts = [one for one in found if one is not None]
    if len(parts) != many or stream.read(1):
        raise WireError("what came is no question or answer of this version", fix="ignore it", code="no-message")
    return parts
