"""One round of federated learning from beginning to end: the best place to start reading the library.

data -> reader -> local training -> uplink, client stages -> wire -> sum -> uplink, server stages -> update -> ledger

No data are read before the ledger has reserved the round's price, no upload leaves a client before the ledger records
that noise is drawn, no sum is used before its digest is stored, and no round has two releases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from sordino.accounting.events import Json
from sordino.engine.executor import Answers, Clients
from sordino.engine.server import FederatedServer
from sordino.planning.accounts import OpenRound
from sordino.tree import Tree
from sordino.types import Received


class Outcome(NamedTuple):
    """Result of one round: the new state of the server, who took part, and the bytes that were sent."""

    server: Tree
    received: Received[Tree] | None  # None of a round that was lost
    active: list[int]
    answered: list[int]
    bytes_down: int
    bytes_up: int
    payload: int  # bytes of one upload that are numbers
    secure: Json  # what an encrypted or masked sum cost
    stalled: bool = False  # True where the model no longer moves by more than its noise
    lost: bool = False  # its noise was drawn in an attempt that was cut short: it is not drawn again


def _begun_behind(run: FederatedServer, now: OpenRound, answers: Answers) -> Iterator[Any]:
    """Uploads of remote clients, which keep their own privacy ledgers: the server's ledger records the start of the
    round only after the last upload. Until then an interrupted round can be replayed, because such clients send the
    same uploads again.
    """
    yield from answers.uploads
    run.begin(now)


Keep = Callable[[Outcome, bytes], None]


def forget(outcome: Outcome, release: bytes) -> None:
    """Store nothing of a round: the default for `keep`, for a run that will not be resumed."""


def one_round(
    run: FederatedServer, server: Tree, t: int, execute: Clients, stalled: bool = False, keep: Keep = forget
) -> Outcome:
    if (lost := run.cut_off(t)) is not None:  # its noise was drawn once, and is never drawn again
        outcome = Outcome(server, None, lost, [], 0, 0, 0, {}, lost=True)
        keep(outcome, b"")
        return outcome
    execute.gather()  # between machines: wait until enough clients are connected
    now = run.open(t)
    cohort = run.draw(now, server, execute.away, execute.repeats)  # drawn in public order, or secretly at random
    clients = run.stragglers.split(cohort, t, run.key)
    prices = run.prices(now, clients.active, stalled)  # the cost for each client; clients that cannot pay abstain
    if (others := run.reserved_for_others(t, prices)) is not None:  # clients of an interrupted attempt
        clients = run.stragglers.split(others, t, run.key)
        prices = run.prices(now, clients.active, stalled)
    now = run.reserve(now, prices)  # durable, before any data is read

    down = run.algorithm.broadcast(server)
    if not execute.repeats:
        run.begin(now)  # durable, before anything leaves a client
    answers = execute(t, down, run.all_terms(now, clients))  # at the clients: local(), then uplink.encode()
    if execute.repeats:
        answers = Answers(_begun_behind(run, now, answers))

    received, came, digest, stalled = run.receive(now, answers, clients, down)  # sum, central noise, decode, divide
    if not came.secure.get("aborted"):  # a sum that was not opened changes nothing
        server = run.algorithm.update(server, received, run.home)
    received = replace(received, _each=list)  # single uploads are not held while the state is saved
    traffic = run.inbox.bytes_down(t, down, now.granted), came.size, came.payload
    outcome = Outcome(server, received, clients.active, came.answered, *traffic, came.secure, stalled)
    keep(outcome, digest)  # durable first: after a crash, resuming finishes this release and makes no other
    run.publish(t, digest)  # from here on the ledger refuses another result for this round
    return outcome
