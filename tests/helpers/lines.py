"""Both ends of gRPC lines in the process of the tests, and certificates of every kind."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sordino.sites import grpc_line
from sordino.sites.connecting import attend
from sordino.sites.grpc_server import Rpc
from sordino.sites.identity import Signed, Times, authority, make_certificates, pems, signed
from sordino.transport.tls import Certificates, of_server, of_site

HOST = "127.0.0.1"
MOST = 8 << 20
NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)
HOLDS = Times(NOW - DAY, NOW + DAY)


class Papers(NamedTuple):
    """What the sites of a trial and their server have."""

    folder: Path
    ca: Signed

    @property
    def server(self) -> Certificates:
        return of_server(self.folder)

    def of(self, name: str) -> Certificates:
        return of_site(self.folder / name, name)

    def another(self, name: str, times: Times = HOLDS, by: Signed | None = None, hosts: Sequence[str] = ()) -> Signed:
        """A certificate that nobody wrote into the folder."""
        return signed(by or self.ca, name, times, hosts)


def papers(folder: Path, sites: Sequence[str]) -> Papers:
    make_certificates(folder, [HOST, "localhost"], sites, 1)
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    return Papers(folder, Signed(x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes()), key))


def stranger() -> Signed:
    """A CA of the same name that nobody here believes."""
    return authority("sordino trial CA", HOLDS)


def credentials(ca: Signed, own: Signed | None) -> Any:
    chain, key = pems(own) if own is not None else (None, None)
    return grpc.ssl_channel_credentials(pems(ca)[0], key, chain)


@contextmanager
def channel(port: int, made: Any = None) -> Iterator[Any]:
    """A connection that does what a site's end never would."""
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))
    address = f"{HOST}:{port}"
    with (
        grpc.insecure_channel(address, options) if made is None else grpc.secure_channel(address, made, options)
    ) as opened:
        yield opened


RUN = "run"


def key_of(name: str) -> Ed25519PrivateKey:
    """The key that signs a site's messages in these tests."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


class Listed(Mapping[str, Ed25519PublicKey]):
    """The list of a server: every site that is allowed, with its own key."""

    def __init__(self, allowed: Callable[[str], bool] = lambda name: True) -> None:
        self._allowed = allowed

    def __getitem__(self, name: str) -> Ed25519PublicKey:
        if not self._allowed(name):
            raise KeyError(name)
        return key_of(name).public_key()

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def signing(name: str, run: str = RUN) -> Callable[[bytes], bytes]:
    return lambda challenge: key_of(name).sign(grpc_line.claim(run, name, challenge))


def fetched(opened: Any, name: str | None = None, sign: Callable[[bytes], bytes] | None = None) -> Any:
    """An open call that fetches; its first messages have come."""
    proofs: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    call = opened.stream_stream("/sordino.Post/Fetch")(iter(proofs.get, None), metadata=said(name), timeout=10)
    try:
        proofs.put((sign or signing(name or "a"))(next(call)))
        assert next(call) == b""
    finally:
        proofs.put(None)
    return call


def message_of(call: Any) -> grpc_line.PendingMessage:
    head = grpc_line.begun(call, MOST)
    assert head is not None
    return grpc_line.PendingMessage(head[0], grpc_line.rest(call, head[1]))


def answered(opened: Any, pieces: Iterable[bytes], name: str | None = None, method: str = "Answer") -> str:
    """How the server takes these messages: the name of a status."""
    try:
        opened.stream_unary(f"/sordino.Post/{method}")(iter(pieces), metadata=said(name), timeout=10)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def said(name: str | None) -> tuple[tuple[str, str], ...]:
    return () if name is None else ((grpc_line.NAME, name),)


class Attendant(NamedTuple):
    """A site's end in a thread."""

    said: list[tuple[str, str]]
    stop: threading.Event
    thread: threading.Thread


@contextmanager
def attending(
    port: int, name: str, answer: Callable[[bytes], bytes], tls: Certificates | None = None, most: int = MOST
) -> Iterator[Attendant]:
    heard, stop = list[tuple[str, str]](), threading.Event()
    thread = threading.Thread(
        target=attend,
        args=(f"{HOST}:{port}", name, answer, stop.is_set, tls, most, signing(name), lambda *how: heard.append(how)),
        daemon=True,
    )
    thread.start()
    try:
        yield Attendant(heard, stop, thread)
    finally:
        stop.set()
        thread.join(10)
        assert not thread.is_alive()


def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    """Waits for what must become true."""
    late = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < late
        time.sleep(0.005)


def plain(names: Sequence[str] = ("a", "b"), port: int = 0) -> Rpc:
    """A server without certificates."""
    return Rpc(f"{HOST}:{port}", RUN, names, MOST, Listed())
