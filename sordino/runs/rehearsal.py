"""A run's books, filled as if every planned round had been played, and nothing computed: who pays, and what the receipt
will say. A site fills its own as if it were asked as often as it may pay for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sordino.accounting.statement import Guarantee, statement
from sordino.algorithms.optional import Home
from sordino.engine.server import Federation
from sordino.ledger.ledger import MEMORY
from sordino.runs.setup import Setup


@dataclass(frozen=True)
class Rehearsal:
    """The training of a run and the phases before it, on ledgers in memory."""

    setup: Setup
    home: Home
    only: tuple[int, ...] | None = None  # the clients of a site, whose books these are; None for all

    @cached_property
    def federation(self) -> Federation:
        digest, system = self.setup.experiment.digest(), self.setup.policy.real
        # as long as a run's own id, so that messages are as long as the run's
        run = f"{digest[:16]}-{'0' * 12}" if system else digest[:16]
        return self.setup.federation(self.home, "", MEMORY, run, self.only)

    @cached_property
    def rounds(self) -> list[Sequence[int]]:
        """Who will take part and pay, round by round. Reserving fills the books of `federation`."""
        run, played = self.federation, list[Sequence[int]]()
        for t in range(self.setup.experiment.rounds):
            now = run.open(t)
            if self.only is None:
                active: Sequence[int] = run.stragglers.split(run.draw(now), t, run.key).active
            else:  # whom a public seed draws is no limit: a server may ask others
                active = [k for k in self.only if run.may_be_asked(k)]
            prices = run.prices(now, active, stalled=self.only is not None)
            played.append(run.reserve(now, prices).granted)
        return played

    @cached_property
    def guarantees(self) -> list[Guarantee]:
        """What the receipt will say when every planned round has been played."""
        _, run = self.rounds, self.federation
        notes = [*self._before, *(entry.note for entry in run.ledger.entries())]
        # where everyone pays for every round, one client's row is everyone's
        alike = run.plan.one_price and not run.cohort.personal and not self._before
        people, rows = 1 if alike else run.population, self.setup.public.rows_per_key
        return statement(notes, people, self.setup.experiment.privacy.delta, rows_per_key=rows)

    @cached_property
    def _before(self) -> list[str]:
        """Of a preparation: everybody in every round that its phases may take, which is the most that anybody can lose
        there.
        """
        notes = []
        for phase in self.setup.preparation:
            run = phase.federation(self.home, "", MEMORY, "plan", self.only)
            for t in range(phase.rounds):
                now = run.open(t)
                run.reserve(now, run.prices(now, run.members, stalled=False))
            notes += [entry.note for entry in run.ledger.entries()]
        return notes
