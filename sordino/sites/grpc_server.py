"""gRPC server, to which sites connect in order to fetch messages. It never connects to a site.

Each site has a queue. A message stays in it until it is answered or cancelled, and a site that fetches gets the
oldest one: a site that crashed at work gets its message again. The call with which a site fetches a message stays open
until the answer is there, so a connection that breaks is noticed while a site works, too.

Between machines both ends have certificates, and the certificate names the caller; on one machine a site says its name.
A caller is checked before anything that it sends is read: it must be one of the sites of this run and on the list at
this moment. A site that fetches signs with the key on the list, whatever its certificate says, and only then takes the
place of another process of that name. An answer without the ticket of an open message changes nothing.
"""

from __future__ import annotations

import contextlib
import math
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, NoReturn
from urllib.parse import unquote

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from sordino.errors import ConfigError, SordinoError, WireError
from sordino.ledger.files import files_allowed
from sordino.sites import grpc_line
from sordino.sites.grpc_line import Foreign
from sordino.transport.message import Arrived, Carrier, Writes
from sordino.transport.run_events import RunEvent
from sordino.transport.tls import Certificates

SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
LONG = 1 << 16  # bytes of a message from which its transfer time measures the connection's speed
SHOWN = 64  # characters of an unknown caller's name
POLL = 20.0  # seconds that a site waits for a message before it asks again
PULSE = 0.5  # seconds between two checks whether the site of a waiting call is still allowed
FILES = 1 << 16  # limit of open files, where the machine allows so many
CALLERS = 1000  # connections in addition to those of sites; without a certificate one ends at the handshake timeout
PROMPT = 5.0  # seconds that a call may send nothing before another takes its place; a signature needs less time
GRACE = 10.0  # seconds between two calls of a site in which it still counts as connected
OPTIONS = (
    *grpc_line.OPTIONS,
    ("grpc.so_reuseport", 0),  # else another program could take calls at the same port
    ("grpc.max_concurrent_streams", 16),  # of one connection
    ("grpc.http2.min_ping_interval_without_data_ms", grpc_line.PING // 2),
    ("grpc.server_handshake_timeout_ms", 10_000),
)


class _Silent(NamedTuple):
    """Call that has not sent anything yet."""

    call: Foreign
    since: float
    certificate: tuple[bytes, ...]  # of the caller; empty without TLS, on one machine


class _SiteQueue:
    """Queue of one site: its unanswered messages, oldest first, and its open calls."""

    def __init__(self, name: str, lock: threading.Lock) -> None:
        self.name, self.moved = name, threading.Condition(lock)
        self.messages: dict[int, Writes] = {}
        self.silent: dict[str, _Silent] = {}  # by method
        self.proved: tuple[bytes, ...] = ()  # certificate of the last caller that proved the site's key
        self.fetching: Foreign = None
        self.answering: Foreign = None
        self.answered: int | None = None  # the ticket of the last answer
        self.left = -math.inf  # when the last call ended as it should
        self.carried = (0, 0.0)  # bytes of the last long message or answer, as far as it has come, and seconds


class Rpc(Carrier):
    """Carries messages to sites that fetch them. `names`: of all sites; `keys`: public keys of the allowed sites,
    checked in every call and while one waits; `most`: longest message that is accepted, in bytes; `note`: receives
    events, such as a caller that is turned away.
    """

    def __init__(
        self,
        bind: str,
        run: str,
        names: Sequence[str],
        most: int,
        keys: Mapping[str, Ed25519PublicKey],
        tls: Certificates | None = None,
        note: Callable[[RunEvent], None] = lambda event: None,
    ) -> None:
        grpc = grpc_line.package()
        if tls is None:
            grpc_line.check_loopback(bind)
        self._codes, self._tls, self._most, self._keys = grpc.StatusCode, tls is not None, most, keys
        self._run, self._note = run, note
        self._lock, self._open = threading.Lock(), True
        self._sites = {name: _SiteQueue(name, self._lock) for name in names}
        self._came: queue.SimpleQueue[Arrived | Exception] = queue.SimpleQueue()
        calls = 4 * len(names) + 4  # each has a thread, so no accepted call waits for one
        self._threads = ThreadPoolExecutor(calls)
        options = (*OPTIONS, ("grpc.max_allowed_incoming_connections", connections_for(len(names))))
        self._server = grpc.server(self._threads, options=options, maximum_concurrent_rpcs=calls)
        methods = {
            # a handler of a stream is called before anything of the stream is taken in
            grpc_line.FETCH: grpc.stream_stream_rpc_method_handler(self._fetch),
            grpc_line.ANSWER: grpc.stream_unary_rpc_method_handler(self._answer),
        }
        health = {"Check": grpc.unary_unary_rpc_method_handler(self._check)}
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(grpc_line.SERVICE, methods),
                grpc.method_handlers_generic_handler("grpc.health.v1.Health", health),
            )
        )
        try:
            if tls is None:
                self.port = int(self._server.add_insecure_port(bind))
            else:
                chain, key, ca = tls.read()
                made = grpc.ssl_server_credentials([(key, chain)], ca, require_client_auth=True)
                self.port = int(self._server.add_secure_port(bind, made))
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen at {bind}", why=str(error), fix="choose a free port of this machine", code="no-port"
            ) from None

    def __enter__(self) -> Rpc:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._open = False
            for site in self._sites.values():
                site.moved.notify_all()
        self._server.stop(PULSE).wait()
        self._threads.shutdown()

    @property
    def who(self) -> Sequence[str]:
        return list(self._sites)

    def peers(self) -> frozenset[str]:
        """Sites that are allowed and have a fetching call open, waiting or at work, or ended their last call properly
        less than `GRACE` seconds ago. A process that dies is missing at once, a link that fails silently within half a
        minute. A site at work counts for however long it works: nobody knows whether it will ever answer.
        """
        late = time.monotonic() - GRACE
        with self._lock:
            there = [site for site in self._sites.values() if site.fetching is not None or site.left > late]
        return frozenset(site.name for site in there if self._may(site))

    def rate(self, peer: str) -> float | None:
        many, seconds = self._sites[peer].carried
        return many / seconds if many and seconds else None

    def shut_out(self) -> frozenset[str]:
        return frozenset(site.name for site in self._sites.values() if not self._may(site))

    def send(self, to: str, message: Writes) -> int:
        site = self._sites[to]
        with self._lock:
            ticket = secrets.randbits(62)  # nobody else can guess it
            site.messages[ticket] = message
            site.moved.notify_all()
            return ticket

    def came(self, seconds: float) -> Sequence[Arrived]:
        try:
            one = self._came.get(seconds > 0, min(seconds, threading.TIMEOUT_MAX))
        except queue.Empty:
            return []
        if isinstance(one, Exception):
            raise one
        return [one]

    def cancel(self, ticket: int) -> None:
        with self._lock:
            for site in self._sites.values():
                site.messages.pop(ticket, None)

    # calls ------------------------------------------------------------------------------------------------------------

    def _fetch(self, sent: Iterator[bytes], call: Foreign) -> Iterator[bytes]:
        """Delivers the oldest unanswered message to a site that asks for it, and keeps the call open until it is
        answered.
        """
        site, challenge = self._speaker(call), secrets.token_bytes(grpc_line.CHALLENGE)
        with self._silence(site, call, grpc_line.FETCH):
            yield challenge
            try:
                proof = next(sent, b"")
            except grpc_line.package().RpcError:  # it was cut off
                return
        if not self._proves(site, challenge, proof):
            self._refuse(call, site.name, "it has not the key that is on the list")
        with self._lock:
            before, site.fetching, site.proved = site.fetching, call, _certificate(call)
        if before is not None and before.peer() != call.peer():  # else the same process asks for the next message
            self._note(
                RunEvent(event="displaced", site=site.name, why=f"{_whom(call)}, in place of {unquote(before.peer())}")
            )
        if before is not None:
            before.cancel()
        if not call.add_callback(partial(self._gone, site, call)):
            self._gone(site, call)
            return
        yield b""  # the site knows that it is connected
        if (next_ := self._next(site, call)) is not None:
            ticket, write = next_
            try:
                message = write()
            except Exception as error:  # raised where the server waits for the answer
                self._came.put(error)
                call.abort(self._codes.UNAVAILABLE, "")
            for piece in _measured(site, grpc_line.pieces(ticket, message)):
                if not self._may(site):
                    self._refuse(call, site.name)
                yield piece
            del message
            self._wait_for_answer(site, call, ticket)
        with self._lock:
            if site.fetching is call:
                site.fetching, site.left = None, time.monotonic()

    def _next(self, site: _SiteQueue, call: Foreign) -> tuple[int, Writes] | None:
        until = time.monotonic() + POLL
        while self._may(site):
            with self._lock:
                if site.messages and self._goes_on(site, call):
                    return next(iter(site.messages.items()))
                if not self._goes_on(site, call) or time.monotonic() >= until:
                    return None
                site.moved.wait(PULSE)
        return self._refuse(call, site.name)

    def _wait_for_answer(self, site: _SiteQueue, call: Foreign, ticket: int) -> None:
        while self._may(site):
            with self._lock:
                if site.answered == ticket or not self._goes_on(site, call):
                    return
                site.moved.wait(PULSE)
        self._refuse(call, site.name)

    def _goes_on(self, site: _SiteQueue, call: Foreign) -> bool:
        return self._open and site.fetching is call

    def _gone(self, site: _SiteQueue, call: Foreign) -> None:
        """Record the end of a call; if the site still owes the answer, it counts as gone."""
        with self._lock:
            if site.fetching is call:
                site.fetching, site.left = None, -math.inf
                site.moved.notify_all()

    def _answer(self, pieces: Iterator[bytes], call: Foreign) -> bytes:
        """Takes the answer to an open message of this site; any other is not read."""
        site = self._speaker(call)
        try:
            with self._silence(site, call, grpc_line.ANSWER):
                head = grpc_line.begun(pieces, self._most)
            if head is None:
                raise WireError("no message came", code="no-message")
            ticket, length = head
            late = ticket not in site.messages and ticket != site.answered
            if ticket in site.messages:
                with self._lock:
                    before, site.answering = site.answering, call
                if before is not None:
                    before.cancel()
                self._take(site, call, Arrived(ticket, grpc_line.rest(_measured(site, pieces), length)))
        except WireError as error:
            too_long = error.code == "too-long"
            call.abort(self._codes.OUT_OF_RANGE if too_long else self._codes.INVALID_ARGUMENT, "")
        except grpc_line.package().RpcError:  # it was cut off
            return b""
        with self._lock:
            site.answered, site.left = ticket, time.monotonic()
            site.moved.notify_all()
        return grpc_line.LATE if late else b""

    def _take(self, site: _SiteQueue, call: Foreign, arrived: Arrived) -> None:
        if not self._may(site):
            self._refuse(call, site.name)
        with self._lock:
            if site.messages.pop(arrived.ticket, None) is not None:
                site.left = time.monotonic()  # before the answer is passed on: the site counts as connected
                self._came.put(arrived)

    def _check(self, asked: bytes, call: Foreign) -> bytes:
        """Answer gRPC's health checks, two protobuf messages of one field each; the answer says nothing of the run."""
        if asked not in (b"", b"\x0a" + bytes([len(grpc_line.SERVICE)]) + grpc_line.SERVICE.encode()):
            call.abort(self._codes.NOT_FOUND, "")
        return SERVING if self._open else NOT_SERVING

    # who speaks -------------------------------------------------------------------------------------------------------

    def _speaker(self, call: Foreign) -> _SiteQueue:
        if self._tls:
            names = [name.decode(errors="replace") for name in call.auth_context().get("x509_common_name", ())]
        else:
            names = [value for key, value in call.invocation_metadata() if key == grpc_line.NAME]
        site = self._sites.get(names[0]) if len(names) == 1 else None
        if site is None:
            self._refuse(call, "", f"{', '.join(names)[:SHOWN]!r} is not a site of this run")
        return site if self._may(site) else self._refuse(call, site.name)

    @contextlib.contextmanager
    def _silence(self, site: _SiteQueue, call: Foreign, method: str) -> Iterator[None]:
        """Limits the time until a call sends its first message: only one such call per site and method, so that silent
        callers hold no threads. A new call is turned away, unless the waiting one has had `PROMPT` seconds, or the new
        one alone shows the certificate with which the site last proved its identity."""
        shown, now = _certificate(call), time.monotonic()
        with self._lock:
            before = site.silent.get(method)
            known = before is not None and shown == site.proved != before.certificate
            if free := before is None or known or now >= before.since + PROMPT:
                site.silent[method] = _Silent(call, now, shown)
        if not free:
            call.abort(self._codes.UNAVAILABLE, "another call of this name begins")
        if before is not None:
            before.call.cancel()
        try:
            yield
        finally:
            with self._lock:
                if method in site.silent and site.silent[method].call is call:
                    del site.silent[method]

    def _may(self, site: _SiteQueue) -> bool:
        with contextlib.suppress(SordinoError):  # an unreadable list allows no site
            return site.name in self._keys
        return False

    def _proves(self, site: _SiteQueue, challenge: bytes, proof: bytes) -> bool:
        with contextlib.suppress(SordinoError, KeyError, InvalidSignature):
            self._keys[site.name].verify(proof, grpc_line.claim(self._run, site.name, challenge))
            return True
        return False

    def _refuse(self, call: Foreign, site: str, why: str = "it is not on the list, or revoked") -> NoReturn:
        """End a call as unauthenticated. Only the operator learns the reason, not the caller."""
        self._note(RunEvent(event="turned away", site=site, why=f"{_whom(call)}: {why}"))
        call.abort(self._codes.UNAUTHENTICATED, "")
        raise AssertionError("abort has raised")


def _measured(site: _SiteQueue, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Pass on the pieces of a message, measuring the speed of this site's connection."""
    begin, many = time.monotonic(), 0
    for piece in pieces:
        yield piece
        many += len(piece)
        if many >= LONG:
            site.carried = many, time.monotonic() - begin


def _certificate(call: Foreign) -> tuple[bytes, ...]:
    return tuple(call.auth_context().get("x509_pem_cert", ()))


def _whom(call: Foreign) -> str:
    """Address of the caller, with the serial number of its certificate."""
    where = unquote(call.peer())
    for pem in _certificate(call):
        with contextlib.suppress(ValueError):
            return f"{where} with certificate {x509.load_pem_x509_certificate(pem).serial_number:x}"
    return where


def connections_for(sites: int) -> int:
    """Limit of open connections: at most half of the files that the process may open, a number that is first raised as
    far as allowed. Strangers cannot open more, and the run itself has the other half.
    """
    return min(files_allowed(FILES) // 2, CALLERS + 4 * sites)
