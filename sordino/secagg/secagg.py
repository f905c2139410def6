"""Secure aggregation: the server learns the sum of the uploads that reach it and nothing else about any of them, and
clients may vanish at every step.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017:

    client advertises two fresh public keys          server sends the roster to all
    client seals shares of its seed and mask key     server hands each client its inbox
    client uploads its words under masks             server names survivors and dropped-out
    client gives shares, one kind for each peer      server takes the masks off the sum

Client i uploads its words + PRG(seed_i) + sum over j > i of PRG(s_ij) - sum over j < i of PRG(s_ij). Pairs cancel in
the sum; seeds of survivors, and mask keys of those who vanished after sharing, come back from `threshold` shares. A
last word of 1 is the guard: it must add up to the number of survivors.

Guarantees, against a semi-honest server (it follows the protocol but remembers everything) together with fewer than
`threshold` clients: it learns the sum over the survivors that do not work with it, and no more; where that is one
client, its upload. Nothing the server holds opens a single upload, and no client gives it both shares of one peer.
Every key is bound to the whole roster: clients that were sent different models or rosters cannot even read each other
(after Pasquini et al., Eluding Secure Aggregation via Model Inconsistency, CCS 2022). Out of scope: a malicious server.
It could invent clients; signed keys and a consistency round would stop that. The sum is exact and has no noise: it is
secret from nobody who is given it, and not differentially private.

Cost for k clients of whom d vanish after sharing: a client makes 2(k - 1) key agreements and k streams as long as the
vector, the server d(k - d) agreements and (d + 1)(k - d) streams; an upload is as long as the words, and a quarter of a
kilobyte more for each peer.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sordino.secagg.secagg_client import Integers, Participant
from sordino.secagg.secagg_server import Aggregator
from sordino.secagg.session import Session, two_thirds

__all__ = ["Aggregator", "Integers", "OpenedSum", "Participant", "Session", "run_round", "two_thirds"]


class OpenedSum(NamedTuple):
    sum: NDArray[np.uint64]
    survivors: tuple[int, ...]
    bytes_up: dict[int, int]  # of each client
    seconds: dict[
        str, float
    ]  # of the processor, all clients together: advertise, share, mask, unmask; and the server's open


def run_round(
    session: Session,
    clients: Iterable[int],
    vectors: Mapping[int, Integers] | Iterable[tuple[int, Integers]],
    dropped_after_sharing: Collection[int] = (),
) -> OpenedSum:
    """A whole round with all halves in one process, through the same bytes. Clients without a vector have dropped
    out after sharing; each vector is used as it comes.
    """
    server, halves = Aggregator(session), dict[int, Participant]()
    seconds: dict[str, float] = defaultdict(float)
    up: dict[int, int] = defaultdict(int)

    def send(who: int, message: bytes) -> None:
        up[who] += len(message)
        server.receive(message)

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        begin = time.process_time()
        yield
        seconds[part] += time.process_time() - begin

    with timed("advertise"):
        for who in sorted(clients):
            halves[who] = Participant(session, who)
            send(who, halves[who].advertise())
        roster = server.roster()
    with timed("share"):
        for who, half in halves.items():
            send(who, half.share(roster))
        inboxes = server.inboxes()
    for who, words in vectors.items() if isinstance(vectors, Mapping) else vectors:
        if who not in dropped_after_sharing:
            with timed("mask"):
                send(who, halves[who].masked(inboxes[who], words))
    with timed("unmask"):
        request = server.request()
        for who in server.survivors:
            send(who, halves[who].unmask(request))
    with timed("open"):
        total = server.open()
    return OpenedSum(total, server.survivors, dict(up), dict(seconds))
