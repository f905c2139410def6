"""The server's half of masked sums between sites: it collects the clients' messages of each step, passes on shares that
it cannot open, and opens the sum of the clients that stayed. A client that is silent at a step has dropped out.

How sites are protected from the server: each client binds its keys to the digest of the broadcast that this site
received, and to the whole list of members, so clients that were sent other models or other lists cannot even read each
other. `secagg.masked` describes the protocol and its guarantees, and against which server they hold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.algorithms.optional import PerClientMessages
from sordino.engine import wire
from sordino.engine.commands import Answered, Command, Mask, Round, read_answer
from sordino.engine.executor import Answers
from sordino.engine.secure_sum import check_one_broadcast, words_of
from sordino.errors import SordinoError, WireError
from sordino.privacy.uplink.channels import Messages, Opened, Step, SumAtSites
from sordino.privacy.uplink.fixed_point import Ints
from sordino.privacy.uplink.secure_stages import Aggregated
from sordino.sites.remote_sites import RemoteSites
from sordino.transport.run_events import RunEvent
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
    """One masked round, from the first message to each site until the sum is opened."""

    def __init__(self, sites: MaskedSites, t: int, down: Tree, terms: Mapping[int, Terms]) -> None:
        self._sites, self._t, self._terms = sites, t, terms
        self._size = words_of(sites.algorithm, sites.task, t, down)
        self._message = wire.encode(sites.header(t), down)
        self._there: dict[str, list[int]] = {}  # who has taken every step until now, by site

    def open(self, noise: Ints | None) -> Opened:
        assert noise is None  # under masks the server adds its noise to the sum that it opens
        uplink, run = self._sites.algorithm.uplink, self._sites.header(self._t).run
        assert isinstance(uplink.secure, Aggregated)
        assert uplink.grid is not None
        masks = uplink.secure.sums.channel(uplink.secure, uplink.grid.layout, run)
        model = hashlib.sha256(self._message).digest()
        found = masks.open(self._t, len(self._terms), self._size, model, lambda session: self._take_step)
        self._sites.have_answered(self._t, found.who)
        return found

    def _take_step(self, step: Step, messages: Messages, receive: Callable[[int, bytes], None]) -> None:
        """Runs a step with the clients still in the round: passes on the messages that came in time; clients without a
        valid one have dropped out.
        """
        if step == "round":
            self._there = self._sites.asked(self._terms)
            self._sites.have_been_asked(self._t, self._there)
            first = self._first_letters(self._there)
            answers = self._sites.exchange(first, self._enough, others=self._latecomers)
        else:
            letters: dict[str, tuple[Command, Sequence[bytes]]] = {
                peer: (Mask(self._t, step, who), messages(who)) for peer, who in self._there.items()
            }
            answers = self._sites.exchange(letters)
        there: dict[str, list[int]] = {}
        for peer, letter in answers.items():
            answer = read_answer(letter.head.said)
            clients = answer.clients if isinstance(answer, Answered) else []
            for k, body in zip(clients, letter.bodies, strict=False):
                try:
                    if k not in self._there[peer]:
                        raise WireError("a message of another client", fix="ignore it", code="other-sender")
                    receive(k, bytes(body))
                except SordinoError as error:
                    why = f"client {self._sites.called(k)} of {peer} drops out: {error.what}"
                    self._sites.note(RunEvent(event="dropped", site=peer, round=self._t + 1, why=why))
                else:
                    there.setdefault(peer, []).append(k)
        self._there = there

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

    def _enough(self, answers: Replies) -> bool:
        counts = (len(letter.bodies) for letter in answers.values())
        return self._sites.suffices(self._t, sum(counts), len(self._terms))
