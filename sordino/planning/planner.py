"""Planner: what a phase will guarantee, who pays in each round, and how large its noise will be.

It works on a `PlannedPhase`, so public numbers are enough: every round is reserved on a ledger in memory, as the run
would reserve it, and nothing is trained. A site plans for itself alone, as if it took part as often as it can pay.

The noise of one upload is compared with the largest signal that it can carry. In a round's mean independent noises of
the clients average out, and one central noise is divided by the public denominator. All norms are root mean
squares: a coordinate's deviation times sqrt(d).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, singledispatch
from typing import NamedTuple, TypeVar

from sordino.accounting.claims import Subject
from sordino.accounting.facts import Fact, Number
from sordino.accounting.statement import COARSE, Guarantee, Promised, of_groups, statement, unspent
from sordino.algorithms.optional import RequestsClients
from sordino.budget import lacks_delta
from sordino.budget.plan import kinds
from sordino.ledger.ledger import MEMORY
from sordino.planning.accounts import Accounts
from sordino.planning.phase import PlannedPhase
from sordino.privacy.noise.sources import check_digits
from sordino.privacy.readers.convex_stable import ConvexStable
from sordino.privacy.readers.episodes import CellGradient
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.uplink import Uplink
from sordino.types import LocalWork


class PlanRow(Fact):
    """A plan with its noise, traffic and time, as a row of a table of plans."""

    what: str
    clients: int
    cohort: Number
    rounds: int
    promise: Promised | None  # None: nothing is promised
    noise_multiplier: Number | None
    participations: int
    noise_to_signal: float | None  # norm of the noise in the mean over the largest possible signal
    bytes: int
    minutes: float | None = None  # None: nothing was measured
    run: tuple[str, ...]  # arguments of `sordino run`


R = TypeVar("R", bound=PlanRow)


class ExpectedNoise(NamedTuple):
    """Noise in a round's mean, compared with the largest signal: of gradients before the step size, if records are
    protected; of updates, if clients are.
    """

    norm: float
    signal: float  # largest norm of the vector to which the noise is added

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
            active: Sequence[int] = books.members
            # a method that chooses its clients by what came of earlier rounds may ask each of them in every round
            if self.only is None and not isinstance(books.algorithm, RequestsClients):
                active = books.stragglers.split(books.draw(now), t, books.key).active
            # a site may be asked in any round whatever the seed says, and secret coins may draw any client
            anybody = self.only is not None or (books.policy.secret_cohort and not books.plan.everyone_pays)
            who = [k for k in books.members if books.may_be_asked(k)] if anybody else active
            prices = books.prices(now, who, stalled=True)  # an adaptive schedule spends as fast as it may
            played.append(sorted({*active} & {*books.reserve(now, prices).granted}))
        return played

    @cached_property
    def guarantees(self) -> list[Guarantee]:
        """Guarantees after the last planned round, as the receipt would state them."""
        books = self.books
        # where everyone pays for every round, one client's row is everyone's
        alike = books.plan.one_price and not books.cohort.personal and not self._before
        people, rows = 1 if alike else books.population, self.phase.public.rows_per_key
        return statement(self._notes, people, self.phase.experiment.privacy.delta, rows_per_key=rows)

    def check_noise(self) -> None:
        """Refuses noise that its law, or this machine, cannot draw, and real noise of a typed size that needs a larger
        delta than was granted; noise that a budget sizes leaves room for what it lacks of the ideal law."""
        _ = self.expected_noise  # asks the law
        if self.phase.policy.real:
            check_digits()
        delta = self.phase.experiment.privacy.delta
        phases = self.phase.whole.phases
        offers = [one for phase in phases for one in phase.offers]
        published = {"client" for phase in phases if phase.algorithm.uplink.per_coordinate is not None}
        if not self.phase.policy.real or not (published or any(typed is not None for _, typed in offers)):
            return
        asked = {offer.subject.unit for offer, _ in offers}  # a guarantee that follows from theirs may need more
        rows = (row for row in self.guarantees if row.unit in asked | published)
        # noise as published may have no finite row: nothing was asked of it
        found = max((1.0 if COARSE in row.because and row.unit in asked else row.delta for row in rows), default=delta)
        if found > delta:
            raise lacks_delta(delta, found)

    def by_budget(self, subject: Subject) -> dict[float, tuple[Sequence[int], Guarantee]]:
        """Clients with each budget, and their guarantee; empty if all have the same budget."""
        budget, delta = self.phase.plan.budget, self.phase.experiment.privacy.delta
        levels = {} if budget is None else budget.levels()
        rows = of_groups(self._notes, self.books.population, delta, subject, list(levels.values()))
        return {level: (levels[level], row) for level, row in zip(levels, rows, strict=True) if row is not None}

    @property
    def promise(self) -> Promised | None:
        """The guarantee that the budget pays for; None if nothing is guaranteed."""
        if self.phase.plan.offer is None:
            return None
        subject = self.phase.plan.offer.subject
        found = next((row for row in self.guarantees if row.subject == subject), None)
        row = found or unspent(subject, "none: nobody ever takes part")
        return Promised.of(row, accountant=row.accountant)

    @property
    def _notes(self) -> list[str]:
        """Ledger notes of all phases after the last planned round."""
        _ = self.rounds
        return [*self._before, *(entry.released for entry in self.books.ledger.entries())]

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
            notes += [entry.released for entry in books.ledger.entries()]
        return notes

    def row(self, kind: type[R], what: str, run: Sequence[str], promise: Promised | None, **more: object) -> R:
        """A row for a table of plans. `kind`: its class; `more`: the fields that this class adds."""
        phase, offer, people = self.phase, self.phase.plan.offer, len(self.phase.public.sizes)
        return kind.model_validate(
            {
                "what": what,
                "clients": people,
                "cohort": phase.cohort.expected(people),
                "rounds": phase.experiment.rounds,
                "promise": promise,
                "noise_multiplier": None if offer is None else self.multiplier(self.busiest),
                "participations": phase.plan.participations[self.busiest],
                "noise_to_signal": self.expected_noise and self.expected_noise.ratio,
                "run": tuple(run),
                **more,
            }
        )

    # the noise --------------------------------------------------------------------------------------------------------

    @cached_property
    def busiest(self) -> int:
        """The client whose examples are planned to be read with noise most often."""
        plan = self.phase.plan
        first = (client for client, _ in kinds(plan.participations, plan.reads))
        return max(first, key=lambda k: (plan.participations[k] * plan.reads[k], plan.participations[k], -k))

    def multiplier(self, client: int) -> float | None:
        """The client's noise multiplier in the middle of its rounds; in its first round, if spending adapts to
        releases. None if it has no price."""
        plan, times = self.phase.plan, self.phase.plan.participations[client]
        price = plan.price(client, 0 if plan.adapts else times // 2, plan.currency.zero()) if times else None
        return None if price is None else price.multiplier

    @cached_property
    def expected_noise(self) -> ExpectedNoise | None:
        """Noise in the mean of a cohort of the expected size; clients count as often as the plan samples them. None
        where there is no noise, or where it is not known."""
        phase = self.phase
        plan, algorithm, slow, sizes = phase.plan, phase.algorithm, phase.experiment.stragglers, phase.public.sizes
        if plan.offer is None:
            return None
        granted = [] if plan.budget is None or plan.budget.personal is None else [plan.budget.personal]
        cohort, largest, of_clients = phase.cohort.expected(len(sizes)), max(sizes), plan.offer.subject.unit == "client"
        answering = 1 - slow.share if slow.policy in ("drop", "late") else 1.0
        seen: list[tuple[float, float, NoiseLevel]] = []  # (how often, weight, loudness)
        for k, count in kinds(plan.participations, plan.reads, sizes, *granted):
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
                loud = NoiseLevel(loud.std * plan.quietest / z, loud.signal * plan.quietest / z)
            weight = algorithm.uplink.weight(size, largest, plan.precision(k))
            seen.append((count * plan.participations[k], weight, loud))
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

    def loud_enough(self, at_delta: Callable[[float], PlannedPhase] | None = None) -> list[SmallestFederation]:
        """Larger federations of the same kind, in which the noise becomes small relative to the signal. `at_delta`:
        plan for another delta; without it only federations with the same delta.
        """
        offer, noise, sizes = self.phase.plan.offer, self.expected_noise, self.phase.public.sizes
        delta = self.phase.experiment.privacy.delta
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
        """A warning at the start of a run whose noise exceeds the largest possible signal. It reads no data and
        calibrates nothing new."""
        if self.expected_noise is None:
            return []
        delta = self.phase.experiment.privacy.delta
        same = [way for way in self.loud_enough() if way.delta == delta]
        ways = [*ways_out(same, delta), "`sordino privacy plan` compares what would help."]
        text = warning(self.expected_noise.ratio, ways)
        return [text] if text else []


# noise / largest signal of one round: above LOUD mostly noise is seen, below QUIET a signal is clear
LOUD, QUIET = 1.0, 0.3
MANKIND = 10**10  # more clients than there are people: no such federation is suggested


class NoiseLevel(NamedTuple):
    """Standard deviation of the noise on one coordinate, beside the size of what it hides."""

    std: float  # of one coordinate of the noise
    signal: float  # largest 2-norm of the vector to which the noise is added


@singledispatch
def of_reader(reader: object, work: LocalWork, multiplier: float, size: int) -> NoiseLevel | None:
    """Noise and largest signal of the sum of a round's gradients at one client, before the step size; None where the
    noise is not known."""
    return None


@of_reader.register
def _(reader: NoisyGradient, work: LocalWork, multiplier: float, size: int) -> NoiseLevel:
    # every step's gradient carries its own noise: deviations add in squares, signals at most plainly
    steps, denominator = work.count(size), reader.denominator(size, work.batch(size))
    std = multiplier * reader.mechanism.spread * reader.sensitivity / denominator
    return NoiseLevel(math.sqrt(steps) * std, steps * reader.clip)


@of_reader.register
def _(reader: CellGradient, work: LocalWork, multiplier: float, size: int) -> NoiseLevel:
    steps, denominator = work.count(size), reader.denominator
    return NoiseLevel(math.sqrt(steps) * multiplier * reader.sensitivity / denominator, steps * reader.clip)


@of_reader.register
def _(reader: ConvexStable, work: LocalWork, multiplier: float, size: int) -> NoiseLevel:
    steps = work.count(size)  # one noise for all of them
    return NoiseLevel(reader.noise_std(multiplier, size, steps), steps * math.sqrt(2) * reader.radius)


def of_uplink(uplink: Uplink, multiplier: float, coordinates: int) -> NoiseLevel:
    """Noise and largest signal of one upload where the clients add the noise, or of the sum where the server does."""
    stage, bound = uplink.noise(), uplink.bound(coordinates)
    assert stage is not None
    std = stage.std(bound, multiplier, coordinates)
    return NoiseLevel(std / uplink.scale, bound.l2 / uplink.scale)


# loud enough ----------------------------------------------------------------------------------------------------------


class SmallestFederation(NamedTuple):
    """The smallest federation (clients and cohort grown in proportion) whose ratio of noise to largest signal is below
    `below`.
    """

    below: float
    clients: int
    cohort: int
    delta: float  # the one asked for, or a smaller one that is below 1 / protected units
    noise_to_signal: float


def enough(
    below: float, clients: int, cohort: float, delta: float, units: int, power: int, ratio: Callable[[float], float]
) -> SmallestFederation | None:
    """The smallest federation whose ratio of noise to largest signal is below `below`; None if it would have more
    clients than there are people.

    At a fixed sampling rate and number of rounds the multiplier does not depend on the number of clients, so
    `ratio(delta)`, given for the present size, falls as 1/cohort (central noise, power 1) or 1/sqrt(cohort) (noise of
    every client, power 2). Only a smaller delta needs a new calibration. `units`: protected units per client.
    """
    while True:
        now = ratio(delta)
        growth = (now / below) ** power
        if growth * clients > MANKIND:
            return None
        grown = math.floor(cohort * growth) + 1 if now >= below else math.ceil(cohort)
        people = math.ceil(grown * clients / cohort)
        if delta < 1 / (people * units):
            return SmallestFederation(below, people, grown, delta, now * (cohort / grown) ** (1 / power))
        delta = 10.0 ** -(math.floor(math.log10(people * units)) + 1)


def marks(search: Callable[[float], SmallestFederation | None], ratio: float) -> list[SmallestFederation]:
    return [found for below in (LOUD, QUIET) if ratio >= below and (found := search(below))]


def warning(ratio: float, ways: list[str]) -> str | None:
    """A warning where the noise of a round exceeds the largest possible signal, with ways out; None where it does
    not.
    """
    if ratio <= LOUD:
        return None
    loud = (
        f"The noise in one round's mean is {ratio:.3g} times the largest possible signal: a single round "
        "then shows mostly noise, and many rounds may still learn."
    )
    return " ".join([loud, *ways])


def ways_out(found: Sequence[SmallestFederation], delta: float) -> list[str]:
    return [
        f"It falls below {way.below:g} with {way.clients:,} such clients, {way.cohort:,} in a round"
        + (
            "."
            if way.delta == delta
            else f", at delta {way.delta:g}: {delta:g} would not be below 1 / protected units."
        )
        for way in found
    ]


NO_WAY = "More clients than there are people would not change that: plan fewer rounds, a smaller model or another unit."
