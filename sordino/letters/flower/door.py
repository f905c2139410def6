"""The door of a link: an HTTP server that knows eight paths of Flower's Fleet API, for sites on a list. What a request
claims is checked in this order: the path, the signature, the length, the digest, and whose node it speaks for.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, NamedTuple, TypeAlias

from sordino.letters.flower import interfaces as flower
from sordino.letters.flower.exchange import Exchange
from sordino.letters.flower.parcels import PART
from sordino.letters.flower.passes import DIGEST, SERVER, Passes

MOST = PART + (1 << 20)  # bytes of a body: one part, and what wraps it
HOLD = 5.0  # seconds for which a site that asks for a letter is kept waiting
UNKNOWN, TOO_LONG = 401, 413
BEGIN_ANEW, REPLACED = 409, 410  # this server knows no process of the site; it knows a later one
_TYPE = b"application/protobuf"

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Path(NamedTuple):
    """One thing that a site may ask of Flower."""

    request: Any  # the type of its body
    handle: Callable[[Any, Any], Any]  # with Flower's state


_handlers = flower.fleet_handlers
PATHS: Mapping[str, Path] = {
    "/v1/fleet/activate-node": Path(flower.ActivateNodeRequest, _handlers.activate_node),
    "/v1/fleet/deactivate-node": Path(flower.DeactivateNodeRequest, _handlers.deactivate_node),
    "/v1/fleet/send-node-heartbeat": Path(flower.SendNodeHeartbeatRequest, _handlers.send_node_heartbeat),
    "/v1/fleet/pull-messages": Path(
        flower.PullMessagesRequest, lambda asked, state: _handlers.pull_messages(asked, state, state.object_store)
    ),
    "/v1/fleet/push-messages": Path(flower.PushMessagesRequest, _handlers.push_messages),
    "/v1/fleet/push-object": Path(flower.PushObjectRequest, _handlers.push_object),
    "/v1/fleet/pull-object": Path(flower.PullObjectRequest, _handlers.pull_object),
    "/v1/fleet/confirm-message-received": Path(
        flower.ConfirmMessageReceivedRequest,
        lambda asked, state: _handlers.confirm_message_received(asked, state, state.object_store),
    ),
}


class NotServed(Exception):
    """A request that is answered with a number."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Door:
    """An ASGI application."""

    def __init__(self, run: str, passes: Passes, exchange: Exchange) -> None:
        self._run, self._passes, self._exchange = run, passes, exchange
        self._bells: dict[str, asyncio.Event] = {}
        self._visits: dict[str, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.closing = False

    def ring(self, site: str) -> None:
        """Something has come for a site that may be waiting. Called by any thread."""
        if (loop := self._loop) is not None and (bell := self._bells.get(site)) is not None:
            loop.call_soon_threadsafe(bell.set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status, body = 200, await self._answered(scope, receive)
        except NotServed as refusal:
            status, body = refusal.status, b""
        headers = [
            (b"content-type", _TYPE),
            (b"content-length", str(len(body)).encode()),
            (SERVER.encode(), self._run.encode()),
        ]
        if status != 200:  # nothing more is read from it
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answered(self, scope: Scope, receive: Receive) -> bytes:
        path = PATHS.get(scope["path"])
        if path is None or scope["method"] != "POST":
            raise NotServed(404)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if (site := self._passes.site(scope["path"], headers)) is None:
            raise NotServed(UNKNOWN)
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdecimal() and len(length) < 12 and int(length) <= MOST):
            raise NotServed(TOO_LONG)
        if self._exchange.too_much(site, int(length)):
            raise NotServed(TOO_LONG)
        body = await _read(receive, int(length))
        if hashlib.sha256(body).hexdigest() != headers.get(DIGEST):
            raise NotServed(UNKNOWN)
        asked = path.request()
        try:
            asked.ParseFromString(body)
        except flower.DecodeError:
            raise NotServed(400) from None
        return await self._done(site, path, asked, len(body), receive)

    async def _done(self, site: str, path: Path, asked: Any, size: int, receive: Receive) -> bytes:
        exchange = self._exchange
        await asyncio.to_thread(self._check_node, site, asked)
        exchange.alive(site, size)
        if isinstance(asked, flower.PullMessagesRequest):
            await self._wait_for_letter(site, asked, receive)
        try:
            answer = await asyncio.to_thread(path.handle, asked, exchange.state)
        except Exception:  # Flower's refusals, and whatever its handlers make of a request that is none
            raise NotServed(403) from None
        if isinstance(asked, flower.DeactivateNodeRequest):
            await asyncio.to_thread(exchange.leave, site)
        return bytes(answer.SerializeToString())

    def _check_node(self, site: str, asked: Any) -> None:
        """A site speaks for its own node only. A process that begins gets a new one."""
        if isinstance(asked, flower.ActivateNodeRequest):
            try:
                self._exchange.enter(site, asked.public_key)
            except ValueError:  # the token is taken
                raise NotServed(403) from None
            return
        node = asked.node_id if isinstance(asked, flower.DeactivateNodeRequest) else asked.node.node_id
        if (now := self._exchange.boxes[site].node) != node:
            raise NotServed(BEGIN_ANEW if now is None else REPLACED)
        if isinstance(asked, flower.PushMessagesRequest) and any(
            message.metadata.src_node_id != node for message in asked.messages_list
        ):
            raise NotServed(403)

    async def _wait_for_letter(self, site: str, asked: Any, receive: Receive) -> None:
        """Returns when there is a letter, or after a while; a site that has asked again meanwhile gets it there."""
        self._loop = asyncio.get_running_loop()
        visit = self._visits[site] = self._visits.get(site, 0) + 1
        bell = self._bells[site] = asyncio.Event()
        await asyncio.to_thread(self._exchange.settle, site)
        if not self._exchange.boxes[site].waiting and not self.closing:
            gone = await _first(bell.wait(), receive())
            if visit != self._visits[site]:
                self._check_node(site, asked)
                raise NotServed(BEGIN_ANEW)
            if gone:
                self._exchange.gone(site)
                raise NotServed(400)
        if visit == self._visits[site] and self._passes.key_of(site) is not None:
            await asyncio.to_thread(self._exchange.hand_out, site)


async def _first(bell: Awaitable[Any], hung_up: Awaitable[Any]) -> bool:
    """Whether somebody hangs up before a bell rings; nobody waits for long."""
    both = [asyncio.ensure_future(bell), asyncio.ensure_future(hung_up)]
    await asyncio.wait(both, timeout=HOLD, return_when=asyncio.FIRST_COMPLETED)
    gone = both[1].done() and not both[0].done()
    for one in both:
        one.cancel()
    return gone


async def _read(receive: Receive, length: int) -> bytes:
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] != "http.request":  # it hung up
            raise NotServed(400)
        body += event.get("body", b"")
        if len(body) > length:
            raise NotServed(TOO_LONG)
        if not event.get("more_body", False):
            return bytes(body)
