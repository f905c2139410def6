"""Who may not speak is not heard: no handler, no waiting message and no answer is reached by anybody but the sites of a
run, and by those only as far as they may.
"""

from __future__ import annotations

import random
import resource
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sordino.engine.commands import Refused, read_answer
from sordino.engine.site import Site
from sordino.errors import WireError
from sordino.sites.grpc_line import HEAD, PIECE, pieces
from sordino.sites.grpc_server import Rpc
from sordino.transport.message import DOMAIN, LENGTH, SIGNATURE, Message, Signer, peek
from sordino.transport.request_handler import RequestHandler
from sordino.transport.run_events import RunEvent
from tests.helpers.lines import (
    DAY,
    HOST,
    MOST,
    NOW,
    RUN,
    Listed,
    Papers,
    Times,
    answered,
    channel,
    credentials,
    fetched,
    key_of,
    message_of,
    papers,
    pems,
    signing,
    stranger,
    until,
)

# the line -------------------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A server between machines, with a message for each of its sites. `c` is one of them and revoked."""

    papers: Papers
    server: Rpc
    tickets: dict[str, int]
    asked: list[str]  # whose name was looked up
    written: list[str]  # whose message was handed out


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return papers(tmp_path_factory.mktemp("trial") / "ca", ["a", "b", "c"])


@pytest.fixture
def place(trial: Papers) -> Iterator[Place]:
    asked, written = list[str](), list[str]()

    def allowed(name: str) -> bool:
        asked.append(name)
        return name != "c"

    def writes(name: str) -> bytes:
        written.append(name)
        return name.encode()

    with Rpc(f"{HOST}:0", RUN, ["a", "b", "c"], MOST, Listed(allowed), trial.server) as server:
        tickets = {name: server.send(name, lambda name=name: writes(name)) for name in "abc"}  # type: ignore[misc]
        yield Place(trial, server, tickets, asked, written)


def with_(made: Callable[[Papers], Any], name: str | None = None) -> Callable[[Place], set[str]]:
    """Tries to fetch, and to answer the message of `a`, with these credentials."""

    def attempt(at: Place) -> set[str]:
        with channel(at.server.port, made(at.papers)) as opened:
            answer = answered(opened, pieces(at.tickets["a"], b"forged"), name)
            try:
                fetched(opened, name)
            except grpc.RpcError as error:
                return {answer, error.code().name}
        return {answer, "OK"}

    return attempt


def sends(*messages: bytes, ticket_of: str = "a", by: str = "a", method: str = "Answer") -> Callable[[Place], set[str]]:
    """A site of the run sends these messages, behind a beginning with this ticket where there is none."""

    def attempt(at: Place) -> set[str]:
        ticket = at.tickets.get(ticket_of, 7)
        with channel(at.server.port, credentials(at.papers.ca, at.papers.another(by))) as opened:
            told = [HEAD.pack(ticket, HEAD.unpack(one)[1]) if len(one) == HEAD.size else one for one in messages]
            return {answered(opened, told, method=method)}

    return attempt


def plaintext(at: Place) -> set[str]:
    with channel(at.server.port) as opened:
        return {answered(opened, pieces(at.tickets["a"], b"forged"), "a")}


def with_headers(size: int) -> Callable[[Place], set[str]]:
    def attempt(at: Place) -> set[str]:
        with channel(at.server.port, credentials(at.papers.ca, at.papers.another("a"))) as opened:
            return {answered(opened, pieces(at.tickets["a"], b"forged"), "x" * size)}

    return attempt


def shaken_hands(version: ssl.TLSVersion, at: Place) -> str:
    """The version in which hands were shaken, this one or none; else how the server broke it off."""
    own = at.papers.of("a")
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = made.maximum_version = version
    made.set_ciphers("DEFAULT:@SECLEVEL=0")
    made.set_alpn_protocols(["h2"])
    made.load_verify_locations(own.ca)
    made.load_cert_chain(own.chain, own.key)
    with socket.create_connection((HOST, at.server.port), 10) as line:
        try:
            with made.wrap_socket(line, server_hostname=HOST) as spoken:
                return str(spoken.version())
        except ssl.SSLError as error:
            return str(error.reason)


def begin(length: int) -> bytes:
    return HEAD.pack(0, length)


NO_LINE, UNKNOWN, NOT_A_MESSAGE = {"UNAVAILABLE"}, {"UNAUTHENTICATED"}, {"INVALID_ARGUMENT"}
PAST, FUTURE = Times(NOW - 2 * DAY, NOW - DAY), Times(NOW + DAY, NOW + 2 * DAY)
NEVER_HEARD = {
    "no certificate": with_(lambda p: credentials(p.ca, None)),
    "a certificate of another CA": with_(lambda p: credentials(p.ca, p.another("a", by=stranger()))),
    "a certificate that has expired": with_(lambda p: credentials(p.ca, p.another("a", PAST))),
    "a certificate that does not hold yet": with_(lambda p: credentials(p.ca, p.another("a", FUTURE))),
    "a server's certificate": with_(lambda p: credentials(p.ca, p.another("a", hosts=[HOST]))),
    "a server that the site does not believe": with_(lambda p: credentials(stranger(), p.another("a"))),
    "no TLS": plaintext,
}
HEARD_AND_REFUSED = {
    "a name that is no site": (with_(lambda p: credentials(p.ca, p.another("d"))), UNKNOWN),
    "a site's name in other capitals": (with_(lambda p: credentials(p.ca, p.another("A"))), UNKNOWN),
    "a site that is revoked": (with_(lambda p: credentials(p.ca, p.another("c"))), UNKNOWN),
    "a name that is said beside the certificate": (with_(lambda p: credentials(p.ca, p.another("d")), "a"), UNKNOWN),
    "an unknown method": (sends(begin(1), b"x", method="Reflect"), {"UNIMPLEMENTED"}),
    "a piece that is too long": (sends(begin(2 * PIECE), bytes(PIECE + 1)), {"RESOURCE_EXHAUSTED"}),
    "a message that is too long": (sends(begin(MOST + 1), b"x"), {"OUT_OF_RANGE"}),
    "headers that are too long": (with_headers(1 << 16), {"RESOURCE_EXHAUSTED"}),
    "no message": (sends(), NOT_A_MESSAGE),
    "no beginning of a message": (sends(b"x"), NOT_A_MESSAGE),
    "a message that is cut": (sends(begin(3), b"xx"), NOT_A_MESSAGE),
    "more than was announced": (sends(begin(1), b"xx"), NOT_A_MESSAGE),
    "an answer to another site's message": (sends(begin(1), b"x", by="b"), {"OK"}),
    "an answer to nothing": (sends(begin(1), b"x", ticket_of="nobody"), {"OK"}),
}


@pytest.mark.parametrize("why", NEVER_HEARD)
def test_who_has_no_right_certificate_never_speaks_to_the_server(why: str, place: Place) -> None:
    assert NEVER_HEARD[why](place) == NO_LINE
    assert (place.asked, place.written, place.server.came(0)) == ([], [], [])


@pytest.mark.parametrize("why", HEARD_AND_REFUSED)
def test_what_may_not_be_said_reaches_nobody(why: str, place: Place) -> None:
    attempt, reason = HEARD_AND_REFUSED[why]
    assert attempt(place) == reason
    assert (place.written, place.server.came(0)) == ([], [])


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_old_versions_of_tls_are_not_spoken(place: Place) -> None:
    assert shaken_hands(ssl.TLSVersion.TLSv1_1, place) in (
        "TLSV1_ALERT_PROTOCOL_VERSION",
        "UNEXPECTED_EOF_WHILE_READING",
    )
    assert shaken_hands(ssl.TLSVersion.TLSv1_2, place) == "TLSv1.2"  # so it was the version
    assert (place.asked, place.written, place.server.came(0)) == ([], [], [])


@pytest.mark.parametrize("host", ["elsewhere.example", "192.0.2.1"])
def test_a_site_speaks_to_no_server_of_another_host(host: str, trial: Papers) -> None:
    own = trial.folder.parent / host
    own.mkdir()
    for path, data in zip((own / "x.pem", own / "x.key"), pems(trial.another("server", hosts=[host])), strict=True):
        path.write_bytes(data)
    files = replace(trial.server, chain=own / "x.pem", key=own / "x.key")
    with Rpc(f"{HOST}:0", RUN, ["a"], MOST, Listed(), files) as server:
        at = Place(trial, server, {"a": server.send("a", lambda: b"message")}, [], [])
        assert with_(lambda p: credentials(p.ca, p.another("a")))(at) == NO_LINE


def test_a_site_of_the_run_is_heard(place: Place) -> None:
    """The positive control."""
    with channel(place.server.port, credentials(place.papers.ca, place.papers.another("a"))) as site:
        assert message_of(fetched(site)) == (place.tickets["a"], b"a")
        assert answered(site, pieces(place.tickets["a"], b"answer")) == "OK"
    assert place.server.came(10) == [(place.tickets["a"], b"answer")]
    assert place.written == ["a"]


def test_a_twin_with_a_certificate_of_the_same_name_fetches_nothing_and_displaces_nobody(
    trial: Papers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CA may make out two certificates to one name; the messages are for the key on the list. The twin is turned
    away, and the operator is told from where it came.
    """
    noted, own = list[RunEvent](), credentials(trial.ca, trial.another("a"))
    with (
        Rpc(f"{HOST}:0", RUN, ["a"], MOST, Listed(), trial.server, noted.append) as server,
        channel(server.port, own) as site,
        channel(server.port, own) as twin,
    ):
        call, ticket = fetched(site), server.send("a", lambda: b"message")
        assert message_of(call) == (ticket, b"message")
        for sign in (
            key_of("b").sign,
            signing("b"),
            signing("a", "other run"),
            lambda challenge: b"",
            key_of("a").sign,
        ):
            with pytest.raises(grpc.RpcError) as refusal:
                fetched(twin, sign=sign)
            assert refusal.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert answered(twin, pieces(ticket ^ 1, b"garbage")) == "OK"  # the ticket is not told to it
        assert (server.peers(), server.came(0)) == ({"a"}, [])
        assert answered(site, pieces(ticket, b"answer")) == "OK"
        assert server.came(10) == [(ticket, b"answer")]
        assert {event.event for event in noted} == {"turned away"}
        assert all("127.0.0.1" in event.why and "not the key that is on the list" in event.why for event in noted)
        call = fetched(site)
        fetched(twin)  # with the key it is the site, started once more; and that is told, too
        until(lambda: noted[-1].event == "displaced")
        # the broken twin: a server that looks at the certificate alone
        monkeypatch.setattr(Rpc, "_proves", lambda *_: True)
        stolen = server.send("a", lambda: b"the model")
        assert message_of(fetched(twin, sign=key_of("b").sign)) == (stolen, b"the model")


def test_two_messages_have_tickets_that_do_not_follow_from_each_other(place: Place) -> None:
    first, second, third = (place.server.send("a", lambda: b"") for _ in range(3))
    assert abs(second - first) > 1 << 30
    assert second - first != third - second


@pytest.mark.parametrize(("name", "status"), [("a", "OK"), ("c", "UNAUTHENTICATED")])
def test_of_a_refused_message_next_to_nothing_is_taken_in(name: str, status: str, trial: Papers) -> None:
    """What is sent all the same lies in the buffers of the connection."""
    many, sent = 64, list[int]()

    def long(ticket: int) -> Iterator[bytes]:
        yield HEAD.pack(ticket, many * PIECE)
        for i in range(many):
            sent.append(i)
            yield bytes(PIECE)

    with (
        Rpc(f"{HOST}:0", RUN, ["a", "c"], many * PIECE, Listed(lambda who: who == "a"), trial.server) as server,
        channel(server.port, credentials(trial.ca, trial.another(name))) as site,
    ):
        assert answered(site, long(server.send(name, lambda: b""))) == status
    assert (len(sent) == many) if status == "OK" else (len(sent) < many / 4)


# messages ------------------------------------------------------------------------------------------------------------

SERVERS, OTHERS = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
SERVER = Signer("server", "run", "experiment", "agreement", SERVERS)
MINE = Signer("a", "run", "experiment", "agreement", OTHERS, {"server": SERVERS.public_key()})
SAID = {"do": "keep", "step": 3}
BODIES = [b"first body", bytes(1000), b""]


def written(by: Signer = SERVER, to: str = "a", stage: int = 0) -> bytes:
    return by.write(to, stage, SAID, BODIES)


def head_end(message: bytes) -> int:
    return int(LENGTH.unpack_from(message)[0]) + LENGTH.size


def with_signature_of(message: bytes, other: bytes) -> bytes:
    here, there = head_end(message), head_end(other)
    return message[:here] + other[there : there + SIGNATURE] + message[here + SIGNATURE :]


def changed(message: bytes, at: int) -> bytes:
    return message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]


def twice(message: bytes) -> bytes:
    """With a name twice in its head, signed by its sender: two readers could take it for two messages."""
    end, text = head_end(message), message[LENGTH.size : head_end(message)].replace(b'"to":', b'"to": "b", "to":')
    return LENGTH.pack(len(text)) + text + SERVERS.sign(DOMAIN + text) + message[end + SIGNATURE :]


GOOD = written()
REFUSED = {
    "a name that stands twice": (twice(GOOD), "no-message"),
    "signed with another key": (written(replace(SERVER, key=OTHERS)), "wrong-signature"),
    "signed by nobody": (written(replace(SERVER, key=None)), "wrong-signature"),
    "the signature of another message": (with_signature_of(GOOD, written(stage=1)), "wrong-signature"),
    "a head that was changed": (GOOD.replace(b'"step": 3', b'"step": 4'), "wrong-signature"),
    "a body that was changed": (changed(GOOD, len(GOOD) - 1), "no-message"),
    "bodies that change places": (GOOD[:-1010] + bytes(1000) + b"first body", "no-message"),
    "a body that is cut": (GOOD[:-1], "no-message"),
    "a body that is longer": (GOOD + b"x", "no-message"),
    "to another receiver": (written(to="b"), "other-receiver"),
    "of another run": (written(replace(SERVER, run="before")), "other-run"),
    "of another experiment": (written(replace(SERVER, config="mine")), "other-experiment"),
    "of another agreement": (written(replace(SERVER, agreement="mine")), "other-agreement"),
    "by who is not on the list": (written(replace(SERVER, name="b", key=OTHERS)), "unknown-sender"),
    "by another site in the server's name": (written(replace(MINE, name="server")), "wrong-signature"),
}


class Reached(AssertionError): ...


def nobody(stage: int) -> Site:
    raise Reached


@pytest.mark.parametrize("why", REFUSED)
def test_a_message_that_is_not_believed_reaches_no_client(why: str) -> None:
    message, code = REFUSED[why]
    answer = read_answer(Signer("server", "run", "experiment", "agreement").read(to_server(message)).head.said)
    assert isinstance(answer, Refused)
    assert answer.code == code


def to_server(message: bytes) -> bytes:
    """What a handler answers, as if it had been asked by the server."""
    answer = RequestHandler(MINE, nobody).answer(message)
    head = peek(answer)
    return Signer("a", "run", "experiment", "agreement").write("server", head.stage, head.said)


def test_a_message_that_is_believed_reaches_its_clients() -> None:
    """The positive control: this command has no bodies, so it is written without."""
    with pytest.raises(Reached):
        RequestHandler(MINE, nobody).answer(SERVER.write("a", 0, SAID))


def damaged(draw: random.Random) -> bytes:
    """A message with bytes changed, cut out, put in, or its lengths overwritten."""
    message = bytearray(GOOD)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(message)) if draw.random() < 0.3 else draw.randrange(min(len(message), 400))
        match draw.randrange(5):
            case 0:
                message[at] ^= 1 << draw.randrange(8)
            case 1:
                del message[at : at + draw.randint(1, 50)]
            case 2:
                message[at:at] = draw.randbytes(draw.randint(1, 50))
            case 3:
                message[: LENGTH.size] = draw.choice([draw.randbytes(4), b"\xff" * 4, bytes(4)])
            case _:
                words = [b"\xff" * 4, b"[[[[", b"1e99", b"null", b'"":0', b"\x00\xd8\xff\xfe"]
                message[at : at + 4] = draw.choice(words)
        if not message:
            break
    return bytes(message)


@pytest.mark.parametrize("many", [400, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("known", [True, False])
def test_damaged_messages_are_refused_or_the_same(many: int, known: bool) -> None:
    """Signed ones. Where nobody signs, a message may say something else, and it is a message all the same."""
    mine, draw = MINE if known else replace(MINE, known=None), random.Random(many)
    before, accepted = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
    for _ in range(many):
        message = damaged(draw)
        try:
            found = mine.read(message)
        except WireError:
            continue
        accepted += 1
        assert isinstance(found, Message)
        assert not known or message == GOOD
    assert accepted < many / 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KB
