"""What a plan must not promise, by the numbers of a whole experiment: how many are protected, how often a round may be
too small to be opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from sordino.budget.plan import Plan
from sordino.cohorts.kinds import Cohort
from sordino.config import Privacy
from sordino.errors import EmptyClient, InvalidBudget, UnsoundGuarantee
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.secure_stages import NoiseShare, check_room
from sordino.types import Offer

RARELY = 0.01  # of delta: what a round that is broken off may cost, in all rounds together


def check_everybody_has_data(sizes: Sequence[int]) -> None:
    if (fewest := min(sizes)) < 1:
        raise EmptyClient(
            f"client {list(sizes).index(fewest)} has no training examples, of {len(sizes)} clients "
            f"{sum(not n for n in sizes)} have none",
            why="there is nothing it could train on, and weights and noise are in proportion to what a client holds",
            fix="partition with a minimum size of at least 1, or into fewer clients",
            code="empty-client",
        )


def check_delta(offer: Offer, privacy: Privacy, population: int, examples: int) -> None:
    protected = population if offer.unit == "client" else examples
    if not 0 < privacy.delta < 1:
        raise InvalidBudget(
            f"privacy.delta is {privacy.delta}", why="delta is a probability", code="delta-out-of-range"
        )
    if privacy.delta >= 1 / protected:
        raise UnsoundGuarantee(
            f"privacy.delta {privacy.delta} is not below 1/{protected}",
            why=f"a mechanism may then publish one of the {protected} protected {offer.unit}s outright and still "
            "keep its promise",
            fix=f"set privacy.delta below {1 / protected:.1e}",
            code="delta-too-large",
        )


def check_sizes(privacy: Privacy) -> None:
    """Where numbers follow from how many examples a client has, these are public."""
    if not privacy.public_sizes:
        raise UnsoundGuarantee(
            "the weights or the noise scale depend on n, but public_sizes = false",
            why="a number that follows a secret n tells n",
            fix="set privacy.public_sizes = true, or protect whole clients and leave Weigh out",
            code="sizes-not-public",
        )


def check_secure(
    uplink: Uplink, plan: Plan, cohort: Cohort, rounds: int, delta: float, coordinates: int, faults: bool = False
) -> None:
    """Noise under a secure sum: its shares are wide enough and fit, and whether a sum is opened tells nobody who took
    part.
    """
    secure, noise, grid = uplink.secure, uplink.noise(), uplink.grid
    if secure is None or noise is None or grid is None:
        return
    population = len(plan.exposures)
    if isinstance(noise, NoiseShare):
        first = next((k for k in range(population) if plan.exposures[k]), 0)
        price, bound = plan.price(first, 0, plan.currency.zero()), uplink.bound(coordinates)
        if price is not None:
            noise.check_width(bound, price.multiplier)
            most = population if cohort.hidden else round(cohort.expected(population))
            check_room(grid.layout, most, noise.room(bound, price.multiplier))
    if cohort.hidden and uplink.central:
        chance = rounds * too_few(population, cohort.expected(population) / population, secure.least(0))
        if faults:
            raise UnsoundGuarantee(
                "clients that are lost or slow, under a secure sum of a hidden cohort",
                why="whether enough of those who began stay to the end is seen by everybody, and it follows from who "
                "was drawn",
                fix="no [stragglers], no [chaos] and no timeout, or a cohort that everybody sees",
                code="broken-rounds-tell",
            )
        if cohort.personal or chance > RARELY * delta:
            raise UnsoundGuarantee(
                f"a hidden cohort under a sum of at least {secure.least(0)} clients",
                why=f"a round of fewer is broken off, which everybody sees: in {rounds} rounds with a chance of "
                f"{chance:.1g}, and delta is {delta:g}"
                if not cohort.personal
                else "a round of fewer is broken off, which everybody sees, and with personal rates that is not "
                "accounted for",
                fix='a lower threshold, a larger cohort, or a cohort that everybody sees, with neighbours = "zero_out"',
                code="broken-rounds-tell",
            )


def too_few(population: int, rate: float, least: int) -> float:
    """How likely one client decides whether a round of independent coins has enough of them."""
    from scipy.stats import binom

    return float(rate * binom.pmf(least - 1, population - 1, rate)) if least > 1 else 0.0
