"""gRPC protocol of both ends: two methods, and the form in which a message (see `transport.message`) is sent.

    /sordino.Post/Fetch     <- 32 random bytes, -> a signature, <- an empty message, <- the next message of the run
    /sordino.Post/Answer    -> its answer, <- an empty message, or "late" where nobody waits for it any more

A site that fetches signs what it was sent, with the key that signs its messages: a certificate alone does not suffice,
since a CA may make out two to the same name. An answer has the ticket of its message, a random number that nobody else
was told.

A message is a stream: its ticket and its length (16 bytes), then pieces of at most a mebibyte. So memory grows with the
bytes received and not with the length claimed, and the server checks the sender before it takes in anything.
"""

from __future__ import annotations

import io
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from sordino.errors import ConfigError, WireError, extra
from sordino.transport.tls import host_and_port

Foreign: TypeAlias = Any  # an object of grpc, which has no types

SERVICE, FETCH, ANSWER = "sordino.Post", "Fetch", "Answer"
CHALLENGE, FETCHES = 32, "sordino fetch 1"  # bytes; first line of the signed text, which no other signature has
LATE = b"late"
NAME = "sordino-name"  # metadata with a site's name, for a server on the same machine
HEAD = struct.Struct("<qQ")
PIECE = 1 << 20  # bytes
PING = 10_000  # ms of silence before a keepalive ping, and ms to wait for the answer to it
OPTIONS = (
    ("grpc.max_receive_message_length", PIECE),
    ("grpc.max_metadata_size", 8 << 10),
    ("grpc.absolute_max_metadata_size", 16 << 10),
    ("grpc.keepalive_time_ms", PING),
    ("grpc.keepalive_timeout_ms", PING),
    ("grpc.http2.max_pings_without_data", 0),  # no limit: a site may work for hours
)


class PendingMessage(NamedTuple):
    """A message on its way to a site, with the ticket (a random number) that its answer must show."""

    ticket: int
    message: bytes


def package() -> Foreign:
    """Import grpc; where it is missing, the error says how to install it."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else each failed connection prints lines at the server
    with extra("sites", "connections between sites", "missing-sites-extra"):
        import grpc
    return grpc


def claim(run: str, name: str, challenge: bytes) -> bytes:
    """Text that a site signs in order to fetch. It names the run, so that a server of another run cannot use the
    signature.
    """
    return "\n".join((FETCHES, run, name, challenge.hex())).encode()


def pieces(ticket: int, message: bytes) -> Iterator[bytes]:
    yield HEAD.pack(ticket, len(message))
    view = memoryview(message)
    for begin in range(0, len(message), PIECE):
        yield bytes(view[begin : begin + PIECE])


def begun(stream: Iterator[bytes], most: int) -> tuple[int, int] | None:
    """Ticket and length of the next message in a stream; None where the stream ends instead."""
    if (head := next(stream, None)) is None:
        return None
    if len(head) != HEAD.size:
        raise WireError("what came is not the beginning of a message", fix="ignore it", code="no-message")
    ticket, length = HEAD.unpack(head)
    if length > most:
        raise WireError(
            f"a message of {length} bytes; {most} are allowed",
            fix="both sides must have begun the same run from the same files",
            code="too-long",
        )
    return ticket, length


def rest(stream: Iterator[bytes], length: int) -> bytes:
    """Read the rest of a message, at most `length` bytes."""
    taken = io.BytesIO()  # grows with what comes, and gives its content away without a copy
    while (came := taken.tell()) < length:
        if not (piece := next(stream, b"")):
            raise WireError(f"{came} of {length} bytes of a message came", fix="ignore it", code="message-incomplete")
        if came + len(piece) > length:
            raise WireError(f"more than the {length} bytes of a message came", fix="ignore it", code="no-message")
        taken.write(piece)
    return taken.getvalue()


def check_loopback(address: str) -> None:
    """Refuse an address on another machine, for connections without certificates."""
    if not is_loopback(address):
        raise ConfigError(
            f"{address} can be reached from other machines, and there are no certificates",
            why="without them anyone on the way can read all messages, and anyone can claim to be a site",
            fix="give certificates (`sordino certificates DIR` makes some for a trial), or use 127.0.0.1",
            code="remote-without-tls",
        )


def is_loopback(address: str) -> bool:
    """True where host:port resolves to addresses of this machine only."""
    try:
        found = {str(one[4][0]) for one in socket.getaddrinfo(host_and_port(address)[0], None)}
    except OSError:
        return False  # a name without an address: it may get one elsewhere later
    return bool(found) and all(ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in found)
