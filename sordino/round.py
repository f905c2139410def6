"""One round, top to bottom: the map of the library.

data -> shard -> local training -> example gate -> client gate -> wire -> sum -> server gate -> server update -> ledger

Nothing is read before the ledger has reserved its price, nothing leaves a client before the ledger knows that noise is
drawn, nothing is used before its
digest is stored, and no round has two releases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from sordino.accounting.events import Json
from sordino.engine.executor import Clients
from sordino.engine.server import Federation
from sordino.tree import Tree
from sordino.types import Received


class Outcome(NamedTuple):
    server: Tree
    received: Received[Tree] | None  # None of a round that was lost
    active: list[int]
    answered: list[int]
    bytes_down: int
    bytes_up: int
    payload: int  # bytes of one upload that are numbers
    secure: Json  # what an encrypted or masked sum cost
    lost: bool = False  # its noise was drawn in an attempt that was cut short: it is not drawn again


def _begun_behind(run: Federation, t: int, answers: Any) -> Iterator[Any]:
    """Clients that keep books and answers of their own send the same once more: until all has come, and the server
    draws its own noise, a round that is cut short can be played again.
    """
    yield from answers
    run.begin(t)


Keep = Callable[[Outcome, bytes], None]


def forget(outcome: Outcome, release: bytes) -> None:
    """Keeps nothing, for a run that nobody will resume."""


def one_round(
    run: Federation, server: Tree, t: int, execute: Clients, stalled: bool = False, keep: Keep = forget
) -> Outcome:
    if (lost := run.cut_off(t)) is not None:  # its noise was drawn once, and is never drawn again
        outcome = Outcome(server, None, lost, [], 0, 0, 0, {}, lost=True)
        keep(outcome, b"")
        return outcome
    execute.gather()  # between machines, until enough are there
    cohort = run.draw(t, server, execute.away, execute.repeats)  # who: public order, or hidden coins
    crew = run.stragglers.split(cohort, t, run.key)
    prices = run.prices(crew.active, stalled)  # what this exposure costs each; the others abstain
    if others := run.reserved_for_others(t, prices):  # an attempt that was cut short could reach these
        crew = run.stragglers.split(others, t, run.key)
        prices = run.prices(crew.active, stalled)
    granted = run.reserve(t, prices)  # durable, before any data is read

    down = run.algorithm.broadcast(server)
    if not execute.repeats:
        run.begin(t)  # durable, before anything leaves a client
    terms = {k: run.terms(k, prices[k], crew.epochs.get(k), crew.parts.get(k)) for k in granted}
    answers = execute(t, down, terms)  # at the clients: local(), then uplink.encode()
    if execute.repeats:
        answers = _begun_behind(run, t, answers)

    received, mail = run.receive(t, answers, crew, down, prices, granted)  # sum, central noise, decode, divide
    if not mail.secure.get("aborted"):  # a sum that was not opened changes nothing
        server = run.algorithm.update(server, received, run.home)
    traffic = run.inbox.bytes_down(t, down, granted), mail.size, mail.payload
    outcome = Outcome(server, received, crew.active, mail.answered, *traffic, mail.secure)
    keep(outcome, mail.digest)  # durable first: a crash from here on ends this release, and makes no other
    run.store(t, mail.digest)  # from here on this release has one content
    run.publish(t)
    return outcome
