"""Messages between server and sites: a command of the server, or a site's answer (`Message`); and their carrier.

    u32 length of the head | head | signature (64 bytes) | bodies

The head is JSON of at most a mebibyte: sender, receiver, run, phase, the command or answer, and the lengths of the
bodies that follow. The signature is Ed25519 over the head, which holds a digest of the bodies; it is zero between
processes of one machine, which do not sign. Every length is checked before anything is read, and nothing in a message
names code.

Messages through pipes, to processes that the server starts itself. A frame is `length (8 bytes, little endian) +
bytes`; the first one of a process says that it is ready, and every later one is the answer to the next message.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import queue
import struct
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, Annotated, Any, NamedTuple, Self, TypeAlias

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import Field, TypeAdapter, ValidationError

from sordino.accounting.facts import read_json
from sordino.engine.commands import Refused, read_answer
from sordino.errors import RunError, SordinoError, WireError

LENGTH = struct.Struct("<I")
MOST_HEAD = 1 << 20  # bytes
SIGNATURE = 64
UNSIGNED = bytes(SIGNATURE)
DOMAIN = b"sordino message 1\n"  # begins each signed text, so that a message's signature is valid for nothing else

Name = Annotated[str, Field(max_length=128)]
Size = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Heading:
    """Head of a message: everything but signature and bodies."""

    run: Name
    stage: int  # of the phases of the run
    sender: Name
    to: Name
    said: Mapping[str, Any]  # a command, or the answer to one
    config: Name = ""  # digest of the experiment
    agreement: Name = ""  # digest of the agreement
    ledger: Name = ""  # NUMBER:HASH, head of the server's ledger, or of a site's with its number of answered rounds
    sizes: tuple[Size, ...] = ()  # of the bodies
    digest: Name = ""  # of the bodies, where messages are signed


class Message(NamedTuple):
    """A message: its head, and the bodies that follow."""

    head: Heading
    bodies: tuple[memoryview, ...]
    signed: bytes = b""  # the head as it came, with its signature


_HEAD: TypeAdapter[Heading] = TypeAdapter(Heading)


@dataclass(frozen=True)
class Signer:
    """Identity of one side in a run: the fields that all its messages share, its signing key, and the public keys whose
    messages it accepts.
    """

    name: str
    run: str
    config: str = ""
    agreement: str = ""
    key: Ed25519PrivateKey | None = field(default=None, repr=False)
    known: Mapping[str, Ed25519PublicKey] | None = None  # whose messages are read; None: messages are not signed

    def write(
        self,
        to: str,
        stage: int,
        said: Mapping[str, Any],
        bodies: Sequence[bytes | memoryview] = (),
        ledger: str = "",
        digest: str = "",
    ) -> bytes:
        """Compose and sign a message. `stage`: number of the run's phase; `said`: the command or answer; `digest`: that
        of the bodies, where it is known.
        """
        digest = (digest or digest_of(bodies)) if self.key is not None else ""
        sizes = tuple(len(body) for body in bodies)
        head = Heading(self.run, stage, self.name, to, said, self.config, self.agreement, ledger, sizes, digest)
        text = json.dumps(asdict(head)).encode()
        if len(text) > MOST_HEAD:
            raise _no_message(f"its head would have {len(text)} bytes, {MOST_HEAD} are allowed")
        signature = UNSIGNED if self.key is None else self.key.sign(DOMAIN + text)
        return b"".join([LENGTH.pack(len(text)), text, signature, *bodies])

    def read(self, data: bytes | memoryview) -> Message:
        """Parses and authenticates a message to this side about this run."""
        view = memoryview(data).cast("B")
        head, text, signature = _opened(view)
        if self.known is not None:
            _check_signature(self.known, head, text, signature)
        for what, found, wanted in (
            ("run", head.run, self.run),
            ("receiver", head.to, self.name),
            ("experiment", head.config, self.config),
            ("agreement", head.agreement, self.agreement),
        ):
            if found != wanted:
                raise WireError(
                    f"a message with another {what}: {found!r:.80}, expected {wanted!r:.80}",
                    why="both sides must have begun the same run from the same files",
                    fix="give both the same experiment and agreement, and the invitation of this run",
                    code=f"other-{what}",
                )
        begin = LENGTH.size + len(text) + SIGNATURE
        if begin + sum(head.sizes) != len(view):
            raise _no_message(f"its bodies should have {sum(head.sizes)} bytes, {len(view) - begin} came")
        bodies = []
        for size in head.sizes:
            bodies.append(view[begin : begin + size])
            begin += size
        if self.known is not None and digest_of(bodies) != head.digest:
            raise _no_message("its bodies are not those that were signed")
        return Message(head, tuple(bodies), bytes(view[: LENGTH.size + len(text) + SIGNATURE]))

    def own(self, signed: bytes) -> Heading:
        """Head of a message that this side wrote in this run, and that another side has kept and returned; its
        signature is verified.
        """
        head, text, signature = _opened(memoryview(signed))
        if self.key is not None:
            _check_signature({self.name: self.key.public_key()}, head, text, signature)
        if (head.run, head.sender) != (self.run, self.name):
            raise _no_message("this side wrote nothing like it in this run")
        return head


def peek(data: bytes | memoryview) -> Heading:
    """Unauthenticated head of a message."""
    return _opened(memoryview(data).cast("B"))[0]


def each(data: bytes | memoryview) -> Iterator[memoryview]:
    """Splits bytes into the messages that follow one another in them."""
    view = memoryview(data).cast("B")
    while view:
        head, text, signature = _opened(view)
        end = LENGTH.size + len(text) + len(signature) + sum(head.sizes)
        yield view[:end]
        view = view[end:]


def digest_of(bodies: Sequence[bytes | memoryview]) -> str:
    """SHA-256 of all bodies and their lengths."""
    total = hashlib.sha256()
    for body in bodies:
        total.update(struct.pack("<Q", len(body)))
        total.update(body)
    return total.hexdigest()


def _opened(view: memoryview) -> tuple[Heading, bytes, bytes]:
    if len(view) < LENGTH.size:
        raise _no_message(f"{len(view)} bytes came")
    (length,) = LENGTH.unpack_from(view)
    end = LENGTH.size + length
    if length > MOST_HEAD or len(view) < end + SIGNATURE:
        raise _no_message(f"it claims a head of {length} bytes, and {len(view)} came in all")
    text = bytes(view[LENGTH.size : end])
    try:
        head = _HEAD.validate_python(read_json(text.decode()), strict=False)
    except (ValueError, RecursionError, ValidationError) as error:
        raise _no_message(f"its head cannot be read: {error}"[:300]) from None
    return head, text, bytes(view[end : end + SIGNATURE])


def _check_signature(known: Mapping[str, Ed25519PublicKey], head: Heading, text: bytes, signature: bytes) -> None:
    if (key := known.get(head.sender)) is None:
        raise WireError(
            f"a message from {head.sender!r}, who is not on the list",
            fix="`sordino identity allow` puts a site on the list",
            code="unknown-sender",
        )
    try:
        key.verify(signature, DOMAIN + text)
    except InvalidSignature:
        raise WireError(
            f"a message that {head.sender!r} did not sign",
            why="it was written by another party, or changed on its way",
            fix="ignore it; if the site has a new key, take the old one off the list and allow the new one",
            code="wrong-signature",
        ) from None


def _no_message(why: str) -> WireError:
    return WireError("the received bytes are not a message", why=why, fix="ignore it", code="no-message")


Writes: TypeAlias = Callable[[], bytes]  # makes the bytes of a message, whenever one is handed out


class Arrived(NamedTuple):
    """The answer to one message."""

    ticket: int
    message: bytes


class Carrier(ABC):
    """Delivers messages to sites and brings back answers, which may come late, out of order or twice. An unanswered
    message is delivered again as soon as its site can be reached; users of a carrier ignore duplicates.
    """

    starts_anew = False  # true: every message meets a process that remembers no other, so each begins with `Begin`

    @abstractmethod
    def peers(self) -> frozenset[str]:
        """The names of the sites that can be reached now."""

    @abstractmethod
    def send(self, to: str, message: Writes) -> int:
        """Queues a message; returns a ticket for its answer. A site gets one message after another."""

    @abstractmethod
    def came(self, seconds: float) -> Sequence[Arrived]:
        """Answers that have arrived; waits at most `seconds` for the first one. Raises an error where a site is gone
        for good and the run cannot go on without it.
        """

    @abstractmethod
    def cancel(self, ticket: int) -> None:
        """Cancels a message: its answer is not waited for any more, and it need not be delivered."""

    @property
    @abstractmethod
    def who(self) -> Sequence[str]:
        """The names of all sites, whether they can be reached or not."""

    def rate(self, peer: str) -> float | None:
        """Measured speed of a site's connection in bytes per second; None where too few bytes were carried to tell."""
        return None

    def shut_out(self) -> frozenset[str]:
        """Sites that may not connect: not on the list of allowed sites, or revoked."""
        return frozenset()

    def given_up(self, peer: str, seconds: float) -> SordinoError | None:
        """Error that ends a run whose site has been silent for `seconds`; None where the run waits on."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop carrying messages; nothing to do in this class."""
        return


FRAME = struct.Struct("<Q")
LARGEST = 1 << 34
READY = b"ready"


class Pipes(Carrier):
    """Client processes that answer messages on their standard streams."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        """`commands`: command line of each process."""
        self._came: queue.SimpleQueue[tuple[str, bytes | Exception | None]] = queue.SimpleQueue()
        pipe, self._sent = subprocess.PIPE, 0
        self._processes = {
            # a group of its own: Ctrl-C in a terminal is for the server, which ends its processes
            str(i): subprocess.Popen(command, stdin=pipe, stdout=pipe, process_group=0)
            for i, command in enumerate(commands)
        }
        self._owed = {peer: collections.deque[int]() for peer in self._processes}  # tickets, oldest first
        self._unsent = {peer: queue.SimpleQueue[Writes | None]() for peer in self._processes}
        for peer, process in self._processes.items():
            threading.Thread(target=self._hear, args=(peer, process.stdout), daemon=True).start()
            threading.Thread(target=self._tell, args=(peer, process.stdin), daemon=True).start()

    def __enter__(self) -> Pipes:
        for _ in self._processes:  # before its first message a process does not count as silent
            peer, frame = self._came.get()
            if frame != READY:
                raise _refusal(frame) if isinstance(frame, bytes) else self._gone(peer)
        return self

    def __exit__(self, *_: object) -> None:
        for peer, process in self._processes.items():
            process.kill()
            process.wait()
            self._unsent[peer].put(None)

    def peers(self) -> frozenset[str]:
        return frozenset(self._processes)

    @property
    def who(self) -> Sequence[str]:
        return list(self._processes)

    def send(self, to: str, message: Writes) -> int:
        self._sent += 1
        self._owed[to].append(self._sent)
        self._unsent[to].put(message)
        return self._sent

    def came(self, seconds: float) -> Sequence[Arrived]:
        try:
            peer, frame = self._came.get(seconds > 0, min(seconds, threading.TIMEOUT_MAX))
        except queue.Empty:
            return []
        if not isinstance(frame, bytes) or not self._owed[peer]:
            self._came.put((peer, frame))  # for the next wait, too, which would otherwise never end
            raise frame if isinstance(frame, Exception) else self._gone(peer)
        return [Arrived(self._owed[peer].popleft(), frame)]

    def cancel(self, ticket: int) -> None:
        """Cancels nothing: a process executes every command that it was sent."""

    def given_up(self, peer: str, seconds: float) -> SordinoError:
        return RunError(
            f"a client process has not answered for {seconds:g} s",
            why="engine.deadline_s limits the work of one client: it is too slow, or it never ends",
            fix="look for an endless loop in your model or algorithm, or give a larger engine.deadline_s; then "
            "resume the run",
            code="deadline-passed",
        )

    def _hear(self, peer: str, stream: IO[bytes]) -> None:
        """Moves a process's answers from its pipe to the server's queue: a full pipe would stop the process."""
        for frame in iter(lambda: read(stream), None):
            self._came.put((peer, frame))
        self._came.put((peer, None))

    def _tell(self, peer: str, stream: IO[bytes]) -> None:
        """Moves a process's messages to its pipe: while one is at work its pipe is full, and the others need theirs."""
        with contextlib.suppress(BrokenPipeError), stream:  # the process is gone: its answers end, too
            while (message := self._unsent[peer].get()) is not None:
                try:
                    data = message()
                except Exception as error:  # reported before the stream closes, which ends the process
                    self._came.put((peer, error))
                    return
                write(stream, data)

    def _gone(self, peer: str) -> RunError:
        process = self._processes[peer]
        process.kill()  # a process that sends anything but frames is not a client any more
        return RunError(
            f"a client process ended with status {process.wait()}",
            why="it was killed, ran out of memory, or its program ended it",
            fix="resume the run, where memory was short with fewer engine.workers: nothing that was released is lost",
            code="client-process-ended",
        )


def _refusal(frame: bytes) -> SordinoError:
    """Error of a process that could not start."""
    try:
        answer = read_answer(json.loads(frame))
    except (ValueError, RecursionError):
        answer = Refused("what it said cannot be read")
    return (answer if isinstance(answer, Refused) else Refused("it did not begin")).error("a client process")


def serve(answer: Callable[[bytes], bytes], incoming: IO[bytes], outgoing: IO[bytes]) -> None:
    """Main loop of a client process: answers messages until the stream ends."""
    write(outgoing, READY)
    while (message := read(incoming)) is not None:
        write(outgoing, answer(message))


def write(stream: IO[bytes], data: bytes) -> None:
    stream.write(FRAME.pack(len(data)))
    stream.write(data)
    stream.flush()


def read(stream: IO[bytes]) -> bytes | None:
    """Next frame; None where the stream ends before a whole one."""
    head = stream.read(FRAME.size)
    if len(head) < FRAME.size:
        return None
    (length,) = FRAME.unpack(head)
    data = stream.read(length) if length <= LARGEST else b""
    return data if len(data) == length else None
