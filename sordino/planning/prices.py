"""Prices of a phase (noise multiplier and ledger charge of each participation), and refusals of plans whose guarantee
would not hold, before any data are read: too many units for a delta, an uplink that does not fit, a secure sum that may
have too few clients to be decrypted or unmasked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sordino import user_code
from sordino.accounting.accountants import best
from sordino.accounting.claims import PURE, UNITS, Claim
from sordino.accounting.events import Event, NoAccess, Poisson, Repeat, compact, leaves
from sordino.accounting.pricing import NominalPrice, Pricing
from sordino.accounting.published import nominal_multiplier
from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.algorithms.local_sgd import LocalSgd
from sordino.algorithms.optional import OtherReads
from sordino.budget import Adaptive
from sordino.budget.plan import Budget, Plan, draft, exactly_gaussian, shared_currency
from sordino.config import Privacy
from sordino.errors import ConfigError, EmptyClient, InvalidBudget, Range, UnsoundGuarantee, check_range
from sordino.privacy.noise.sources import TABLE_ERROR
from sordino.privacy.readers import check_apart
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.uplink import Uplink, single_uploads
from sordino.privacy.uplink.secure_stages import check_cohort, check_noise
from sordino.privacy.uplink.stages import Weigh
from sordino.sampling import Cohort, alike
from sordino.sampling.by_budget import Personal, ThresholdPublished
from sordino.types import Offer, Task, Unit


@dataclass(frozen=True)
class PriceRequest:
    """Facts about a phase (method, cohort, sizes of clients) from which its prices follow: the noise multiplier and
    ledger charge of each participation."""

    algorithm: AnyAlgorithm
    cohort: Cohort
    privacy: Privacy
    offers: list[tuple[Offer, float | None]]  # noise mechanisms, with multipliers set by the user
    sizes: Sequence[int]
    coordinates: int  # of one upload
    rounds: int

    @cached_property
    def participations(self) -> Sequence[int]:
        """Rounds that each client is planned to pay for."""
        if any(offer.everyone_pays for offer, _ in self.offers):  # in every round, sampled or not
            return alike(self.rounds, len(self.sizes))
        return self.cohort.participations(self.rounds, len(self.sizes))

    @cached_property
    def reads(self) -> Sequence[int]:
        """Number of times that each client's examples are read with noise in one round."""
        sizes, where = np.unique(np.asarray(self.sizes), return_inverse=True)
        each = [self.algorithm.read.reads(self.algorithm.work, size) for size in sizes.tolist()]
        return np.array(each)[where].data

    @property
    def drift(self) -> float:
        """Bound on how far a client's real noise deviates from its ideal law, in total variation over all rounds."""
        several = math.ceil(self.cohort.expected(len(self.sizes))) if self.algorithm.uplink.shared else 1
        offer, _ = self.asks
        sent, read = several * self.algorithm.uplink.error, max(self.reads) * TABLE_ERROR
        return max(self.participations) * (sent if offer.subject.unit == "client" else read) * self.coordinates

    @property
    def asks(self) -> tuple[Offer, int]:
        """The noise mechanism that the budget calibrates, and the largest number of releases that a client is planned
        to pay for."""
        offer = next(offer for offer, typed in self.offers if typed is None)
        each = 1 if offer.subject.unit == "client" else max(self.reads)
        return offer, max(1, max(self.participations) * each)

    @cached_property
    def promises(self) -> list[Claim]:
        """Claims of a round in which noise protects somebody, whether a budget pays for it or not: randomised response
        and noise as published offer nothing to a budget. Noise that a budget sizes has the multiplier 1 here.
        """
        read, uplink = self.algorithm.read, self.algorithm.uplink
        made = [
            *read.claims(self.algorithm.work, max(self.sizes), 1.0),
            *uplink.claims(1.0, lambda event, adversary: event),
        ]
        return [claim for claim in made if claim.finite and claim.event != NoAccess()]

    def check(self) -> None:
        """Refuses a phase whose guarantee would not hold under any budget."""
        algorithm, population = self.algorithm, len(self.sizes)
        algorithm.uplink.bound(self.coordinates)
        check_gate(
            algorithm.uplink,
            algorithm.reads_each,
            population if self.cohort.hidden else self.cohort.expected(population),
        )
        if any(isinstance(stage, Weigh) for stage in algorithm.uplink.client):
            check_sizes(self.privacy)
        pure = {claim.unit: all(each.pure() is not None for each in leaves(claim.event)) for claim in self.promises}
        pure |= {offer.subject.unit: offer.mechanism.pricing.currency == PURE for offer, _ in self.offers}
        for unit in sorted(pure, key=UNITS.index, reverse=True):
            if unit != "client":
                check_sizes(self.privacy)
            check_delta(unit, pure[unit], self.privacy, population, sum(self.sizes))
        noise = algorithm.uplink.noise()
        if noise is not None and noise.louder != 1 and not isinstance(self.cohort, ThresholdPublished):
            raise UnsoundGuarantee(
                f"the noise is {noise.louder:g} times as large as the budget pays for",
                why="only the published mechanism, whose budgets are not proved, may be taken literally",
                fix='set cohort = {name = "threshold_published"}, or literal = false',
                code="literal-needs-its-cohort",
            )
        if (
            not isinstance(self.cohort, Personal)
            and len(self.offers) > 1
            and any(offer.everyone_pays for offer, _ in self.offers)
        ):
            raise UnsoundGuarantee(
                "two gates with noise, in a hidden cohort",
                why="the price that clients pay for their examples reveals who was drawn and how many examples they "
                "hold; a hidden cohort must reveal neither",
                fix="use a visible cohort, or only one of the two gates",
                code="two-gates-hidden",
            )

    def plan(self, budget: Budget | None, part: tuple[float, Pricing | None] | None) -> Plan:
        """The noise multiplier and ledger charge of every planned participation. `part`: this phase's portion of a
        budget that several phases share, and its pricing."""
        if isinstance(self.cohort, Personal):
            from sordino.budget.plans_by_budget import draft_personal  # which few runs need

            return draft_personal(self.cohort, self.offers, budget, self.rounds, len(self.sizes))
        algorithm, published = self.algorithm, None
        if algorithm.uplink.personal and budget is not None and isinstance(budget.schedule, Adaptive):
            raise UnsoundGuarantee(
                "personal clips with an adaptive schedule",
                why="personal clips are in proportion to the smallest noise of the plan, which must be known before "
                "the first round",
                fix='set schedule = {name = "uniform"}, or another schedule that is fixed in advance',
                code="personal-schedule",
            )
        if isinstance(algorithm.read, NoisyGradient) and algorithm.read.sampling == "fixed_subset" and budget:
            published = nominal_multiplier(budget.epsilon, budget.ideal, algorithm.read.rate, max(self.participations))
        reads = {"example": self.reads}
        portion, currency = part or (1.0, None)
        divided = budget if portion else None
        plan = draft(self.offers, divided, self.participations, reads, published, portion, currency)
        check_price(plan)
        return plan


def check_price(plan: Plan) -> None:
    """Refuses a user's noise law whose pricing asks for less than its own event costs: the run would exceed its
    budget.
    """
    offer, budget = plan.offer, plan.budget
    if offer is None or budget is None or isinstance(plan.pricing, NominalPrice):
        return
    own = list(user_code.parts(offer.mechanism))
    whole = replace(plan, portion=1.0)  # the cost of a law does not depend on other phases
    for client in plan.different if own else ():
        released = compact(_priced(whole, offer, client))
        stated = best(released, budget.ideal, offer.subject.neighbours).epsilon
        if stated > (granted := budget.of(client)) * (1 + 1e-6):
            raise UnsoundGuarantee(
                f"the noise of {own[0]} for epsilon {granted:g} costs {stated:.4g}, by its own event",
                why="its pricing asks for less noise than its event needs, so the run would exceed its budget",
                fix="let `pricing` give the multiplier at which `event` costs no more than the budget",
                code="price-below-event",
            )


def _priced(plan: Plan, offer: Offer, client: int) -> Iterator[Event]:
    """Events of all of a client's planned participations, if it spends as fast as it may."""
    for price in plan.prices(client):
        event = offer.mechanism.event(price.multiplier)
        yield Repeat(Poisson(offer.rate, event) if offer.rate < 1 else event, plan.reads[client])


def check_gate(uplink: Uplink, reads_each: bool, clients: float) -> None:
    """Refuses, before a run, an algorithm that needs each upload by itself (`reads_each`) where only their sum may be
    read; and a secure sum that its largest round would overflow, or leave with too few uploads to decrypt or unmask.
    """
    if reads_each and uplink.sum_only:
        raise single_uploads()
    if uplink.secure is not None and uplink.grid is not None:
        check_cohort(uplink.secure, uplink.grid.layout, math.ceil(clients))


def check_reads(algorithm: AnyAlgorithm) -> None:
    """Refuses an algorithm that uses examples in another way than its privacy mechanism covers."""
    asked, gives = OtherReads.of(algorithm).wants, algorithm.read.gives
    if asked == "rows" and asked not in gives:
        raise UnsoundGuarantee(
            "a reader that protects examples, with a training function of your own",
            why="nothing bounds what the function makes of a single example: it is protected no better than all rows "
            "of its client together, by clip and noise in the uplink",
            fix="leave [read] out, or take fedavg or another method that asks a reader for gradients",
            code="reader-does-not-give",
        )
    if gives and asked not in gives:
        raise UnsoundGuarantee(
            f"the algorithm asks for {asked}, but the reader gives {gives[0]}",
            why="the promise of this reader covers nothing else",
            fix={
                "episodes": 'use read = {name = "cells", ...}',
                "single examples": "leave [read] out, and protect clients by clip and noise in [uplink]",
            }.get(asked, 'use read = {name = "noisy_gradient", ...}'),
            code="reader-does-not-give",
        )


def shared(
    phases: Sequence[PriceRequest], portions: Sequence[float], budget: Budget | None, alone: bool
) -> dict[int, tuple[float, Pricing | None]]:
    """Portion of the budget and pricing of each phase whose noise is calibrated by a shared budget, by its index; empty
    if there is one phase, no budget or nothing to price. `alone`: no other run pays from the same ledger.
    """
    priced = [i for i, phase in enumerate(phases) if any(typed is None for _, typed in phase.offers)]
    if len(phases) == 1 or budget is None or not priced:
        return {}
    asked = [phases[i].asks for i in priced]
    units = {offer.subject.unit for offer, _ in asked}
    if any(typed is not None and offer.subject.unit in units for phase in phases for offer, typed in phase.offers):
        raise UnsoundGuarantee(
            "one phase has a noise multiplier set by hand, and another one is paid from the budget",
            why="the phase with its own multiplier spends of the same promise, but outside the budget, so that "
            "the whole would exceed it",
            fix="leave the multiplier out; or set one in every phase, and no epsilon",
            code="typed-beside-priced",
        )
    if len({offer.subject for offer, _ in asked}) > 1:
        raise UnsoundGuarantee(
            "one budget would have to pay for phases with different promises",
            why="what is spent about one unit, or against one adversary, cannot be added to what is spent about "
            "another",
            fix="set the noise multiplier of one of the phases by hand, or leave out the gate that was added to "
            "its training",
            code="two-promises-one-budget",
        )
    if len(priced) > 1 and not all(exactly_gaussian(offer) for offer, _ in asked):
        raise UnsoundGuarantee(
            "one budget would have to pay for phases with different kinds of noise",
            why="over several phases, only Gaussian noise with exact calibration adds up",
            fix='use Gaussian noise with calibration = "exact" in every phase',
            code="two-noises-one-budget",
        )
    if isinstance(budget.schedule, Adaptive):
        raise UnsoundGuarantee(
            "an adaptive schedule, with several phases",
            why="it prices each round by what is left of the budget, but other phases have parts of this budget",
            fix='set schedule = {name = "uniform"}, or another schedule that is fixed in advance',
            code="adaptive-over-phases",
        )
    if len(priced) == 1:
        return {priced[0]: (1.0, None)}
    weights = [portions[i] for i in priced]
    parts = [weight / sum(weights) for weight in weights]
    prices = shared_currency(asked, parts, budget, alone=alone)
    return {i: (part, price) for i, part, price in zip(priced, parts, prices, strict=True)}


LEAST_DELTA = 1e-100  # a smaller delta is as good as 0, and its reciprocal is too large to print
RARELY = 0.01  # share of delta that aborted rounds may cost, all rounds together


def check_everybody_has_data(sizes: Sequence[int], names: Sequence[str] = ()) -> None:
    if (fewest := min(sizes)) < 1:
        who = list(sizes).index(fewest)
        raise EmptyClient(
            f"client {names[who] if names else who} has no training examples; {sum(not n for n in sizes)} of "
            f"{len(sizes)} clients have none",
            why="it cannot train, and weights and noise are in proportion to the number of a client's examples",
            fix="partition with a minimum size of at least 1, or into fewer clients",
            code="empty-client",
        )


def check_network(algorithm: AnyAlgorithm, task: Task, promises: bool) -> None:
    """Refuses layers that mix examples where privacy is guaranteed (`promises`), and running statistics that the method
    does not carry.
    """
    if promises or not algorithm.read.plain:  # clients, too, share the network of this process
        check_apart(task)
    if not task.statistics:
        return
    uplink, fix = algorithm.uplink, "use nn.GroupNorm"
    if not algorithm.carries_statistics or (isinstance(algorithm, LocalSgd) and algorithm.server_lr != 1):
        why = "a running statistic is not a weight: this method would, with these settings, step with it or keep half"
        fix += "; or train with fedavg, fedprox, scaffold, moon, fedgen, vhl or slaug_fl and server_lr = 1; a subclass "
        fix += "of your own says `class Mine(FedAvg, carries_statistics=True)`"
    elif uplink.server or uplink.denominator == "expected" or any(type(one) is not Weigh for one in uplink.client):
        why = (
            "the server must open the plain mean of the clients' models: any other sum may leave a variance below zero"
        )
        fix += ", or leave the uplink out"
    else:
        return
    raise ConfigError(f"a model with a {task.mixes_examples} layer", why=why, fix=fix, code="statistics-not-carried")


def check_delta(unit: Unit, pure: bool, privacy: Privacy, population: int, examples: int) -> None:
    """Refuses a delta that is not below one over the number of protected clients or examples (those with protected
    parts, such as cells or pixels, too). `pure`: noise that needs none."""
    protected = population if unit == "client" else examples
    if privacy.delta == 0 and pure:
        return
    allowed, why = Range(least=LEAST_DELTA, below=1), "it is a probability; only Laplace noise keeps a promise at 0"
    fix = "set for example privacy.delta = 1e-5"
    check_range("privacy.delta", privacy.delta, allowed, "delta-out-of-range", error=InvalidBudget, why=why, fix=fix)
    if privacy.delta >= 1 / protected:
        raise UnsoundGuarantee(
            f"privacy.delta {privacy.delta} is not below 1/{protected}",
            why=f"a mechanism may then publish one of the {protected} protected {unit}s in full and still "
            "keep its promise",
            fix=f"set privacy.delta below {1 / protected:.1e}",
            code="delta-too-large",
        )


def check_sizes(privacy: Privacy) -> None:
    """Refuses numbers that depend on how many examples a client has, where these sizes are not public."""
    if not privacy.public_sizes:
        raise UnsoundGuarantee(
            "weights, noise or delta depend on the clients' numbers of examples, but public_sizes = false",
            why="a number that is computed from a secret size reveals this size",
            fix="set privacy.public_sizes = true, or protect whole clients and use no stage that weighs by examples",
            code="sizes-not-public",
        )


def check_secure(
    uplink: Uplink, plan: Plan, cohort: Cohort, rounds: int, delta: float, coordinates: int, faults: bool = False
) -> None:
    """Refuses a secure sum whose guarantee would fail: integer noise with too few grid steps for its price; noise
    that would overflow the sum; a hidden cohort where aborted rounds would show too often that few clients were
    drawn. `faults`: clients may be lost or late.
    """
    secure, noise, grid, published = uplink.secure, uplink.noise(), uplink.grid, uplink.per_coordinate
    population = len(plan.participations)
    most = max(1, population if cohort.hidden else round(cohort.expected(population)))
    if published is not None and grid is not None:
        check_noise(secure, grid.layout, most, published.room(most, grid.scale), None)
    if noise is None or grid is None:
        return
    bound, typed = uplink.bound(coordinates), noise.multiplier  # beside a typed one, the plan may price the reader's
    multipliers = [p.multiplier if typed is None else typed for k in plan.different for p in plan.prices(k)]
    if multipliers and noise not in uplink.client[: uplink.client.index(grid)]:
        noise.check_width(bound, min(multipliers))
        room = noise.room(bound, max(multipliers))
        check_noise(secure, grid.layout, most, room, bound.l2 if noise in uplink.client else None)
    if secure is None:
        return
    if cohort.hidden and uplink.central:
        least = secure.least(0, noised=True)
        chance = rounds * too_few(population, cohort.expected(population) / population, least)
        if faults:
            raise UnsoundGuarantee(
                "clients can be lost or late, in a secure sum over a hidden cohort",
                why="all parties see whether enough clients stay to the end of a round, and that depends on who was "
                "drawn",
                fix="leave out [stragglers], [chaos] and the timeout, or use a visible cohort",
                code="broken-rounds-tell",
            )
        if cohort.personal or chance > RARELY * delta:
            raise UnsoundGuarantee(
                f"a hidden cohort, with a secure sum of at least {least} clients",
                why="a round with fewer clients is aborted, which all parties see"
                + (
                    ", and with personal rates this is not accounted for"
                    if cohort.personal
                    else f": over {rounds} rounds the probability is {chance:.1g}, and delta is {delta:g}"
                ),
                fix="set a lower threshold, a larger cohort, or use a visible cohort",
                code="broken-rounds-tell",
            )


def too_few(population: int, rate: float, least: int) -> float:
    """Probability that one client decides whether a Poisson-sampled round reaches `least` clients."""
    from scipy.stats import binom

    return float(rate * binom.pmf(least - 1, population - 1, rate))
