"""Secure aggregation: the server learns the sum of the uploads that reach it and nothing else about any of them, and
clients may drop out at every step.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017:

    client advertises two fresh public keys          server sends the roster to all
    client seals shares of its seed and mask key     server hands each client its inbox
    client uploads its words (integers) under masks  server names survivors and dropped-out
    client gives shares, one kind for each peer      server takes the masks off the sum

Client i uploads its words + PRG(seed_i) + sum over j > i of PRG(s_ij) - sum over j < i of PRG(s_ij). Pairs cancel in
the sum; seeds of survivors, and mask keys of those that dropped out after sharing, come back from `threshold` shares. A
last word of 1 is the guard: it must add up to the number of survivors.

Guarantees, against a semi-honest server (it follows the protocol but remembers everything) together with fewer than
`threshold` clients: it learns the sum over the survivors that do not work with it, and no more; where that is one
client, its upload. Nothing the server holds opens a single upload, and no client gives it both shares of one peer.
Every key is bound to the whole roster: clients that were sent different models or rosters cannot even read each other
(after Pasquini et al., Eluding Secure Aggregation via Model Inconsistency, CCS 2022). Out of scope: a malicious server.
It could invent clients; signed keys and a consistency round would stop that. The sum is exact and has no noise: whoever
receives it reads it in clear, and it is not differentially private.

Cost for k clients of which d drop out after sharing: a client makes 2(k - 1) key agreements and k streams as long as
the vector, the server d(k - d) agreements and (d + 1)(k - d) streams; an upload is as long as the words, and a quarter
of a kilobyte more for each peer.

A site keeps its clients' keys, seeds and shares in memory only, and takes every step once.

Why no operation has two masked uploads: a round is paid for when its first message (signed by the server) arrives, and
before masked words leave, the site's store of answers records durably that they do. From then on

- the same messages get the same bytes, from memory, and other contents are refused;
- a site that was restarted finds the round in its store and answers that its clients have dropped out. Their words may
  have left: fresh keys would put the same operation under a second mask.

A site that was restarted before that has nothing in its store, so no words have left: it may draw fresh keys and noise,
and no sum is unmasked twice. The list of members that names the old keys is refused by clients that have new ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.algorithms.optional import PerClientMessages
from sordino.engine import wire
from sordino.engine.commands import Answered, Mask, Round
from sordino.engine.executor import check_one_broadcast, flat, words_of
from sordino.engine.site import Site
from sordino.errors import IntegrityError, LedgerError, SecAggAborted, SecureError, WireError
from sordino.privacy.uplink.channels import MaskedChannel, Messages, OpenedSum, Step, Stopwatch, TakeStep, Uploads
from sordino.privacy.uplink.fixed_point import Ints, Layout
from sordino.privacy.uplink.secure_stages import Aggregated
from sordino.secagg.mask_protocol import Aggregator, Integers, Participants
from sordino.secagg.masks import Session
from sordino.transport.request_handler import Given, Keep, Operation

PARTS: dict[Step, str] = {"round": "advertise", "roster": "share", "inbox": "mask", "request": "unmask"}


def needs(stage: Aggregated) -> None:
    """Refuse nothing: masked sums need no optional package."""


@dataclass(frozen=True)
class MaskedWords:
    """Encoding of the integers of one round as words (unsigned integers modulo a power of two), to which masks are
    added: the same for the server and its clients.
    """

    stage: Aggregated
    layout: Layout
    among: int  # clients that begin the round

    def session(self, run: str, t: int, size: int, model: bytes) -> Session:
        """Public parameters of secure aggregation for round t (`Session`); `model` is the digest of the broadcast."""
        self.layout.check(self.among)
        return Session(run, t, size, self.layout.width, self._top, self.stage.least(self.among), model)

    def words(self, values: Ints) -> Ints:
        return values + self._top // 2

    def integers(self, words: NDArray[np.uint64], count: int, noise: Ints | None = None) -> Ints:
        """Signed integers of the sum of `count` uploads, from its words, with the server's noise. It is added to the
        words, modulo 2^width: after them it would not hide on which side of their end the sum is, to which a client
        that knows all others' words can bring it.
        """
        half = 1 << (self.layout.width - 1)
        total = words + np.uint64((half - count * (self._top // 2)) % 2**64)
        if noise is not None:
            total += noise.astype(np.int64).view(np.uint64)
        total &= np.uint64(2 * half - 1)
        return (total - np.uint64(half)).view(np.int64)

    @property
    def too_few(self) -> str:
        """Reason not to begin a round of `among` clients; empty where they are enough."""
        least = self.stage.least(self.among)
        return "" if self.among >= least else f"{self.among} clients began the round, {least} must stay to its end"

    @property
    def _top(self) -> int:
        # more than an upload has bits for: its share of noise may be outside
        return ((1 << self.layout.width) - 1) // max(1, self.among)


class Masks:
    """Masked sum: the server unmasks the sum of the clients that stayed."""

    def __init__(self, stage: Aggregated, layout: Layout, run: str) -> None:
        self._stage, self._layout, self._run = stage, layout, run

    def sum(self, t: int, uploads: Uploads, cohort: Sequence[int], size: int, noise: Ints | None) -> OpenedSum:
        """Masked sum over clients in this process."""
        beyond, masked, watch = 0, MaskedWords(self._stage, self._layout, len(cohort)), Stopwatch()

        def words() -> Iterator[tuple[int, Ints]]:
            nonlocal beyond
            for k, values in uploads:
                beyond += self._layout.at_the_end(values)
                yield k, masked.words(values)

        # server and clients are in this process and have one model: run and round stand for its digest
        model = hashlib.sha256(f"{self._run}/{t}".encode()).digest()
        found = self.open(
            t, len(cohort), size, model, lambda session: ClientsHere(session, cohort, words(), watch), noise
        )
        return found._replace(seconds=watch.seconds | found.seconds, saturated=beyond)

    def open(
        self,
        t: int,
        among: int,
        size: int,
        model: bytes,
        clients: Callable[[Session], TakeStep],
        noise: Ints | None = None,
    ) -> OpenedSum:
        """Runs all steps of secure aggregation for round t and returns the unmasked sum, wherever its clients are;
        `model`: digest of the broadcast; `noise`: integers that the server adds. An aborted round gives no sum, and
        none of its messages is used.
        """
        nothing, watch = OpenedSum(np.zeros(size, np.int64), [], 0, 0, {}, None), Stopwatch()
        masked = MaskedWords(self._stage, self._layout, among)
        if masked.too_few:
            return nothing._replace(aborted=masked.too_few)
        server = Aggregator(session := masked.session(self._run, t, size, model))
        try:
            server.play(clients(session))
            with watch("open"):
                words, who = server.open(), server.survivors
        except (SecAggAborted, IntegrityError) as error:
            found = nothing._replace(aborted=f"{error.what}: {error.why}")
        else:
            found = nothing._replace(
                total=masked.integers(words, len(who), noise), who=sorted(who), seconds=watch.seconds
            )
        sent = server.sent.values()
        return found._replace(bytes_up=sum(sent), payload=max(sent, default=0))


class ClientsHere:
    """Clients of a round of secure aggregation by masks, in this process. A client without an upload in `words` drops
    out after it has sent shares of its secrets.
    """

    def __init__(
        self, session: Session, clients: Iterable[int], words: Iterable[tuple[int, Integers]], watch: Stopwatch
    ) -> None:
        self._there = sorted(clients)
        self._participants, self._words, self._watch = Participants(session, self._there), words, watch

    def __call__(self, step: Step, messages: Messages, receive: Callable[[int, bytes], None]) -> None:
        took = []
        for k, message in self._participants.messages(step, self._there, messages(self._there), self._words):
            with self._watch(PARTS[step]):
                receive(k, message())
            took.append(k)
        self._there = took


def channel(stage: Aggregated, layout: Layout, run: str) -> MaskedChannel:
    return Masks(stage, layout, run)


class MaskedRound:
    """One site's clients in one round of secure aggregation by masks, and the answers that the site has given."""

    def __init__(self, asked: Operation, command: Round, site: Site) -> None:
        algorithm = site.algorithm
        uplink, header = algorithm.uplink, site.header(command.t, -1)
        assert isinstance(uplink.secure, Aggregated)
        assert uplink.grid is not None
        check_one_broadcast(isinstance(algorithm, PerClientMessages))
        if command.among < len(command.terms):
            raise WireError(
                f"a round of {command.among} clients, of which {len(command.terms)} are here",
                fix="ignore it",
                code="fewer-than-here",
            )
        _, down = wire.decode(asked.messages[0], header, algorithm.broadcast(algorithm.init(site.task, 0)))
        self.asked, self._command, self._site, self._down = asked, command, site, down
        self._masked = MaskedWords(uplink.secure, uplink.grid.layout, command.among)
        size = words_of(algorithm, site.task, command.t, down)
        # digest of what this site received, not of what the server claims to have sent
        model = hashlib.sha256(asked.messages[0]).digest()
        self._participants = Participants(self._masked.session(header.run, command.t, size, model), command.terms)
        self._given: dict[str, tuple[str, Given]] = {}  # step -> what was asked, and the answer

    @property
    def place(self) -> tuple[int, int]:
        """Phase and round that these masks belong to."""
        return self.asked.stage, self._command.t

    def first(self, asked: Operation) -> Given:
        """Answer to the first message of the round, from memory if it was answered before."""
        if (before := self._before("round", asked)) is not None:
            return before
        return self._gives("round", asked, _all(self._participants.messages("round", [*self._command.terms], [])))

    def given(self, asked: Operation, command: Mask) -> Given | None:
        """Stored answer to a later message that was answered before; None where it was not."""
        if not command.clients or not all(k in self._participants for k in command.clients):
            raise WireError(f"clients {command.clients} are asked, who have not begun", fix="ignore it", code="others")
        return self._before(command.step, asked)

    def step(self, asked: Operation, command: Mask, keep: Keep) -> Given:
        """Answer to a later message of the round. Before masked uploads leave, `keep` records on disk that they do,
        with the new states of the clients.
        """
        sent = list(map(bytes, asked.messages))
        found = _all(self._participants.messages(command.step, command.clients, sent, self._words(command.clients)))
        if command.step == "inbox":
            keep(found[1])
        return self._gives(command.step, asked, found)

    def _words(self, clients: Sequence[int]) -> Iterator[tuple[int, Ints]]:
        """Trains these clients and yields their uploads as words (integers to be masked)."""
        terms = {k: self._command.terms[k] for k in clients}
        for k, upload in self._site.each(self._command.t, self._down, terms):
            yield k, self._masked.words(flat(upload))

    def _gives(self, step: str, asked: Operation, found: Given) -> Given:
        self._given[step] = asked.digest, found
        return found

    def _before(self, step: str, asked: Operation) -> Given | None:
        if (before := self._given.get(step)) is None:
            return None
        if before[0] != asked.digest:
            raise LedgerError(
                f"{asked.name} was requested before with another content",
                why="with the answers to both, the server could open a single upload",
                fix="the round is over for this site; the server continues with the next one",
                code="other-content",
            )
        return before[1]


def _all(clients: Iterable[tuple[int, Callable[[], bytes]]]) -> Given:
    """Messages of all clients that can take this step; the others have dropped out."""
    found, failed = dict[int, bytes](), list[SecureError]()
    for k, message in clients:
        try:
            found[k] = message()
        except SecureError as error:
            failed.append(error)
    if failed and not found:
        raise failed[0]
    return Answered(list(found)), list(found.values())
