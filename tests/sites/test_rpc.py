"""gRPC: messages come over as they are, whatever breaks on the way, and the server knows who is there."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from sordino.errors import BackendUnavailable, ConfigError
from sordino.sites import connecting, grpc_line
from sordino.sites import grpc_server as rpc
from sordino.sites.connecting import attend
from sordino.sites.grpc_line import PIECE, pieces
from sordino.sites.grpc_server import Rpc
from tests.helpers.lines import (
    HOST,
    MOST,
    RUN,
    Listed,
    Papers,
    answered,
    attending,
    channel,
    credentials,
    fetched,
    message_of,
    papers,
    plain,
    signing,
    until,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, seconds in (
        (rpc, "PULSE", 0.02),
        (rpc, "GRACE", 0.5),
        (connecting, "FIRST", 0.02),
        (connecting, "TICK", 0.01),
    ):
        monkeypatch.setattr(module, name, seconds)


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return papers(tmp_path_factory.mktemp("trial") / "ca", ["a", "b"])


@pytest.fixture
def server() -> Iterator[Rpc]:
    with plain() as made:
        yield made


def turned(message: bytes) -> bytes:
    return message[::-1]


def answer_to(server: Rpc, ticket: int) -> bytes:
    (arrived,) = server.came(10)
    assert arrived.ticket == ticket
    return arrived.message


# messages ------------------------------------------------------------------------------------------------------------


@pytest.mark.one_fast
@pytest.mark.parametrize("tls", [True, False])
def test_messages_of_every_length_come_over_as_they_are(tls: bool, trial: Papers) -> None:
    messages = [bytes(range(256)) * (n // 256) + bytes(n % 256) for n in (0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE)]
    with (
        Rpc(f"{HOST}:0", RUN, ["a", "b"], MOST, Listed(), trial.server if tls else None) as server,
        attending(server.port, "a", turned, trial.of("a") if tls else None) as at_a,
        attending(server.port, "b", turned, trial.of("b") if tls else None),
    ):
        for message in messages:
            sent = {server.send(to, lambda message=message: message) for to in "ab"}
            arrived = [*server.came(10), *server.came(10)]
            assert {one.ticket for one in arrived} == sent
            assert [one.message for one in arrived] == [turned(message)] * 2
        assert server.peers() == {"a", "b"}
        assert server.came(0) == []
    assert [standing for standing, _ in at_a.said][:3] == ["waiting", "working", "waiting"]


def test_a_site_gets_one_message_after_another_the_oldest_first(server: Rpc) -> None:
    sent = [server.send("a", lambda i=i: bytes([i])) for i in range(5)]
    with attending(server.port, "a", turned):
        assert [(one.ticket, one.message) for _ in range(5) for one in server.came(10)] == [
            (ticket, bytes([i])) for i, ticket in enumerate(sent)
        ]


def test_a_site_that_dies_at_work_gets_its_message_again(server: Rpc) -> None:
    made = list[int]()
    ticket = server.send("a", lambda: made.append(1) or b"message")  # type: ignore[func-returns-value]
    with channel(server.port) as dying:
        assert message_of(fetched(dying, "a")) == (ticket, b"message")
        assert server.peers() == {"a"}
    until(lambda: not server.peers())  # at once, not after the grace
    with attending(server.port, "a", turned):
        assert answer_to(server, ticket) == b"egassem"
    assert len(made) == 2  # it is written anew whenever it is handed out


def test_nobody_waits_for_what_was_cancelled(server: Rpc) -> None:
    server.cancel(server.send("a", lambda: b"never wanted"))
    late = server.send("a", lambda: b"wanted for a while")
    with channel(server.port) as site:
        assert message_of(fetched(site, "a")).ticket == late
        server.cancel(late)
        assert answered(site, pieces(late, b"x"), "a") == "OK"
        assert server.came(0.05) == []


def test_an_answer_counts_once_from_its_site_to_a_message_that_waits(server: Rpc) -> None:
    ticket = server.send("a", lambda: b"message")
    with channel(server.port) as site:
        assert answered(site, pieces(ticket, b"by b"), "b") == "OK"
        assert answered(site, pieces(ticket + 1, b"to nothing"), "a") == "OK"
        for answer in (b"first", b"second", b"third"):
            assert answered(site, pieces(ticket, answer), "a") == "OK"
    assert answer_to(server, ticket) == b"first"
    assert server.came(0.05) == []


def test_a_message_that_cannot_be_written_is_told_where_its_answer_is_awaited(server: Rpc) -> None:
    def fails() -> bytes:
        raise KeyError("no such thing")

    server.send("a", fails)
    with attending(server.port, "a", turned), pytest.raises(KeyError, match="no such thing"):
        server.came(10)


@pytest.mark.parametrize("too_long", ["message", "answer"])
def test_what_is_longer_than_may_be_is_not_taken_in(too_long: str, server: Rpc) -> None:
    reached = list[bytes]()

    def answer(message: bytes) -> bytes:
        reached.append(message)
        return bytes(MOST + 1)

    most = 10 if too_long == "message" else MOST
    ticket = server.send("a", lambda: b"eleven byte")
    with attending(server.port, "a", answer, most=most) as site:
        until(lambda: len([how for how, _ in site.said if how in ("cut off", "refused")]) > 1)  # and it goes on trying
        server.cancel(ticket)
        assert (reached == []) == (too_long == "message")
    assert server.came(0) == []


# who is there ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_who_waits_or_works_is_there_and_who_broke_off_is_not(server: Rpc) -> None:
    assert server.who == ["a", "b"]
    assert server.peers() == frozenset()
    free = threading.Event()

    def slow(message: bytes) -> bytes:
        free.wait(10)
        return message

    with attending(server.port, "a", slow) as site:
        until(lambda: server.peers() == {"a"})
        ticket = server.send("a", lambda: b"")
        until(lambda: ("working", "") in site.said)
        time.sleep(rpc.GRACE + 0.1)
        assert server.peers() == {"a"}  # at work, however long
        free.set()
        assert answer_to(server, ticket) == b""
        assert server.peers() == {"a"}  # nobody is absent between two calls
        until(lambda: site.said[-1] == ("waiting", ""))
    until(lambda: not server.peers())


def test_a_poll_that_ends_without_a_message_is_no_absence(server: Rpc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "POLL", 0.02)
    with attending(server.port, "a", turned) as site:
        until(lambda: bool(site.said))
        assert all(server.peers() == {"a"} for _ in range(100) if time.sleep(0.001) is None)
        monkeypatch.setattr(rpc, "POLL", 20)
        assert answer_to(server, server.send("a", lambda: b"x")) == b"x"
    assert {how for how, _ in site.said} == {"waiting", "working"}


def test_the_last_of_two_processes_of_one_name_is_the_site(server: Rpc) -> None:
    with channel(server.port) as first, channel(server.port) as second:
        old, new = fetched(first, "a"), fetched(second, "a")
        with pytest.raises(grpc.RpcError) as ended:
            next(old)
        assert ended.value.code() == grpc.StatusCode.CANCELLED
        ticket = server.send("a", lambda: b"message")
        assert message_of(new).ticket == ticket
        assert server.peers() == {"a"}
    server.cancel(ticket)
    with attending(server.port, "a", turned) as site, channel(server.port) as thief:
        until(lambda: bool(site.said))
        fetched(thief, "a")
        until(lambda: any("another process" in why for _, why in site.said))


@pytest.mark.parametrize("at_work", [False, True])
def test_who_is_revoked_while_connected_is_cut_off(at_work: bool, trial: Papers) -> None:
    allowed = {"a"}
    with (
        Rpc(f"{HOST}:0", RUN, ["a"], MOST, Listed(allowed.__contains__), trial.server) as server,
        channel(server.port, credentials(trial.ca, trial.another("a"))) as site,
    ):
        ticket = server.send("a", lambda: b"message") if at_work else 0
        call = fetched(site)
        if at_work:
            assert message_of(call).ticket == ticket
        allowed.clear()
        with pytest.raises(grpc.RpcError) as ended:
            next(call)
        assert (ended.value.code(), ended.value.details()) == (grpc.StatusCode.UNAUTHENTICATED, "")
        assert server.peers() == frozenset()
        assert answered(site, pieces(ticket, b"x")) == "UNAUTHENTICATED"
        assert server.came(0.05) == []


def test_a_list_that_cannot_be_read_allows_nobody(trial: Papers) -> None:
    def unreadable(name: str) -> bool:
        raise ConfigError("no list", code="no-list")

    with Rpc(f"{HOST}:0", RUN, ["a"], MOST, Listed(unreadable)) as server, attending(server.port, "a", turned) as site:
        until(lambda: bool(site.said))
        assert site.said[0][0] == "refused"
        assert server.peers() == frozenset()


# what breaks ----------------------------------------------------------------------------------------------------------


def test_a_server_that_begins_anew_takes_no_answer_to_a_message_of_its_former_life() -> None:
    """The site computes, the server goes and comes back: the answer is sent again and again, and then not wanted."""
    free = threading.Event()

    def slow(message: bytes) -> bytes:
        free.wait(10)
        return turned(message)

    with ExitStack() as stack:
        with plain() as first:
            first.send("a", lambda: b"old")
            site = stack.enter_context(attending(first.port, "a", slow))
            until(lambda: ("working", "") in site.said)
        free.set()
        until(lambda: site.said[-1][0] == "cut off")
        second = stack.enter_context(plain(port=first.port))
        assert answer_to(second, second.send("a", lambda: b"new")) == b"wen"


def test_an_answer_is_sent_again_until_it_is_taken(server: Rpc, monkeypatch: pytest.MonkeyPatch) -> None:
    failures, computed, take = [1, 2, 3], list[bytes](), Rpc._take

    def failing(self: Rpc, hole: Any, call: Any, arrived: Any) -> None:
        if failures:
            failures.pop()
            call.abort(grpc.StatusCode.UNAVAILABLE, "")
        take(self, hole, call, arrived)

    def once(message: bytes) -> bytes:
        computed.append(message)
        return turned(message)

    monkeypatch.setattr(Rpc, "_take", failing)
    ticket = server.send("a", lambda: b"message")
    with attending(server.port, "a", once):
        assert answer_to(server, ticket) == b"egassem"
    assert computed == [b"message"]


@pytest.mark.parametrize("where", ["nobody listens", "waiting", "pausing"])
def test_a_site_stops_when_it_is_told_to(where: str, server: Rpc, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "pausing":
        monkeypatch.setattr(connecting, "FIRST", 1000.0)
    with attending(server.port if where == "waiting" else 1, "a", turned) as site:
        until(lambda: bool(site.said))
        assert site.said[0][0] == ("waiting" if where == "waiting" else "cut off")
        begin = time.monotonic()
        site.stop.set()
        site.thread.join(5)
        assert time.monotonic() - begin < 1


def test_pauses_grow_up_to_a_limit_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = list[float]()
    monkeypatch.setattr(connecting, "FIRST", 0.25)
    monkeypatch.setattr(connecting, "pause", lambda seconds, stop: pauses.append(seconds))
    attend(f"{HOST}:1", "a", turned, lambda: len(pauses) > 12, None, MOST, signing("a"))
    assert max(pauses) <= connecting.LONGEST
    assert min(pauses[-3:]) >= connecting.LONGEST / 2
    assert pauses[0] <= 0.25
    assert len(set(pauses)) == len(pauses)


# what does not begin --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "[::]:0", "192.0.2.1:7443", "no-such-host.invalid:7443"])
@pytest.mark.parametrize("begin", [lambda at: Rpc(at, RUN, ["a"], MOST, Listed()), lambda at: joined(at, None)])
def test_without_certificates_nothing_leaves_this_machine(begin: Callable[[str], object], bind: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        begin(bind)
    assert refusal.value.code == "remote-without-tls"


def joined(address: str, tls: Any, name: str = "a") -> None:
    attend(address, name, turned, lambda: True, tls, MOST, signing(name))


@pytest.mark.parametrize("address", ["", "localhost", ":7443", "localhost:", "localhost:x"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        joined(address, None)
    assert refusal.value.code == "no-address"


def test_a_port_that_is_taken_is_refused(server: Rpc) -> None:
    with pytest.raises(ConfigError) as refusal:
        plain(port=server.port)
    assert refusal.value.code == "no-port"


def test_a_certificate_of_another_name_is_refused(trial: Papers) -> None:
    with pytest.raises(ConfigError) as refusal:
        joined(f"{HOST}:1", trial.of("b"))
    assert refusal.value.code == "other-name"


@pytest.mark.slow
def test_a_site_goes_on_with_its_certificate_while_it_is_renewed(trial: Papers, tmp_path: Path) -> None:
    own = replace(trial.of("a"), chain=tmp_path / "a.pem")
    whole = trial.of("a").chain.read_bytes()
    own.chain.write_bytes(whole)
    with ExitStack() as stack:
        with Rpc(f"{HOST}:0", RUN, ["a"], MOST, Listed(), trial.server) as first:
            site = stack.enter_context(attending(first.port, "a", turned, own))
            until(lambda: bool(site.said))
        own.chain.write_bytes(whole[:100])
        until(lambda: len([how for how, _ in site.said if how == "cut off"]) > 1)
        again = Rpc(f"{HOST}:{first.port}", RUN, ["a"], MOST, Listed(), trial.server)
        second = stack.enter_context(again)
        assert answer_to(second, second.send("a", lambda: b"xy")) == b"yx"


def test_a_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(BackendUnavailable, match=r"sordino\[sites\]") as refusal:
        grpc_line.package()
    assert refusal.value.code == "missing-sites-extra"


@pytest.mark.slow
def test_the_package_is_loaded_when_it_is_needed() -> None:
    program = "import sys, sordino.sites.grpc_server, sordino.sites.connecting; assert 'grpc' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False, cwd=Path(__file__).parents[2]).returncode == 0
