"""The server's half of masked sums between sites: it collects what clients send at each step, passes on what it cannot
open, and opens the sum of those who stayed. Who is silent at a step has dropped out there.

What a site holds against the server: each client binds its keys to the digest of the broadcast that this site received,
and to the whole list of members, so clients that were sent other models or other lists cannot even read each other.
`secagg.secagg` has the protocol and what it promises against which server.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.algorithms.optional import PerClientMessages
from sordino.engine import wire
from sordino.engine.channels import Opened, SumAtSites
from sordino.engine.commands import Command, Mask, Round
from sordino.engine.executor import Answers
from sordino.engine.secure_sum import check_one_broadcast, words_of
from sordino.errors import SecureError, SordinoError, WireError
from sordino.privacy.uplink.layout import Ints
from sordino.privacy.uplink.secure_stages import Aggregated
from sordino.sites.remote_sites import RemoteSites
from sordino.transport.answers import Answered, heard
from sordino.transport.events import RunEvent
from sordino.transport.sites import Replies
from sordino.tree import Tree
from sordino.types import Task, Terms


@dataclass
class MaskedSites(RemoteSites):
    """Sites whose clients mask their uploads."""

    algorithm: AnyAlgorithm = field(kw_only=True)
    task: Task = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_broadcast(isinstance(self.algorithm, PerClientMessages))

    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Answers:
        return Answers(sum=MaskedSum(self, t, down, terms))


class MaskedSum(SumAtSites):
    """One masked round, from its first letter to the sum."""

    def __init__(self, sites: MaskedSites, t: int, down: Tree, terms: Mapping[int, Terms]) -> None:
        uplink = sites.algorithm.uplink
        assert isinstance(uplink.secure, Aggregated)
        assert uplink.grid is not None
        self._sites, self._t, self._terms = sites, t, terms
        self._masked = uplink.secure.sums.MaskedWords(uplink.secure, uplink.grid.layout, len(terms))
        self._size = words_of(sites.algorithm, sites.task, t, down)
        self._message = wire.encode(sites.header(t), down)
        self._there: dict[str, list[int]] = {}  # who has taken every step until now, by site
        self._sent: dict[int, int] = defaultdict(int)  # bytes of each client
        self._seconds: dict[str, float] = {}

    def open(self, noise: Ints | None) -> Opened:
        assert noise is None  # under masks the server adds its noise to the sum that it opens
        if self._masked.too_few:
            return self._nothing(self._masked.too_few)
        model = hashlib.sha256(self._message).digest()
        self._server = self._masked.server(self._sites.header(self._t).run, self._t, self._size, model)
        try:
            self._play()
            begin = time.process_time()
            words, who = self._server.open(), self._server.survivors
            self._sites.have_answered(self._t, who)
        except SecureError as error:  # nothing was opened, and nothing is used
            return self._nothing(f"{error.what}: {error.why}")
        self._seconds["open"] = time.process_time() - begin
        total, sent = self._masked.integers(words, len(who)), self._sent.values()
        return Opened(total, sorted(who), sum(sent), max(sent), self._seconds, None)

    def _play(self) -> None:
        t, terms, sites, server = self._t, self._terms, self._sites, self._server
        self._there = sites.asked(terms)
        sites.have_been_asked(t, self._there)
        first = self._first_letters(self._there)
        self._take(sites.exchange(first, self._enough, others=self._latecomers))
        roster = server.roster()
        self._ask(Mask(t, "roster", []), lambda who: [roster])
        boxes = server.inboxes()
        self._ask(Mask(t, "inbox", []), lambda who: [boxes[k] for k in who])
        request = server.request()
        self._ask(Mask(t, "request", []), lambda who: [request])

    def _first_letters(self, there: Mapping[str, Sequence[int]]) -> dict[str, tuple[Command, Sequence[bytes]]]:
        return {
            peer: (Round(self._t, {k: self._terms[k] for k in who}, among=len(self._terms)), [self._message])
            for peer, who in there.items()
        }

    def _latecomers(self) -> dict[str, tuple[Command, Sequence[bytes]]]:
        found = self._sites.latecomers(self._terms, self._there)
        self._there |= found
        if found:
            self._sites.have_been_asked(self._t, found)
        return self._first_letters(found)

    def _ask(self, step: Mask, messages: Callable[[Sequence[int]], Sequence[bytes]]) -> None:
        letters: dict[str, tuple[Command, Sequence[bytes]]] = {
            peer: (Mask(step.t, step.step, who), messages(who)) for peer, who in self._there.items()
        }
        self._take(self._sites.exchange(letters))

    def _take(self, answers: Replies) -> None:
        """Hands what came to the server's half; whoever sent nothing that counts is no longer there."""
        there: dict[str, list[int]] = {}
        for peer, letter in answers.items():
            answer = heard(letter.head.said)
            clients = answer.clients if isinstance(answer, Answered) else []
            for k, body in zip(clients, letter.bodies, strict=False):
                try:
                    self._receive(k if k in self._there[peer] else None, bytes(body))
                except SordinoError as error:
                    why = f"client {self._sites.called(k)} of {peer} drops out: {error.what}"
                    self._sites.note(RunEvent(event="dropped", site=peer, round=self._t + 1, why=why))
                else:
                    there.setdefault(peer, []).append(k)
        self._there = there

    def _receive(self, client: int | None, message: bytes) -> None:
        if client is None or self._server.sender(message) != client:
            raise WireError("a message of somebody else", fix="ignore it", code="other-sender")
        self._sent[client] += len(message)
        self._server.receive(message)

    def _enough(self, answers: Replies) -> bool:
        counts = (len(letter.bodies) for letter in answers.values())
        return self._sites.suffices(self._t, sum(counts), len(self._terms))

    def _nothing(self, why: str) -> Opened:
        sent = self._sent.values()
        return Opened(
            np.zeros(self._size, np.int64), [], sum(sent), max(sent, default=0), self._seconds, None, aborted=why
        )
