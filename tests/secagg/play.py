"""A secure sum played step by step, with anybody gone or false at any step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from sordino.errors import (
    SordinoError,
)
from sordino.privacy.uplink.channels import Stopwatch
from sordino.secagg.mask_protocol import Aggregator, Integers, Participant
from sordino.secagg.masked import ClientsHere
from sordino.secagg.masks import Session

MODEL, OTHER_MODEL = (hashlib.sha256(name).digest() for name in (b"model", b"another model"))


SIX = Session(run="a run", round=3, size=40, width=32, top=(1 << 24) - 1, threshold=4, model=MODEL)


Vectors = dict[int, np.ndarray]


def words(session: Session, clients: list[int], seed: int = 0) -> Vectors:
    draw = np.random.default_rng(seed)
    return {who: draw.integers(0, session.top, session.size, dtype=np.uint64, endpoint=True) for who in clients}


def clear(vectors: Vectors, who: list[int] | tuple[int, ...], width: int = 32) -> list[int]:
    """Python's integers, which do not wrap."""
    return [sum(int(vectors[i][word]) for i in who) % (1 << width) for word in range(len(vectors[who[0]]))]


def refused(code: str, kind: type[SordinoError], step: Callable[[], object]) -> SordinoError:
    with pytest.raises(kind) as refusal:
        step()
    assert refusal.value.code == code
    assert refusal.value.why
    return refusal.value


class OpenedSum(NamedTuple):
    sum: np.ndarray
    survivors: tuple[int, ...]
    bytes_up: Mapping[int, int]
    seconds: Mapping[str, float]


def run_round(
    session: Session,
    clients: Iterable[int],
    vectors: Mapping[int, Integers] | Iterable[tuple[int, Integers]],
    dropped_after_sharing: Collection[int] = (),
) -> OpenedSum:
    """A whole round as a simulation plays it; clients without a vector have dropped out after sharing."""
    server, watch = Aggregator(session), Stopwatch()
    given = vectors.items() if isinstance(vectors, Mapping) else vectors
    words = ((who, each) for who, each in given if who not in dropped_after_sharing)
    server.play(ClientsHere(session, clients, words, watch))
    with watch("open"):
        total = server.open()
    return OpenedSum(total, server.survivors, server.sent, watch.seconds)


class Play:
    """A round step by step; the server that plays it remembers whatever reached it."""

    def __init__(self, session: Session, clients: list[int], kind: type[Participant] = Participant) -> None:
        self.session, self.server = session, Aggregator(session)
        self.clients = {who: kind(session, who) for who in clients}
        for client in self.clients.values():
            self.server.receive(client.advertise())
        self.roster = self.server.roster()

    def share(self, absent: set[int] = frozenset()) -> Play:
        for who in self.clients.keys() - absent:
            self.server.receive(self.clients[who].share(self.roster))
        self.inboxes = self.server.inboxes()
        return self

    def upload(self, vectors: Vectors, absent: set[int] = frozenset()) -> Play:
        self.uploads = {
            who: self.clients[who].masked(box, vectors[who]) for who, box in self.inboxes.items() if who not in absent
        }
        for upload in self.uploads.values():
            self.server.receive(upload)
        return self

    def ask(self) -> Play:
        self.request = self.server.request()
        return self

    def answer(self, absent: set[int] = frozenset()) -> Play:
        self.answers = {who: self.clients[who].unmask(self.request) for who in set(self.server.survivors) - absent}
        for answer in self.answers.values():
            self.server.receive(answer)
        return self


# ---------------------------------------------------------------- what one upload looks like
def top_byte(values: np.ndarray) -> float:
    """p-value of a chi-square test over the 256 top bytes of 32-bit words."""
    return float(stats.chisquare(np.bincount(values.astype(np.uint32) >> 24, minlength=256)).pvalue)
