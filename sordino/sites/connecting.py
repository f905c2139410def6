"""Connection of a site or key holder to its server by gRPC: always opened from here, with certificates unless the
server is on the same machine. It fetches messages and sends answers, and opens no port."""

from __future__ import annotations

import math
import queue
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, TypeAlias

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sordino.errors import ConfigError, WireError
from sordino.ledger.files import atomic_write
from sordino.runs.setup import RunSetup
from sordino.sites import grpc_line
from sordino.sites.agreement_file import Invitation
from sordino.sites.grpc_line import Foreign, PendingMessage, claim
from sordino.sites.site_accounts import SignedHead
from sordino.transport.tls import Certificates, Pems, of_site

TICK = 0.1  # seconds between two checks whether to stop
FIRST, LONGEST = 0.25, 15.0  # seconds between two tries to connect
PARTING = 2 * LONGEST  # seconds after the end of a run in which a disconnected site may connect again
PATIENT = 6  # failed tries after which the pause no longer grows
SHOWN = 300  # characters of a reason
OPTIONS = (
    *grpc_line.OPTIONS,
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),  # each try opens a connection of its own
)

Standing: TypeAlias = Literal["waiting", "working", "cut off", "refused", "late"]
Says: TypeAlias = Callable[[Standing, str], None]  # state of a site's connection, and why


def attend(
    address: str,
    name: str,
    answer: Callable[[bytes], bytes],
    stop: Callable[[], bool],
    tls: Certificates | None,
    most: int,
    sign: Callable[[bytes], bytes],
    say: Says = lambda standing, why: None,
) -> None:
    """Answer the messages of a server until `stop()` is true, reconnecting after any break. An answer is sent again
    until the server has taken it or no longer wants it. Work on a message is never interrupted; if the site stops
    before it answers, the server asks again. All callbacks run in the caller's thread. `most`: longest accepted
    message, in bytes; `sign`: signs the challenge by which the server checks who connects."""
    grpc = grpc_line.package()
    pems = _checked(address, name, tls)
    owed: PendingMessage | None = None
    tries = 0
    while not stop():
        with _Line(address, name, pems, most, stop, sign, say) as line:
            try:
                while not stop():
                    if owed is not None:
                        if line.send(owed) == grpc_line.LATE:
                            say("late", line.times)
                        owed = None
                    elif (asked := line.message()) is not None:
                        say("working", "")
                        owed = PendingMessage(asked.ticket, answer(asked.message))
                    tries = 0
            except (grpc.RpcError, WireError) as error:
                if stop():
                    return
                found = _understood(grpc, error)
                say(found.standing, found.why)
                owed = owed if found.send_again else None
                tries = PATIENT if found.superseded else tries
        pause(seconds_after(tries), stop)
        tries = min(tries + 1, PATIENT)
        if tls is not None:
            with suppress(ConfigError):  # they may be renewed at this moment: then those of before are tried again
                pems = tls.read()


def _checked(address: str, name: str, tls: Certificates | None) -> Pems | None:
    if tls is None:
        grpc_line.check_loopback(address)
        return None
    if tls.name != name:
        raise ConfigError(
            f"the certificate {tls.chain} belongs to {tls.name!r}, and this site is {name!r}",
            fix="use the name in the certificate, or get a certificate for this name",
            code="other-name",
        )
    return tls.read()


class _Line:
    """One connection to the server."""

    def __init__(
        self,
        address: str,
        name: str,
        pems: Pems | None,
        most: int,
        stop: Callable[[], bool],
        sign: Callable[[bytes], bytes],
        say: Says,
    ) -> None:
        grpc, (self._most, self._stop, self._sign, self._say) = grpc_line.package(), (most, stop, sign, say)
        options = (*OPTIONS, ("grpc.enable_http_proxy", int(not grpc_line.is_loopback(address))))
        if pems is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            made = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.chain)
            self._channel = grpc.secure_channel(address, made, options)
        self._came = self._went = (0, 0.0)  # bytes and seconds of the last message, and of its answer
        self._who = ((grpc_line.NAME, name),) if pems is None else ()
        self._fetch = self._channel.stream_stream(f"/{grpc_line.SERVICE}/{grpc_line.FETCH}")
        self._answer = self._channel.stream_unary(f"/{grpc_line.SERVICE}/{grpc_line.ANSWER}")

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def message(self) -> PendingMessage | None:
        """Next message; None after a while without one, or when it is time to stop. The call stays open until the
        server has the answer, which shows the server that this site is at work."""
        heard: queue.SimpleQueue[PendingMessage | Exception | None] = queue.SimpleQueue()
        proofs: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = self._fetch(iter(proofs.get, None), metadata=self._who)
        threading.Thread(target=self._hear, args=(call, proofs, heard), daemon=True).start()
        connected = False
        while not self._stop():
            try:
                one = heard.get(timeout=TICK)
            except queue.Empty:
                continue
            if isinstance(one, Exception):
                raise one
            if connected:
                return one
            connected = True
            self._say("waiting", "")
        return None

    @property
    def times(self) -> str:
        """Sizes and transfer times of the last message and answer, in words: for an answer that came too late."""
        came, went = (f"{many / 1e6:.3g} MB in {seconds:.3g} s" for many, seconds in (self._came, self._went))
        return f"the server waits no more for it; the message came with {came}, the answer went with {went}"

    def send(self, posted: PendingMessage) -> bytes:
        """Send an answer to the server, and return its reply."""
        begin = time.monotonic()
        call = self._answer.future(grpc_line.pieces(*posted), metadata=self._who)
        while not self._stop():
            with suppress(grpc_line.package().FutureTimeoutError):
                took = bytes(call.result(TICK))
                self._went = len(posted.message), time.monotonic() - begin
                return took
        return b""

    def _hear(
        self,
        call: Iterator[bytes],
        proofs: queue.SimpleQueue[bytes | None],
        heard: queue.SimpleQueue[PendingMessage | Exception | None],
    ) -> None:
        """Proves the identity of this site to the server, then waits for the server's next message. Puts into `heard`
        None once connected, then the message, or None if the server has none; or an error.
        """
        try:
            challenge = next(call, b"")
            if len(challenge) != grpc_line.CHALLENGE:
                raise _no_server()
            proofs.put(self._sign(challenge))
            if next(call, None) != b"":
                raise _no_server()
            heard.put(None)
            if (head := grpc_line.begun(call, self._most)) is None:
                heard.put(None)
            else:
                begin, message = time.monotonic(), grpc_line.rest(call, head[1])
                self._came = len(message), time.monotonic() - begin
                heard.put(PendingMessage(head[0], message))
            for _ in call:
                raise WireError("more came than one message", fix="ignore it", code="no-message")
        except Exception as error:  # raised where somebody waits
            heard.put(error)
        finally:
            proofs.put(None)


def _no_server() -> WireError:
    return WireError("this is not a server of sordino", fix="check the address", code="no-server")


class _Broken(NamedTuple):
    """State of a site's connection after an error."""

    standing: Standing
    why: str
    send_again: bool = True  # whether the answer that was not taken is sent again
    superseded: bool = False


def _understood(grpc: Foreign, error: Foreign) -> _Broken:
    if isinstance(error, WireError):
        return _Broken("cut off", str(error)[:SHOWN])
    code, codes = error.code(), grpc.StatusCode
    if code == codes.UNAUTHENTICATED:
        return _Broken("refused", "the server does not know this name or its key, or does not allow it any more")
    if code in (codes.OUT_OF_RANGE, codes.INVALID_ARGUMENT):
        return _Broken("refused", "the server takes no message of this kind or length", send_again=False)
    if code == codes.CANCELLED:
        return _Broken(
            "cut off", "the server has stopped, or another process of this name has connected", superseded=True
        )
    return _Broken("cut off", (error.details() or code.name)[:SHOWN])


def seconds_after(tries: int) -> float:
    """Pause in seconds after `tries` failed tries; random, so that sites do not come back all at once."""
    return min(LONGEST, FIRST * 2.0**tries) * random.uniform(0.5, 1)


def pause(seconds: float, stop: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not stop():
        time.sleep(min(TICK, left))


@dataclass
class LeavingRule:
    """Decides when to leave a server: after the end of the run and the last answer, or when the server is gone. A
    process begun after the end stays a moment, as the server may not know that this side has learned of the end."""

    over: Callable[[], bool]  # true once the server has announced the end of the run
    stop: Callable[[], bool]  # true where somebody wants to stop
    say: Says
    ended_before: bool = False  # true: an earlier process had learned of the end of the run
    _gone: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._until = time.monotonic() + PARTING if self.ended_before else math.inf

    def heard(self, standing: Standing, why: str) -> None:
        """Records a change of the connection to the server."""
        if standing == "late":
            self.say(standing, why)
            return
        cut_off = standing not in ("working", "waiting")
        self._gone = (self.over() and standing != "working") or (self.ended_before and cut_off)
        self.say(standing, why)

    def __call__(self) -> bool:
        return self._gone or self.stop() or (time.monotonic() > self._until and not self.over())


@dataclass(frozen=True, kw_only=True)
class InvitedOptions:
    """Start options of a side that is invited to a run: a site, or its key holder."""

    invitation: Path
    identity: Ed25519PrivateKey = field(repr=False)
    folder: Path | None = None
    address: str = ""  # of the server; empty: as the invitation says
    certificates: Path | None = None  # the folder of this end
    with_code: bool = False  # true: classes that the invitation names may run here
    rehearsal: bool = False  # a trial with noise from a seed, which protects nobody

    def folder_in(self, run: str, name: str) -> Path:
        return self.folder or Path("runs") / f"{run}-{name}"


@dataclass
class Responder(ABC):
    """Party that answers the server's messages, a site or the key holder, with its state in a folder."""

    folder: Path
    whole: RunSetup
    over: bool = field(default=False, init=False)  # true once the server has announced the end to this process
    ended: ClassVar[str] = "over"  # file that marks the end

    @cached_property
    @abstractmethod
    def head(self) -> SignedHead:
        """Newest ledger head that this party has signed."""

    @abstractmethod
    def answer(self, data: bytes | memoryview) -> bytes:
        """Answer to a message; it may be a refusal."""

    @property
    def was_over(self) -> bool:
        """True where the server has announced the end of the run to this process or an earlier one."""
        return (self.folder / self.ended).exists()

    def end(self) -> None:
        """Records that the run is over."""
        atomic_write(self.folder / self.ended, b"")
        self.over = True


def attend_for(
    attendant: Responder,
    invitation: Invitation,
    name: str,
    options: InvitedOptions,
    stop: Callable[[], bool],
    say: Says,
    most: int,
) -> None:
    """Answers the messages of a server until it is time to leave; raises an error where the folder here is an older
    copy, behind a ledger head that this side has signed. `most`: longest message that is accepted, in bytes."""
    head, run = attendant.head, invitation.fields.run
    leave = LeavingRule(lambda: attendant.over, lambda: stop() or head.behind is not None, say, attendant.was_over)
    tls = None if options.certificates is None else of_site(options.certificates, name)
    address = options.address or invitation.fields.server
    sign = lambda ticket: options.identity.sign(claim(run, name, ticket))  # noqa: E731
    attend(address, name, attendant.answer, leave, tls, most, sign, leave.heard)
    if head.behind is not None:
        raise head.behind
