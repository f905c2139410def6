"""One round, top to bottom: the map of the library.

data -> shard -> local training -> example gate -> client gate -> wire -> sum -> server gate -> server update -> ledger

Nothing is read before the ledger has reserved its price, nothing is used before its digest is stored, and the same round done twice is the
same release.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sordino.engine.federation import Federation
from sordino.keys import Key
from sordino.types import Grant, Received

Execute = Callable[
    [int, bytes, Mapping[int, Grant], Key], Mapping[int, bytes]
]  # clients: the broadcast -> one message each


@dataclass(frozen=True)
class Outcome:
    server: Any
    received: Received[Any]
    active: list[int]
    answered: list[int]
    bytes_down: int
    bytes_up: int


Keep = Callable[[Outcome, bytes], None]


def forget(outcome: Outcome, release: bytes) -> None:
    """What keeps nothing: a run that nobody will resume."""


def one_round(
    run: Federation, server: Any, t: int, execute: Execute, stalled: bool = False, keep: Keep = forget
) -> Outcome:
    cohort = run.cohort.draw(t, run.population, run.key)  # who: public order, or hidden coins
    crew = run.stragglers.split(cohort, t, run.key)
    prices = run.prices(crew.active, stalled)  # what this exposure costs each; the others abstain
    granted = run.reserve(t, prices)  # durable, before any data is read

    down = run.algorithm.broadcast(server)
    message = run.pack_down(t, down)
    grants = {k: run.grant(t, k, prices[k], crew.epochs.get(k)) for k in granted}
    messages = execute(t, message, grants, run.round_key(t))  # at the clients: local(), then uplink.encode()
    uploads = {k: run.unpack_up(t, k, messages[k], down) for k in sorted(messages) if k not in crew.late}

    received = run.receive(t, uploads, down, prices)  # sum, central noise, decode, divide
    server = run.algorithm.update(server, received)
    sent = len(message) * len(grants), sum(map(len, messages.values()))
    outcome, release = Outcome(server, received, crew.active, sorted(uploads), *sent), run.release(messages, received)
    keep(
        outcome, release
    )  # durable before the ledger says so: a crash from here on ends this release, and makes no other
    run.store(t, release)  # from here on this release has one content
    run.publish(t)
    return outcome
