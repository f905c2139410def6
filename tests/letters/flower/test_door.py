"""The door, request by request: what it serves, to whom, and what it reads before it knows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: .ci/flower runs these tests in an environment of its own")

from sordino.letters.flower import door as front
from sordino.letters.flower import interfaces as flower
from sordino.letters.flower.door import MOST, PATHS, Door
from sordino.letters.flower.exchange import Exchange
from sordino.letters.flower.parcels import message_to, reply_to, taken_apart
from sordino.letters.flower.passes import Pass, Passes
from tests.helpers.flower_links import RUN, SITES, site_key

pytestmark = pytest.mark.slow
ENTER, LEAVE, BEAT = "/v1/fleet/activate-node", "/v1/fleet/deactivate-node", "/v1/fleet/send-node-heartbeat"
PULL, PUSH, PUT = "/v1/fleet/pull-messages", "/v1/fleet/push-messages", "/v1/fleet/push-object"
GET, CONFIRM = "/v1/fleet/pull-object", "/v1/fleet/confirm-message-received"
LARGEST = 1 << 20


class Guarded:
    """A door without a network around it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(front, "HOLD", 0.05)
        self.exchange = Exchange(SITES, LARGEST)
        self.passes = Passes(RUN, {name: site_key(name).public_key() for name in SITES})
        self.door = Door(RUN, self.passes, self.exchange)
        self.read = 0  # bytes of bodies

    def asks(
        self,
        path: str,
        body: bytes = b"",
        site: str = "a",
        headers: Mapping[str, str] | None = None,
        method: str = "POST",
        sent: bytes | None = None,
        **changed: str,
    ) -> tuple[int, bytes]:
        told = Pass(RUN, site, site_key(site)).headers(path, body) if headers is None else dict(headers)
        told |= {"content-length": str(len(body))} | {name.replace("_", "-"): value for name, value in changed.items()}
        answered: list[Any] = []
        parts = [body if sent is None else sent]

        async def receive() -> Any:
            if not parts:
                await asyncio.Event().wait()  # it stays, and says no more
            part = parts.pop()
            self.read += len(part)
            return {"type": "http.request", "body": part, "more_body": False}

        async def send(event: Any) -> None:
            answered.append(event)

        raw = [(name.encode(), value.encode()) for name, value in told.items()]
        asyncio.run(self.door({"type": "http", "method": method, "path": path, "headers": raw}, receive, send))
        return answered[0]["status"], answered[1]["body"]

    def enters(self, site: str = "a", token: bytes | None = None) -> Any:
        asked = flower.ActivateNodeRequest(public_key=token or site.encode() * 32, heartbeat_interval=30)
        status, body = self.asks(ENTER, asked.SerializeToString(), site)
        assert status == 200, status
        return flower.Node(node_id=flower.fleet_handlers.ActivateNodeResponse.FromString(body).node_id)


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> Guarded:
    return Guarded(monkeypatch)


def test_a_signed_request_is_served(guarded: Guarded) -> None:
    node = guarded.enters()
    assert guarded.exchange.peers() == {"a"}
    assert (
        guarded.asks(BEAT, flower.SendNodeHeartbeatRequest(node=node, heartbeat_interval=30).SerializeToString())[0]
        == 200
    )
    assert guarded.asks(PULL, flower.PullMessagesRequest(node=node).SerializeToString()) == (200, b"")
    assert guarded.asks(LEAVE, flower.DeactivateNodeRequest(node_id=node.node_id).SerializeToString())[0] == 200
    assert guarded.exchange.peers() == frozenset()


def test_what_nobody_signed_is_not_read(guarded: Guarded) -> None:
    body = bytes(MOST)
    own = Pass(RUN, "a", site_key("a")).headers(PUT, body)
    for path in PATHS:
        assert guarded.asks(path, body, headers={}) == (401, b"")
        assert guarded.asks(path, body, headers=Pass(RUN, "a", site_key("thief")).headers(path, body)) == (401, b"")
    assert guarded.asks(PUT, body, headers=own, sordino_digest="0" * 64) == (401, b"")
    assert guarded.read == 0


def test_a_door_that_believes_everybody_reads_it(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the test above."""
    monkeypatch.setattr(Passes, "site", lambda *_: "a")
    guarded.asks(PUT, bytes(LARGEST), headers={})
    assert guarded.read == LARGEST


@pytest.mark.parametrize(
    "path",
    [
        "/v1/fleet/get-fab",
        "/v1/fleet/get-run",
        "/v1/fleet/register-node",
        "/v1/fleet/unregister-node",
        "/v1/control/start-run",
        "/v1/control/list-nodes",
        "/v1/runtime/acquire-task",
        "/v1/fleet/pull-messages/",
        "/v1/fleet//pull-messages",
        "/V1/FLEET/PULL-MESSAGES",
        "/docs",
        "/openapi.json",
        "/health",
        "/",
        "",
    ],
)
def test_other_paths_do_not_exist_even_for_a_site(guarded: Guarded, path: str) -> None:
    guarded.enters()
    read = guarded.read
    assert guarded.asks(path, b"x") == (404, b"")
    assert guarded.read == read


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "OPTIONS", "post"])
def test_other_methods_neither(guarded: Guarded, method: str) -> None:
    assert guarded.asks(PULL, method=method) == (404, b"")


@pytest.mark.parametrize("length", ["", "-1", "x", str(MOST + 1), "9" * 4000, "1e3", "٣"])
def test_a_length_that_is_none_or_too_long_is_refused_unread(guarded: Guarded, length: str) -> None:
    headers = Pass(RUN, "a", site_key("a")).headers(PULL, b"x")
    raw = {"content_length": length.encode().decode("latin-1")}
    assert guarded.asks(PULL, b"x", headers=headers, **raw)[0] == 413
    assert guarded.read == 0


def test_a_body_that_is_not_the_signed_one_reaches_no_handler(guarded: Guarded) -> None:
    node = guarded.enters()
    body = flower.PullMessagesRequest(node=node).SerializeToString()
    assert guarded.asks(PULL, body, sent=body[:-1] + b"\x00")[0] == 401
    assert guarded.asks(PULL, body, sent=body + b"more")[0] == 413
    assert guarded.asks(PULL, body, sent=b"")[0] == 401


@pytest.mark.parametrize("path", sorted(PATHS))
@pytest.mark.parametrize("body", [b"\xff" * 30, b"\x0a\xff\xff\xff\xff\x0f", b"", b"\x08\x01", bytes(1000)])
def test_signed_rubbish_is_refused(guarded: Guarded, path: str, body: bytes) -> None:
    guarded.enters()
    assert guarded.asks(path, body)[0] in (400, 403, 409, 410)


def speaking_for(node: Any) -> list[tuple[str, Any]]:
    about = flower.message_to_proto(taken_apart(message_to(node.node_id, 1, b""))[0])
    return [
        (LEAVE, flower.DeactivateNodeRequest(node_id=node.node_id)),
        (BEAT, flower.SendNodeHeartbeatRequest(node=node, heartbeat_interval=30)),
        (PULL, flower.PullMessagesRequest(node=node)),
        (PUSH, flower.PushMessagesRequest(node=node, messages_list=[about])),
        (PUT, flower.PushObjectRequest(node=node, object_id="0" * 64)),
        (GET, flower.PullObjectRequest(node=node, object_id="0" * 64)),
        (CONFIRM, flower.ConfirmMessageReceivedRequest(node=node, message_object_id="0" * 64)),
    ]


def test_a_site_speaks_for_no_other_node(guarded: Guarded) -> None:
    guarded.enters("a")
    other = guarded.enters("b")
    for path, asked in speaking_for(other):
        assert guarded.asks(path, asked.SerializeToString(), "a")[0] == 410
    assert guarded.exchange.peers() == {"a", "b"}


def test_a_door_that_does_not_look_at_the_node_lets_it(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the test above."""
    guarded.enters("a")
    path, asked = speaking_for(guarded.enters("b"))[1]
    monkeypatch.setattr(Door, "_check_node", lambda *_: None)
    assert guarded.asks(path, asked.SerializeToString(), "a")[0] == 200


def test_a_site_that_has_not_begun_is_told_to(guarded: Guarded) -> None:
    for path, asked in speaking_for(flower.Node(node_id=5)):
        assert guarded.asks(path, asked.SerializeToString())[0] == 409


def test_a_token_that_is_taken_is_refused(guarded: Guarded) -> None:
    guarded.enters("a", b"token" * 6)
    asked = flower.ActivateNodeRequest(public_key=b"token" * 6, heartbeat_interval=30)
    assert guarded.asks(ENTER, asked.SerializeToString(), "b")[0] == 403
    assert guarded.exchange.peers() == {"a"}


# answers --------------------------------------------------------------------------------------------------------------


def taken(guarded: Guarded, site: str, node: Any) -> Any:
    """The letter that a site takes."""
    status, body = guarded.asks(PULL, flower.PullMessagesRequest(node=node).SerializeToString(), site)
    assert status == 200
    return flower.message_from_proto(flower.fleet_handlers.PullMessagesResponse.FromString(body).messages_list[0])


def pushed(guarded: Guarded, site: str, node: Any, reply: Any, source: int | None = None) -> int:
    """What becomes of an answer."""
    message, tree, objects = taken_apart(reply)
    proto = flower.message_to_proto(message)
    if source is not None:
        proto.metadata.src_node_id = source
    asked = flower.PushMessagesRequest(node=node, messages_list=[proto], message_object_trees=[tree])
    status, body = guarded.asks(PUSH, asked.SerializeToString(), site)
    if status != 200:
        return status
    told = flower.fleet_handlers.PushMessagesResponse.FromString(body)
    for name in told.objects_to_push:
        part = flower.PushObjectRequest(
            node=node,
            run_id=reply.metadata.run_id,
            object_id=name,
            object_content=objects[name].deflate(),
            session_id=told.session_id,
        )
        status, _ = guarded.asks(PUT, part.SerializeToString(), site)
        if status != 200:
            return status
    return 200


def test_an_answer_counts_for_the_site_that_was_asked(guarded: Guarded) -> None:
    nodes = {site: guarded.enters(site) for site in SITES}
    ticket = guarded.exchange.send("a", lambda: b"letter")
    letter = taken(guarded, "a", nodes["a"])
    forged = reply_to(letter, b"forged")
    assert pushed(guarded, "b", nodes["b"], forged) == 403  # in the name of the other node
    assert pushed(guarded, "b", nodes["b"], forged, nodes["b"].node_id) == 200  # in its own: Flower keeps nothing of it
    guarded.exchange.settle("b")
    assert guarded.exchange.came(0) == []
    assert pushed(guarded, "a", nodes["a"], reply_to(letter, b"answer")) == 200
    guarded.exchange.settle("a")
    assert guarded.exchange.came(0) == [(ticket, b"answer")]


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"0": {"part": 3}},
        {"0": {"other": b"x"}},
        {"1": {"part": b"x"}},
    ],
)
def test_what_is_no_answer_is_asked_again(guarded: Guarded, content: Any) -> None:
    """An empty parcel is an empty letter, which the letterhead will not read."""
    node = guarded.enters()
    guarded.exchange.send("a", lambda: b"letter")
    letter = taken(guarded, "a", node)
    records = flower.RecordDict({name: flower.ConfigRecord(record) for name, record in content.items()})
    assert pushed(guarded, "a", node, flower.Message(records, reply_to=letter)) == 200
    guarded.exchange.settle("a")
    assert [bytes(answer) for _, answer in guarded.exchange.came(0)] == ([] if content else [b""])
    assert len(guarded.exchange.boxes["a"].waiting) == (1 if content else 0)


def test_an_answer_that_is_too_long_is_not_taken_in(guarded: Guarded) -> None:
    """Nor are parts that belong to nothing; the letter waits for another answer."""
    node = guarded.enters()
    ticket = guarded.exchange.send("a", lambda: b"letter")
    letter = taken(guarded, "a", node)
    assert pushed(guarded, "a", node, reply_to(letter, bytes(3 * LARGEST))) == front.TOO_LONG
    part = flower.PushObjectRequest(node=node, object_id="0" * 64, object_content=bytes(LARGEST)).SerializeToString()
    assert {guarded.asks(PUT, part)[0] for _ in range(8)} <= {403, front.TOO_LONG}
    assert guarded.read < 3 * LARGEST
    guarded.exchange.settle("a")
    again = taken(guarded, "a", node)
    assert pushed(guarded, "a", node, reply_to(again, b"x" * LARGEST)) == 200
    guarded.exchange.settle("a")
    assert guarded.exchange.came(0) == [(ticket, b"x" * LARGEST)]


def test_state_does_not_grow_with_letters(guarded: Guarded) -> None:
    node = guarded.enters()
    state = guarded.exchange.state
    for i in range(20):
        guarded.exchange.send("a", lambda i=i: b"letter %d" % i)
        letter = taken(guarded, "a", node)
        assert pushed(guarded, "a", node, reply_to(letter, b"answer %d" % i)) == 200
        guarded.exchange.settle("a")
    assert len(guarded.exchange.came(0)) == 1
    assert (state.num_message_ins(), state.num_message_res(), len(state.object_store)) == (0, 0, 0)
