"""Calls with a certificate of the same name that send nothing: they cut off no site, and hold no threads of the server."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from sordino.sites import grpc_server
from sordino.sites.grpc_line import pieces
from sordino.sites.grpc_server import Rpc
from tests.helpers.lines import (
    HOST,
    MOST,
    RUN,
    Listed,
    Papers,
    answered,
    channel,
    credentials,
    fetched,
    message_of,
    papers,
    signing,
    until,
)


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return papers(tmp_path_factory.mktemp("trial") / "ca", ["a"])


@pytest.fixture
def server(trial: Papers) -> Iterator[Rpc]:
    with Rpc(f"{HOST}:0", RUN, ["a"], MOST, Listed(), trial.server) as made:
        yield made


def line(stack: ExitStack, trial: Papers, server: Rpc) -> Any:
    """A connection with a certificate of its own, made out to the site's name."""
    return stack.enter_context(channel(server.port, credentials(trial.ca, trial.another("a"))))


def silent(stack: ExitStack, opened: Any, method: str) -> Any:
    """A call that is open and sends nothing."""
    nothing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    stack.callback(nothing.put, None)
    stub = opened.stream_stream(f"/sordino.Post/{method}")
    return stub(iter(nothing.get, None), timeout=8)


def test_calls_that_prove_nothing_do_not_cut_off_a_site_that_proves(trial: Papers, server: Rpc) -> None:
    with ExitStack() as stack:
        site, twin = line(stack, trial, server), line(stack, trial, server)
        turned: list[grpc.StatusCode] = []

        def slow(challenge: bytes) -> bytes:
            for _ in range(3):  # while the site signs
                turned.append(silent(stack, twin, "Fetch").code())
            return signing("a")(challenge)

        ticket = server.send("a", lambda: b"message")
        assert message_of(fetched(site, sign=slow)) == (ticket, b"message")
        assert turned == [grpc.StatusCode.UNAVAILABLE] * 3


def test_the_certificate_that_has_proved_goes_before_one_that_has_not(trial: Papers, server: Rpc) -> None:
    with ExitStack() as stack:
        site, twin = line(stack, trial, server), line(stack, trial, server)
        fetched(site).cancel()
        held = silent(stack, twin, "Fetch")
        assert next(held)
        fetched(site)
        assert held.code() == grpc.StatusCode.CANCELLED
        held = silent(stack, twin, "Answer")
        until(lambda: "Answer" in server._sites["a"].silent)
        assert answered(site, pieces(7, b"late")) == "OK"
        assert held.code() == grpc.StatusCode.CANCELLED


def test_silent_answers_hold_one_thread_and_no_longer_than_their_time(
    trial: Papers, server: Rpc, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        twin, site = line(stack, trial, server), line(stack, trial, server)
        first = silent(stack, twin, "Answer")
        until(lambda: "Answer" in server._sites["a"].silent)
        others = [silent(stack, twin, "Answer") for _ in range(12)]  # more than there are threads
        codes: list[grpc.StatusCode] = []
        thread = threading.Thread(target=lambda: codes.extend(one.code() for one in others))
        thread.start()
        thread.join(10)
        turned = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}  # at once, also beyond the threads
        assert len(codes) == 12
        assert turned.issuperset(codes), "those who send nothing hold the threads"
        ticket = server.send("a", lambda: b"message")
        assert message_of(fetched(site)) == (ticket, b"message")
        monkeypatch.setattr(grpc_server, "PROMPT", 0.0)
        other = line(stack, trial, server)
        assert answered(other, pieces(ticket, b"answer")) == "OK"  # though nobody knows its certificate
        assert first.code() == grpc.StatusCode.CANCELLED
