"""gRPC client of a site: it connects to the server, fetches messages and sends answers. It opens no port."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Literal, NamedTuple, TypeAlias

from sordino.errors import ConfigError, WireError
from sordino.sites import grpc_line
from sordino.sites.grpc_line import Foreign, PendingMessage
from sordino.transport.tls import Certificates, Pems

TICK = 0.1  # seconds between two looks at whether to stop
FIRST, LONGEST = 0.25, 15.0  # seconds between two tries to connect
PATIENT = 6  # tries after which the pause is the longest
SHOWN = 300  # characters of a reason
OPTIONS = (
    *grpc_line.OPTIONS,
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),  # what failed before says nothing about the next try
)

Standing: TypeAlias = Literal["waiting", "working", "cut off", "refused", "late"]
Says: TypeAlias = Callable[[Standing, str], None]  # how a site stands, and why


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
                    elif (asked := line.letter()) is not None:
                        say("working", "")
                        owed = PendingMessage(asked.ticket, answer(asked.letter))
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

    def letter(self) -> PendingMessage | None:
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
                self._went = len(posted.letter), time.monotonic() - begin
                return took
        return b""

    def _hear(
        self,
        call: Iterator[bytes],
        proofs: queue.SimpleQueue[bytes | None],
        heard: queue.SimpleQueue[PendingMessage | Exception | None],
    ) -> None:
        """Prove the identity of this site. Then put None into `heard` once connected, and after it the message, or None
        if there is none."""
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
                begin, letter = time.monotonic(), grpc_line.rest(call, head[1])
                self._came = len(letter), time.monotonic() - begin
                heard.put(PendingMessage(head[0], letter))
            for _ in call:
                raise WireError("more came than one message", fix="ignore it", code="no-letter")
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
    send_again: bool = True  # the answer that is owed
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
