"""A site's half of masked sums: its clients' keys, seeds and shares, in memory only, and every step taken once.

Why no operation has two masked uploads: a round is paid for when its first message (signed by the server) arrives, and
before masked words leave, the shelf (stored answers) records durably that they do. From then on

- the same messages get the same bytes, from memory, and other contents are refused;
- a site that was restarted finds the round on its shelf and answers that its clients have dropped out. Their words may
  have left: fresh keys would put the same operation under a second mask.

A site that was restarted before that has nothing on its shelf, so no words have left: it may draw fresh keys and noise,
and no sum is unmasked twice. The list of members that names the old keys is refused by clients that have new ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from sordino.algorithms.optional import PerClientMessages
from sordino.engine import wire
from sordino.engine.commands import Answered, Mask, Round
from sordino.engine.secure_sum import check_one_broadcast, flat, words_of
from sordino.engine.site import Site
from sordino.errors import LedgerError, SecureError, WireError
from sordino.privacy.uplink.layout import Ints
from sordino.privacy.uplink.secure_stages import Aggregated
from sordino.secagg.masked import MaskedWords
from sordino.secagg.secagg_client import Participants
from sordino.transport.desk import Given, Keep, Operation


class MaskedRound:
    """Clients of one site in one masked round."""

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
        # what this site received, and not what the server says that it sent
        model = hashlib.sha256(asked.messages[0]).digest()
        self._participants = Participants(self._masked.session(header.run, command.t, size, model), command.terms)
        self._given: dict[str, tuple[str, Given]] = {}  # step -> what was asked, and the answer

    @property
    def place(self) -> tuple[int, int]:
        """Phase and round."""
        return self.asked.stage, self._command.t

    def first(self, asked: Operation) -> Given:
        """Answers the message that begins the round."""
        if (before := self._before("round", asked)) is not None:
            return before
        return self._gives("round", asked, _all(self._participants.messages("round", [*self._command.terms], [])))

    def given(self, asked: Operation, command: Mask) -> Given | None:
        """Answer to a later message, where it was given before; None where it was not."""
        if not command.clients or not all(k in self._participants for k in command.clients):
            raise WireError(f"clients {command.clients} are asked, who have not begun", fix="ignore it", code="others")
        return self._before(command.step, asked)

    def step(self, asked: Operation, command: Mask, keep: Keep) -> Given:
        """Answers a later message; `keep` records durably that masked words leave, with the states after them."""
        sent = list(map(bytes, asked.messages))
        found = _all(self._participants.messages(command.step, command.clients, sent, self._words(command.clients)))
        if command.step == "inbox":
            keep(found[1])
        return self._gives(command.step, asked, found)

    def _words(self, clients: Sequence[int]) -> Iterator[tuple[int, Ints]]:
        """Trains these clients and yields their uploads as words to be masked."""
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
