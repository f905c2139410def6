"""Letters and answers on their way through Flower's state, which lives in this process only.

Flower delivers a message at most once. But a site works on one letter at a time, so a site that asks for the next one
has none in its hands: what was handed to it and is not answered was lost, and is handed out again. This needs no clock.
"""

from __future__ import annotations

import itertools
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sordino.errors import RunError, SordinoError, WireError
from sordino.letters.carrier import Arrived, Writes
from sordino.letters.flower import interfaces as flower
from sordino.letters.flower.parcels import message_to, taken_apart, unpacked

SILENCE = 16.0  # seconds after which a site is taken to be out of reach: three missed heartbeats


@dataclass
class Handed:
    """A letter in the hands of a site."""

    ticket: int
    write: Writes
    run: int
    message: str  # its id


@dataclass
class Box:
    """What waits for one site, and what it has in its hands."""

    waiting: deque[tuple[int, Writes]] = field(default_factory=deque)
    handed: Handed | None = None
    node: int | None = None  # its number in Flower
    seen: float = -math.inf
    came: int = 0  # bytes, since it was last handed a letter
    lock: threading.RLock = field(default_factory=threading.RLock)


class Exchange:
    """The state of a link. Every method may be called by any thread."""

    def __init__(self, sites: Iterable[str], most: int) -> None:
        self._state = flower.InMemoryLinkState(flower.NoOpFederationManager(), flower.InMemoryObjectStore())
        self._room = most + most // 64 + (1 << 20)  # for a letter and what wraps it
        self.boxes = {site: Box() for site in sites}
        self._arrived: queue.SimpleQueue[Arrived | SordinoError] = queue.SimpleQueue()
        self._run, self._task = 0, 0
        self._running_lock = threading.Lock()
        self._tickets = itertools.count(1)

    @property
    def state(self) -> Any:
        return self._state

    # the server ------------------------------------------------------------------------------------------------------

    def peers(self) -> frozenset[str]:
        now = time.monotonic()
        return frozenset(site for site, box in self.boxes.items() if box.node is not None and now - box.seen < SILENCE)

    def send(self, to: str, letter: Writes) -> int:
        ticket = next(self._tickets)
        self.boxes[to].waiting.append((ticket, letter))
        return ticket

    def came(self, seconds: float) -> Sequence[Arrived]:
        try:
            found = (
                self._arrived.get(timeout=min(seconds, threading.TIMEOUT_MAX))
                if seconds > 0
                else self._arrived.get_nowait()
            )
        except queue.Empty:
            return []
        if isinstance(found, SordinoError):
            raise found
        return [found]

    def cancel(self, ticket: int) -> None:
        for box in self.boxes.values():
            with box.lock:
                for entry in [entry for entry in box.waiting if entry[0] == ticket]:
                    box.waiting.remove(entry)
                if box.handed is not None and box.handed.ticket == ticket:
                    self._take_back(box.handed)
                    box.handed = None

    # a site -----------------------------------------------------------------------------------------------------------

    def enter(self, site: str, token: bytes) -> None:
        """A process of the site begins, under a number of its own: an earlier one that was killed bars nothing."""
        box = self.boxes[site]
        self.settle(site)
        with box.lock:
            node = self._state.create_node(flower.NOOP_FLWR_AID, flower.NOOP_ACCOUNT_NAME, token, 0)
            self._leave(box)
            box.node = node

    def alive(self, site: str, size: int) -> None:
        """A site has asked for something, with a body of this size."""
        box = self.boxes[site]
        box.seen, box.came = time.monotonic(), box.came + size
        self._state.acknowledge_task_heartbeat(self._task)  # or Flower ends the run after a minute

    def gone(self, site: str) -> None:
        """A site has hung up while it waited."""
        self.boxes[site].seen = -math.inf

    def too_much(self, site: str, size: int) -> bool:
        """Whether a site has sent more since its last letter than an answer may have."""
        return self.boxes[site].came + size > self._room

    def settle(self, site: str) -> None:
        """Takes the answer of a site that has nothing more to say; where there is none, the letter waits again."""
        box = self.boxes[site]
        with box.lock:
            if (handed := box.handed) is None:
                return
            box.handed = None
            answer = self._answer(handed)
            self._take_back(handed)
            if answer is None:
                box.waiting.appendleft((handed.ticket, handed.write))
            else:
                self._arrived.put(Arrived(handed.ticket, answer))

    def hand_out(self, site: str) -> None:
        """Puts the next letter of a site where its request will find it."""
        box = self.boxes[site]
        with box.lock:
            if box.node is None or not box.waiting:
                return
            ticket, write = box.waiting.popleft()
            try:
                letter, run = write(), self._running()
            except SordinoError as error:  # nobody can be asked this: whoever waits for an answer should know
                self._arrived.put(error)
                return
            message, tree, objects = taken_apart(message_to(box.node, run, letter))
            self._state.acknowledge_node_heartbeat(box.node, flower.HEARTBEAT_DEFAULT_INTERVAL)
            session = self._state.start_session(run)
            stored, missing = self._state.store_message_and_object_tree(message, tree, session)
            if not stored or not all(
                self._state.store_object(run, session, name, objects[name].deflate()) for name in missing
            ):
                self._arrived.put(_refused("it does not take a letter"))
                return
            box.came = 0
            box.handed = Handed(ticket, write, run, tree.object_id)

    def leave(self, site: str) -> None:
        """A process of the site ends."""
        self.settle(site)
        with self.boxes[site].lock:
            self._leave(self.boxes[site])

    def _leave(self, box: Box) -> None:
        if box.node is not None:
            self._state.acknowledge_node_heartbeat(box.node, flower.HEARTBEAT_DEFAULT_INTERVAL)
            self._state.delete_node(flower.NOOP_FLWR_AID, box.node)
        box.node = None

    # Flower's state ---------------------------------------------------------------------------------------------------

    def _running(self) -> int:
        """A run of Flower's: nothing is delivered outside of one. It names no code."""
        with self._running_lock:
            if self._state.acknowledge_task_heartbeat(self._task):
                return self._run
            # there is none yet, or it has expired: Flower ends a run that nobody asked about for a minute
            self._run = self._state.create_run(
                None, None, None, {}, flower.NOOP_FEDERATION_ID, None, flower.NOOP_FLWR_AID, flower.TaskType.SERVER_APP
            )
            self._task = self._state.get_run_info(run_ids=[self._run])[0].primary_task_id
            if self._state.claim_task(self._task) is None or not self._state.activate_task(self._task):
                raise _refused("it does not begin a run")
            return self._run

    def _answer(self, handed: Handed) -> bytes | None:
        if handed.message not in self._state.get_message_ids_from_run_id(handed.run):
            return None  # the run has expired
        found = self._state.get_message_res({handed.message}, handed.run)
        if not found or found[0].has_error():
            return None
        reply = found[0].metadata.message_id
        try:
            tree = self._state.object_store.get_object_tree(reply)
            objects = {
                one.object_id: self._state.get_object(handed.run, one.object_id)
                for one in flower.iterate_object_tree(tree)
            }
            return unpacked(tree, objects, self._room) if all(objects.values()) else None
        except (WireError, flower.NoObjectInStoreError):
            return None
        finally:
            self._state.object_store.delete(reply)

    def _take_back(self, handed: Handed) -> None:
        self._state.delete_messages({handed.message})
        self._state.object_store.delete(handed.message)


def _refused(why: str) -> RunError:
    return RunError("Flower's state refused", why=why, fix="use --via grpc, and report this", code="flower-refused")
