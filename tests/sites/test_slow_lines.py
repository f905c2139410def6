"""A line that is slow: how much it carries is seen, and an answer that comes too late is called that."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from sordino.sites import grpc_line
from sordino.sites.grpc_line import PIECE
from tests.helpers.lines import attending, plain, until


def test_how_fast_a_line_is_shows_in_what_it_carries_and_who_is_late_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = grpc_line.pieces

    def slowly(ticket: int, message: bytes) -> Iterator[bytes]:
        for piece in whole(ticket, message):
            time.sleep(0.05 if len(piece) > 16 else 0)
            yield piece

    free = threading.Event()

    def slow(message: bytes) -> bytes:
        free.wait(10)
        monkeypatch.setattr(grpc_line, "pieces", slowly)
        return bytes(4 * PIECE)

    with plain() as server, attending(server.port, "a", slow) as site:
        assert server.rate("a") is None
        ticket = server.send("a", lambda: b"message")
        until(lambda: ("working", "") in site.said)
        free.set()
        assert [len(one.message) for one in server.came(10)] == [4 * PIECE]
        assert 1e6 < (server.rate("a") or 0) < 4 * PIECE / 0.15
        free.clear()
        ticket = server.send("a", lambda: b"message")
        until(lambda: [how for how, _ in site.said].count("working") == 2)
        server.cancel(ticket)
        free.set()
        until(lambda: "late" in [how for how, _ in site.said])
        assert next(why for how, why in site.said if how == "late").startswith("the server waits no more for it")
    assert not [how for how, _ in site.said if how in ("cut off", "refused")]
