"""The site's end of Flower: a node that takes letters and gives answers. It asks for messages and their objects only:
never for an app, and nothing that it is sent is installed, imported or run.

Flower's own node ends its process when the server does not know it, waits for ever in other cases, and is barred for a
minute after a crash. This one begins anew instead, after any failure, under a new number.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sordino.errors import WireError
from sordino.letters.attending import PATIENT, SHOWN, Says, Standing, pause, seconds_after
from sordino.letters.certificates import Certificates
from sordino.letters.flower import interfaces as flower
from sordino.letters.flower.door import REPLACED, TOO_LONG, UNKNOWN
from sordino.letters.flower.fleet import hush
from sordino.letters.flower.parcels import reply_to, taken_apart, unpacked
from sordino.letters.flower.passes import Pass

HEARTBEAT = 5.0  # seconds


def attend(
    address: str,
    signs: Pass,
    answer: Callable[[bytes], bytes],
    stop: Callable[[], bool],
    tls: Certificates,
    most: int,
    home: Path,
    say: Says = lambda standing, why: None,
) -> None:
    """Answers the letters of a server until it is told to stop. Whatever breaks, it connects again. Work on a letter is
    never broken off: an answer that did not arrive is asked for again. `most`: the longest letter that is taken in, in
    bytes; `home`: where Flower may put files.
    """
    hush(home)
    tries = 0
    while not stop():
        try:
            with _client(address, signs, tls) as client, _entered(client) as node:
                while not stop():
                    say("waiting", "")
                    _one_letter(client, node, answer, most, say)
                    tries = 0
        except (flower.httpx.HTTPError, flower.DecodeError, WireError, _Lost) as error:
            found = _understood(error)
            say(*found)
            tries = PATIENT if found == _REPLACED else tries
            pause(seconds_after(tries), stop)
            tries = min(tries + 1, PATIENT)


def _client(address: str, signs: Pass, tls: Certificates) -> Any:
    tls.read()
    context = ssl.create_default_context(cafile=str(tls.ca))
    context.load_cert_chain(tls.chain, tls.key)
    return flower.FleetHttpClient(f"https://{address}", interceptors=[signs], verify=context)


_REPLACED: tuple[Standing, str] = "cut off", "another process of this name has connected"


def _understood(error: Exception) -> tuple[Standing, str]:
    """How a site stands after an error, and why."""
    status = error.response.status_code if isinstance(error, flower.httpx.HTTPStatusError) else 0
    if status == UNKNOWN:
        return "refused", (
            "the server does not know this name and key, does not allow them any more, runs something else, or its "
            "clock differs by more than five minutes"
        )
    if status == TOO_LONG:
        return "refused", "the server takes no letter of this length"
    if status == REPLACED:
        return _REPLACED
    return "cut off", f"{type(error).__name__}: {error}"[:SHOWN]


class _Lost(Exception):
    """The server does not go on with a letter; it will be handed out again."""


@contextmanager
def _entered(client: Any) -> Iterator[Any]:
    """The node under a new number, which is kept alive while a letter is being answered."""
    asked = flower.ActivateNodeRequest(public_key=os.urandom(32), heartbeat_interval=flower.HEARTBEAT_DEFAULT_INTERVAL)
    begun = client.ActivateNode(asked)
    node, ended = flower.Node(node_id=begun.node_id), threading.Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT):
            with suppress(flower.httpx.HTTPError):
                client.SendNodeHeartbeat(
                    flower.SendNodeHeartbeatRequest(node=node, heartbeat_interval=flower.HEARTBEAT_DEFAULT_INTERVAL)
                )

    heart = threading.Thread(target=beat, daemon=True)
    heart.start()
    try:
        yield node
        client.DeactivateNode(flower.DeactivateNodeRequest(node_id=node.node_id))
    finally:
        ended.set()
        heart.join()


def _one_letter(client: Any, node: Any, answer: Callable[[bytes], bytes], most: int, say: Says) -> None:
    """Takes the next letter and gives its answer; returns without one when there is none for a while."""
    found = client.PullMessages(flower.PullMessagesRequest(node=node))
    if not found.messages_list:
        return
    message, tree = flower.message_from_proto(found.messages_list[0]), found.message_object_trees[0]
    run = message.metadata.run_id
    letter = unpacked(tree, _pulled(client, node, run, tree, most), most)
    client.ConfirmMessageReceived(
        flower.ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=tree.object_id)
    )
    say("working", "")
    _push(client, node, run, reply_to(message, answer(letter)))


def _pulled(client: Any, node: Any, run: int, tree: Any, most: int) -> dict[str, bytes]:
    objects: dict[str, bytes] = {}
    for one in flower.iterate_object_tree(tree):
        if one.object_id in objects:
            continue
        asked = flower.PullObjectRequest(node=node, run_id=run, object_id=one.object_id)
        came = client.PullObject(asked)
        if not came.object_available:
            raise _Lost("a part of the letter is not there")
        objects[one.object_id] = came.object_content
        if sum(map(len, objects.values())) > 2 * most:
            raise _Lost("the letter is too large")
    return objects


def _push(client: Any, node: Any, run: int, reply: Any) -> None:
    message, tree, objects = taken_apart(reply)
    begun = client.PushMessages(
        flower.PushMessagesRequest(
            node=node,
            messages_list=[flower.message_to_proto(message)],
            message_object_trees=[tree],
            clientapp_runtime_list=[0.0],
        )
    )
    for name in begun.objects_to_push:
        pushed = client.PushObject(
            flower.PushObjectRequest(
                node=node,
                run_id=run,
                object_id=name,
                object_content=objects[name].deflate(),
                session_id=begun.session_id,
            )
        )
        if not pushed.stored:
            raise _Lost("a part of the answer is not taken")
