"""Answering of the server's messages at a site (see `message`). Each operation is computed once; its answer, and the
state that the clients are in after it, are durable before the answer leaves. The same message again gets the same
bytes, and the same operation with another content is refused.

An answer counts as stored once the checkpoint that names it is durable: a crash at any moment leaves the answer with
the states after it, or neither.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, Protocol

from sordino import branches, user_code
from sordino.engine import checkpoint
from sordino.engine.commands import Answer, Answered, Command, Done, Mask, Refused, Round, read_command
from sordino.engine.executor import flat
from sordino.engine.site import Site
from sordino.errors import KeyMismatch, LedgerError, SordinoError, UnsoundGuarantee, WireError, damaged
from sordino.ledger.files import atomic_write
from sordino.privacy.uplink.channels import PublicKey
from sordino.privacy.uplink.secure_stages import Aggregated, Encrypted, SecureStage
from sordino.transport.message import Heading, Message, Signer, digest_of, peek
from sordino.tree import Tree

KEPT = 3  # stored answers: a server that asks for an older round again is refused


class StoredReply(NamedTuple):
    """Record of one stored answer and of the operation that it answers."""

    operation: str
    asked: str  # digest of the operation
    file: str
    clients: list[int]
    sizes: list[int]
    digest: str  # of the bodies


class ReplyStore:
    """The last answers of a site, in a folder."""

    def __init__(self, place: Path) -> None:
        self._place = place
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._step, meta = checkpoint.newest(place / "states") or (0, {"answers": []})
        self._known = {row[0]: StoredReply(*row) for row in meta["answers"]}

    @property
    def last(self) -> str:
        """Name of the operation that was answered last; empty where there is none."""
        return next(reversed(self._known), "")

    def states(self, template: Callable[[str], Tree]) -> Mapping[str, Tree]:
        """The states of the clients after the last answer, as trees of a checkpoint."""
        loaded = checkpoint.load(self._place / "states", template)
        return {} if loaded is None else loaded.trees

    def find(self, operation: str, asked: str) -> tuple[Answered, list[bytes]] | None:
        """Stored answer to an operation, None where there is none; refused where the operation was asked with another
        content.
        """
        if (known := self._known.get(operation)) is None:
            return None
        if known.asked != asked:
            raise LedgerError(
                f"{operation} was requested before with another content",
                why="a second answer would reveal its difference from the first, which is not paid for",
                fix="the server must continue from the checkpoint of this round",
                code="other-content",
            )
        path = self._place / known.file
        bodies, begin = [], 0
        data = path.read_bytes() if path.is_file() else b""
        for size in known.sizes:
            bodies.append(data[begin : begin + size])
            begin += size
        if len(data) != begin or digest_of(bodies) != known.digest:
            raise damaged(path, "it is not the answer that was kept", "put the file back from a copy")
        return Answered(known.clients), bodies

    def put(
        self, operation: str, asked: str, answer: Answered, bodies: Sequence[bytes], states: Mapping[str, Tree]
    ) -> None:
        """Makes an answer and the states after it durable, together."""
        self._step += 1
        file = f"answer-{self._step:06d}"
        atomic_write(self._place / file, b"".join(bodies), private=True)
        new = StoredReply(operation, asked, file, answer.clients, [len(body) for body in bodies], digest_of(bodies))
        kept = [*[*self._known.values()][-(KEPT - 1) :], new]
        checkpoint.save(self._place / "states", self._step, states, {"answers": [list(row) for row in kept]}, keep=1)
        for old in self._known.keys() - {row.operation for row in kept}:
            (self._place / self._known[old].file).unlink(missing_ok=True)
        self._known = {row.operation: row for row in kept}


Given = tuple[Answered, list[bytes]]
Keep = Callable[[Sequence[bytes]], None]  # records on disk that these bodies leave


class Operation(NamedTuple):
    """Work that one message of the server asks a site to do, once; the same message again gets the stored answer."""

    stage: int
    command: Command
    messages: Sequence[memoryview]
    ledger: str  # the head of the server's ledger

    @staticmethod
    def place_of(name: str) -> tuple[int, int]:
        """Phase and round in the `name` of a round's operation; (0, -1) for an empty name."""
        stage, _, t = name.split("/") if name else ("0", "", "-1")
        return int(stage), int(t)

    @staticmethod
    def stage_of(name: str) -> int:
        """Phase in the `name` of an operation; 0 for an empty name."""
        return int(name.partition("/")[0] or 0)

    @property
    def name(self) -> str:
        t = self.command.t if isinstance(self.command, Round | Mask) else ""
        return f"{self.stage}/{self.command.do}/{t}"

    @property
    def digest(self) -> str:
        """SHA-256 of name, command and messages: equal whenever the same is asked again."""
        text = json.dumps([self.name, asdict(self.command), digest_of(self.messages)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


class RequestPolicy:
    """Policy of a site: decides, before anything is computed, which requests of a server the site carries out. This one
    allows all, as suits processes of one run; that of a real site (`sites.membership`) charges the site's own ledger.
    """

    @property
    def place(self) -> str:
        """Number of rounds whose answers have left this site, and the head of its ledger; empty where not needed."""
        return ""

    def admit(self, asked: Operation) -> None:
        """Refuse an operation that this site does not carry out for a server."""

    def pay(self, asked: Operation, command: Round) -> Round:
        """Charges a round to the site's budget, durably, or refuses it. Returns the round to compute: the same, or with
        more noise.
        """
        return command

    def does(self, asked: Operation) -> Answer | None:
        """Answer to a command for the site itself; None for commands to its clients."""
        return None

    def secure(self, stage: int) -> SecureStage | None:
        """Secure sum of this phase; None where the server reads each upload by itself."""
        return None

    def key(self, stage: int) -> PublicKey:
        """The key under which the uploads of this phase are encrypted."""
        raise KeyMismatch(
            "there is no key to encrypt uploads with",
            why="only a site that joined with the digest of a key holder's key has one",
            fix="join with --key-digest",
            code="no-key-here",
        )

    def declined(self, error: SordinoError) -> None:
        """Called after the site has refused a request."""

    def failed(self, error: SordinoError) -> SordinoError:
        """Error to send to the server when a computation here fails with `error`."""
        return error

    def release(self, asked: Operation, bodies: Sequence[bytes]) -> None:
        """Called once the answer to an operation is on disk, before it is sent."""


class MaskedSteps(Protocol):
    """One site's clients in one round of secure aggregation by masks."""

    asked: Operation

    @property
    def place(self) -> tuple[int, int]: ...
    def first(self, asked: Operation) -> Given: ...
    def given(self, asked: Operation, command: Mask) -> Given | None: ...
    def step(self, asked: Operation, command: Mask, keep: Keep) -> Given: ...


class RequestHandler:
    """Answers the messages of one server, one after another."""

    def __init__(
        self,
        signer: Signer,
        sites: Callable[[int], Site],
        policy: RequestPolicy | None = None,
        replies: ReplyStore | None = None,
    ) -> None:
        """`sites`: makes the site for a phase, given by its number, with the states that its clients start from.
        `replies`: store of answers and states; without one nothing is stored.
        """
        self._signer, self._make, self._replies = signer, sites, replies
        self._policy = policy or RequestPolicy()
        self._stage = -1
        self._site: Site | None = None
        self._masked: MaskedSteps | None = None  # the masked round that this site takes part in
        self._turn = threading.Lock()  # the same message in two threads would draw two noises

    def answer(self, data: bytes | memoryview) -> bytes:
        """Answer to a message, as a message; an error becomes a refusal. One at a time, whoever asks."""
        with self._turn:
            return self._answer(data)

    def _answer(self, data: bytes | memoryview) -> bytes:
        try:
            message = self._signer.read(data)
        except WireError as error:
            self._policy.declined(error)
            return self._refuse(error, data)
        try:
            with user_code.blamed():
                return self._answered(message)
        except SordinoError as error:
            self._policy.declined(error)
            return self._written(message.head, Refused.of(error))

    def _answered(self, message: Message) -> bytes:
        head = message.head
        asked = Operation(head.stage, read_command(head.said), message.bodies, head.ledger)
        if len(asked.messages) != asked.command.messages:
            raise WireError(
                f"{len(asked.messages)} messages came with a command that has {asked.command.messages}",
                fix="ignore it",
                code="other-messages",
            )
        if isinstance(asked.command, Mask):
            return self._written(head, *self._mask(asked, asked.command))
        if isinstance(asked.command, Round):
            secure = self._policy.secure(asked.stage)
            if (secure is not None) != (asked.command.among > 0):
                raise _other_uploads(secure is not None)
            answer = self._begin_masked if isinstance(secure, Aggregated) else self._round
            return self._written(head, *answer(asked, asked.command))
        self._policy.admit(asked)
        if (own := self._policy.does(asked)) is not None:
            return self._written(head, own)
        with self._all_or_nothing():
            bodies = list(self._site_of(asked.stage).obey(asked.command, asked.messages))
        return self._written(head, Done(), bodies)

    def _round(self, asked: Operation, command: Round) -> Given:
        if (before := self._kept(asked)) is not None:
            self._policy.release(asked, before[1])  # a crash may have prevented it when the answer was stored
            return before
        paid = self._policy.pay(asked, command)
        with self._all_or_nothing():
            site = self._site_of(asked.stage)
            answer, bodies = Answered(sorted(paid.terms)), list(self._uploads(site, asked, paid))
            if self._replies is not None:
                self._replies.put(asked.name, asked.digest, answer, bodies, site.states.trees())
        self._policy.release(asked, bodies)
        return answer, bodies

    def _uploads(self, site: Site, asked: Operation, command: Round) -> Iterator[bytes]:
        """Uploads that leave a site: ciphertexts, where the server may read none."""
        if not isinstance(self._policy.secure(asked.stage), Encrypted):
            yield from site.obey(command, asked.messages)
            return
        grid, key = site.algorithm.uplink.grid, self._policy.key(asked.stage)
        assert grid is not None
        key.check(grid.layout, command.among)
        for _, upload in site.uploads(command, asked.messages):
            yield key.encrypt(flat(upload), command.t, grid.layout).pack()

    def _begin_masked(self, asked: Operation, command: Round) -> Given:
        """Answers the first step of a round of secure aggregation by masks; with no clients where a stored answer shows
        that masked uploads have left before.
        """
        if self._masked is None or self._masked.asked.name != asked.name:
            self._masked = None
            if (before := self._kept(asked)) is not None:
                return before  # for no client: the keys of the masks are lost
            begun: Callable[..., MaskedSteps] = branches.part("secure_sums", "masked round")
            self._masked = begun(asked, self._policy.pay(asked, command), self._site_of(asked.stage))
        return self._masked.first(asked)

    def _mask(self, asked: Operation, command: Mask) -> Given:
        """Answers a later step of a round of secure aggregation by masks, which was paid for when the round began."""
        masked = self._masked
        if masked is None or masked.place != (asked.stage, command.t):
            raise WireError(
                f"this site takes no part in the masked sum of round {command.t + 1}",
                why="it was restarted since the round began, or has begun another one: its keys are gone",
                fix="continue without its clients; they take part in the next round",
                code="no-such-sum",
            )

        def keep(bodies: Sequence[bytes]) -> None:
            assert masked is not None
            if self._replies is not None:
                states = self._site_of(asked.stage).states.trees()
                self._replies.put(masked.asked.name, masked.asked.digest, Answered(), [], states)
            self._policy.release(masked.asked, bodies)

        if (before := masked.given(asked, command)) is not None:
            return before
        with self._all_or_nothing():
            return masked.step(asked, command, keep)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Returns the clients to the last stored states when work fails half-way, and raises the error that the server
        is sent.
        """
        try:
            with user_code.blamed():
                yield
        except BaseException as error:
            if self._replies is not None:
                self._site = self._masked = None
            if isinstance(error, SordinoError):
                raise self._policy.failed(error) from error
            raise

    def _kept(self, asked: Operation) -> Given | None:
        """Stored answer to a round, None where the round is new; refused where the round is older than the last one and
        its answer is no longer stored."""
        if self._replies is None:
            return None
        found = self._replies.find(asked.name, asked.digest)
        if found is None and Operation.place_of(asked.name) < Operation.place_of(self._replies.last):
            raise LedgerError(
                f"{asked.name} comes before {self._replies.last}, which this site has answered",
                why="it may have been answered too, and a second answer would be unpaid",
                fix="the server must continue from its newest checkpoint",
                code="answered-before",
            )
        return found

    def _site_of(self, stage: int) -> Site:
        if self._site is None or self._stage != stage:
            self._stage, self._site = stage, self._make(stage)
        return self._site

    def _written(self, head: Heading, answer: Answer, bodies: Sequence[bytes] = ()) -> bytes:
        place = self._policy.place
        return self._signer.write(head.sender, head.stage, asdict(answer), bodies, place)

    def _refuse(self, error: WireError, data: bytes | memoryview) -> bytes:
        try:
            head = peek(data)
        except WireError:
            head = Heading(self._signer.run, 0, "", self._signer.name, {})
        return self._written(head, Refused.of(error))


def _other_uploads(hides: bool) -> UnsoundGuarantee:
    return UnsoundGuarantee(
        f"the server asks for uploads {'without encryption' if hides else 'for a secure sum'}",
        why="this site has accepted an experiment "
        + ("whose single uploads the server may not read" if hides else "without a secure sum"),
        fix="the server must keep to the experiment of the invitation",
        code="other-uploads",
    )
