"""Planner: what a phase will guarantee, who pays in each round, and how large its noise will be.

It works on a `PlannedPhase`, so public numbers are enough: every round is reserved on a ledger in memory, as the run
would reserve it, and nothing is trained. A site plans for itself alone, as if it were asked as often as it may pay for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

from sordino.accounting.facts import Fact, Number
from sordino.accounting.statement import Guarantee, Promised, statement, unspent
from sordino.budget.plan import kinds
from sordino.budget.schedules import Adaptive
from sordino.ledger.ledger import MEMORY
from sordino.planning.accounts import Accounts
from sordino.planning.noise_level import Enough, Loudness, enough, marks, of_reader, of_uplink, warning, ways_out
from sordino.planning.phase import PlannedPhase


class PlanRow(Fact):
    """A plan with its noise, traffic and time, as a row of a table of plans."""

    what: str
    clients: int
    cohort: Number
    rounds: int
    promise: Promised | None  # None: nothing is promised
    noise_multiplier: Number | None
    exposures: int
    noise_to_signal: float | None  # norm of the noise in the mean over the largest possible signal
    bytes: int
    minutes: float | None = None  # None: nothing was measured
    run: tuple[str, ...]  # arguments of `sordino run`


R = TypeVar("R", bound=PlanRow)


class ExpectedNoise(NamedTuple):
    """Noise in the mean of a round: of gradients, before the step size, where records are protected; of updates where
    clients are.
    """

    norm: float
    signal: float  # the largest norm of what is under the noise

    @property
    def ratio(self) -> float:
        return self.norm / self.signal


@dataclass(frozen=True)
class Planner:
    """Plan of the training of a run, with the phases before it."""

    phase: PlannedPhase
    only: tuple[int, ...] | None = None  # the clients of a site, whose books these are; None for all

    # the guarantee ----------------------------------------------------------------------------------------------------

    @property
    def run(self) -> str:
        """A stand-in for the run's name, of the same length, so that messages have the length that they have in the
        run.
        """
        digest = self.phase.experiment.digest()[:16]
        return f"{digest}-{'0' * 12}" if self.phase.policy.real else digest

    @cached_property
    def books(self) -> Accounts:
        """Privacy accounts of the training, in memory."""
        return self.phase.accounts(Accounts, "", MEMORY, self.run, self.only)

    @cached_property
    def rounds(self) -> list[Sequence[int]]:
        """The clients that take part and pay in each round. Computing them fills the accounts."""
        books, played = self.books, list[Sequence[int]]()
        for t in range(self.phase.experiment.rounds):
            now = books.open(t)
            if self.only is None:
                active: Sequence[int] = books.stragglers.split(books.draw(now), t, books.key).active
            else:  # whom a public seed draws does not limit a server, which may ask others
                active = [k for k in self.only if books.may_be_asked(k)]
            prices = books.prices(now, active, stalled=self.only is not None)
            played.append(books.reserve(now, prices).granted)
        return played

    @cached_property
    def guarantees(self) -> list[Guarantee]:
        """The rows of the receipt after the last planned round."""
        _, books = self.rounds, self.books
        notes = [*self._before, *(entry.note for entry in books.ledger.entries())]
        # where everyone pays for every round, one client's row is everyone's
        alike = books.plan.one_price and not books.cohort.personal and not self._before
        people, rows = 1 if alike else books.population, self.phase.public.rows_per_key
        return statement(notes, people, self.phase.experiment.privacy.delta, rows_per_key=rows)

    @property
    def promise(self) -> Promised | None:
        """The row of the receipt that the budget pays for; None where nothing is guaranteed."""
        if self.phase.plan.offer is None:
            return None
        subject = self.phase.plan.offer.subject
        found = next((row for row in self.guarantees if row.subject == subject), None)
        row = found or unspent(subject, "none: nobody ever takes part")
        return Promised.of(row, accountant=row.accountant)

    @cached_property
    def _before(self) -> list[str]:
        """Ledger notes of the phases before the training, in the worst case: every client takes part in every round
        that a phase may have."""
        notes = []
        for phase in self.phase.preparation:
            books = phase.accounts(Accounts, "", MEMORY, "plan", self.only)
            for t in range(phase.rounds):
                now = books.open(t)
                books.reserve(now, books.prices(now, books.members, stalled=False))
            notes += [entry.note for entry in books.ledger.entries()]
        return notes

    def row(self, kind: type[R], what: str, run: Sequence[str], promise: Promised | None, **more: object) -> R:
        """A row for a table of plans, with `more` fields of its kind."""
        phase, offer, people = self.phase, self.phase.plan.offer, len(self.phase.public.sizes)
        return kind.model_validate(
            {
                "what": what,
                "clients": people,
                "cohort": phase.cohort.expected(people),
                "rounds": phase.experiment.rounds,
                "promise": promise,
                "noise_multiplier": None if offer is None else self.multiplier(self.busiest),
                "exposures": phase.plan.exposures[self.busiest],
                "noise_to_signal": self.expected_noise and self.expected_noise.ratio,
                "run": tuple(run),
                **more,
            }
        )

    # the noise --------------------------------------------------------------------------------------------------------

    @cached_property
    def busiest(self) -> int:
        """The client that is planned to pay for the most noisy reads."""
        plan = self.phase.plan
        first = (client for client, _ in kinds(plan.exposures, plan.reads))
        return max(first, key=lambda k: (plan.exposures[k] * plan.reads[k], plan.exposures[k], -k))

    def multiplier(self, client: int) -> float | None:
        """The client's noise multiplier halfway through its rounds, or at the first one where spending adapts and later
        ones are not known; None without a price."""
        plan, times = self.phase.plan, self.phase.plan.exposures[client]
        adaptive = plan.budget is not None and isinstance(plan.budget.schedule, Adaptive)
        price = plan.price(client, 0 if adaptive else times // 2, plan.currency.zero()) if times else None
        return None if price is None else price.multiplier

    @cached_property
    def expected_noise(self) -> ExpectedNoise | None:
        """The noise in the mean of a cohort of the expected size, whose clients are weighted by how often the plan
        draws them; None where nothing is noised, or by a reader whose noise is not known."""
        phase = self.phase
        plan, algorithm, slow, sizes = phase.plan, phase.algorithm, phase.experiment.stragglers, phase.public.sizes
        if plan.offer is None:
            return None
        granted = [] if plan.budget is None or plan.budget.personal is None else [plan.budget.personal]
        cohort, largest, of_clients = phase.cohort.expected(len(sizes)), max(sizes), plan.offer.subject.unit == "client"
        answering = 1 - slow.share if slow.policy in ("drop", "late") else 1.0
        seen: list[tuple[float, float, Loudness]] = []  # (how often, weight, loudness)
        for k, count in kinds(plan.exposures, plan.reads, sizes, *granted):
            z, size = self.multiplier(k), sizes[k]
            if z is None:
                continue
            loud = (
                of_uplink(algorithm.uplink, z, phase.coordinates)
                if of_clients
                else of_reader(algorithm.read, algorithm.work, z, size)
            )
            if loud is None:
                return None
            if algorithm.uplink.personal:  # one noise for all, and a bound for each
                loud = Loudness(loud.std * plan.quietest / z, loud.signal * plan.quietest / z)
            weight = algorithm.uplink.weight(size, largest, plan.precision(k))
            seen.append((count * plan.exposures[k], weight, loud))
        visits = math.fsum(often for often, _, _ in seen)
        if not visits or not answering:
            return None
        weight = math.fsum(often * w for often, w, _ in seen) / visits
        signal = math.fsum(often * w * loud.signal for often, w, loud in seen) / visits / weight
        if self._central:  # one noise, and a denominator that counts the missing too
            std, signal = max(loud.std for _, _, loud in seen) / (cohort * weight), signal * answering
        else:
            square = math.fsum(often * (w * loud.std) ** 2 for often, w, loud in seen) / visits
            std = math.sqrt(square / (cohort * answering)) / weight
        return ExpectedNoise(std * math.sqrt(phase.coordinates if of_clients else phase.parameters), signal)

    @property
    def _central(self) -> bool:
        offer = self.phase.plan.offer
        return offer is not None and offer.subject.unit == "client" and self.phase.algorithm.uplink.central

    def loud_enough(self, at_delta: Callable[[float], PlannedPhase] | None = None) -> list[Enough]:
        """Federations, grown from this one, in which the noise is small enough relative to the signal; without
        `at_delta` only those with the same delta.
        """
        offer, noise, delta, sizes = self.phase.plan.offer, self.expected_noise, self._delta, self.phase.public.sizes
        if offer is None or noise is None:
            return []
        units = 1 if offer.subject.unit == "client" else -(-sum(sizes) // len(sizes))
        cohort, power = self.phase.cohort.expected(len(sizes)), 1 if self._central else 2

        def ratio(wanted: float) -> float:
            if wanted == delta:
                return noise.ratio
            found = Planner(at_delta(wanted)).expected_noise if at_delta else None
            return math.inf if found is None else found.ratio

        return marks(lambda below: enough(below, len(sizes), cohort, delta, units, power, ratio), noise.ratio)

    @property
    def warnings(self) -> list[str]:
        """A warning at the start of a run whose noise exceeds the largest possible signal. It reads public numbers only
        and calibrates nothing new.
        """
        if self.expected_noise is None:
            return []
        same = [way for way in self.loud_enough() if way.delta == self._delta]
        ways = [*ways_out(same, self._delta), "`sordino privacy plan` compares what would help."]
        said = warning(self.expected_noise.ratio, ways)
        return [said] if said else []

    @property
    def _delta(self) -> float:
        return self.phase.experiment.privacy.delta
