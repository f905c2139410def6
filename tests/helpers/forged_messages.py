"""A server that says whatever it likes to a site, with messages that are signed as they should be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sordino.engine import wire
from sordino.engine.commands import Begin, Command, Round, Score, read_answer
from sordino.sampling.draws import Turnout
from sordino.sites.membership import Membership
from sordino.transport.message import Signer, peek
from tests.helpers.between_sites import SERVER, Federated
from tests.laws.cases import BY_NAME


class Server:
    """Somebody with the server's key, who says whatever he likes."""

    def __init__(self, between: Federated, site: str = "site-0") -> None:
        self.between, self.site = between, site
        self.place = 10
        self.member: Membership = between.member(site)
        self.whole = self.member.whole
        self.phase = self.whole.phases[-1]
        self.says(Begin(), place=self.place)

    def restart(self) -> None:
        """The site is started again, and asked to begin by a server that has kept nothing of it: it gives back what
        the site says now.
        """
        self.member = self.between.member(self.site)
        self.says(Begin(), place=self.place)
        if peek(self.signed).ledger:
            self.says(Begin(answered=True), place=self.place, messages=[self.signed])

    @property
    def own(self) -> int:
        return self.between.agreed.sites[self.site][0]

    def planned(self, t: int = 0, stalled: bool = False) -> Round:
        """Round t as the plan has it, for the client of this site."""
        books = self.phase.federation(self.member.accounts.training.home, "", ":memory:", "rehearsal")
        with books.ledger:
            for before in range(t):
                now = books.open(before)
                books.reserve(now, books.prices(now, [self.own], stalled))
            now = books.open(t)
            now = books.reserve(now, books.prices(now, [self.own], stalled))
            return Round(t, books.all_terms(now, Turnout([self.own], frozenset(), {})))

    def says(
        self,
        command: Command,
        place: int | None = None,
        stage: int | None = None,
        ledger: str | None = None,
        messages: Sequence[bytes] = (),
        down: Any = None,
        **heading: Any,
    ) -> tuple[Any, list[bytes]]:
        """A message to the site, and its answer. `down`: what a round comes with, in place of the true broadcast."""
        messages = list(messages)
        if isinstance(command, Round):
            if down is None:
                down = self.phase.algorithm.broadcast(self.phase.state("server"))
            messages = [wire.encode(self.phase.header(self.between.run)(max(0, command.t), -1), down)]
        elif isinstance(command, Score):
            model = next(iter(self.phase.algorithm.models(self.phase.state("server")).values()))
            messages = [wire.encode(self.phase.header(self.between.run)(command.t, -1), (model,))]
        self.place = self.place + 1 if place is None else place
        ledger = f"{self.place}:{self.place:064x}" if ledger is None else ledger
        signer: Signer = replace(self.between.signer(SERVER), **heading)
        stage = self.phase.stage if stage is None else stage
        message = signer.write(self.site, stage, asdict(command), messages, ledger=ledger)
        said = self.member.handler.answer(message)
        if heading or not peek(said).to:  # it could not even read from whom the message came
            return read_answer(peek(said).said), []
        head, bodies, self.signed = signer.read(said)
        return read_answer(head.said), [bytes(body) for body in bodies]

    @property
    def place_told(self) -> bytes:
        return f"{self.place}:{self.place:064x}".encode()

    def spent(self) -> int:
        return len(list(self.member.accounts.training.ledger.entries()))


@contextmanager
def serving(name: str, place: Path, shares_scores: bool = False, **tables: Any) -> Iterator[Server]:
    made = Server(Federated(BY_NAME[name].experiment(**tables), place, shares_scores=shares_scores))
    try:
        yield made
    finally:
        made.member.close()
