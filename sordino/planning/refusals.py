"""What a plan must not promise, by the numbers of a whole experiment: how many are protected, how often a round may be
too small to be opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from sordino.algorithms.algorithm import AnyAlgorithm
from sordino.algorithms.local_sgd import LocalSgd
from sordino.budget.plan import Plan
from sordino.config import Privacy
from sordino.errors import ConfigError, EmptyClient, InvalidBudget, UnsoundGuarantee
from sordino.privacy.readers.private_reader import check_apart
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.secure_stages import NoiseShare, check_room
from sordino.privacy.uplink.stages import Weigh
from sordino.sampling.kinds import Cohort
from sordino.types import Offer, Task

PURE = "pure"  # the price of Laplace noise, whose promise holds with delta 0
LEAST_DELTA = 1e-100  # what is rarer is 0, and its reciprocal no number that can be told
RARELY = 0.01  # of delta: what a round that is broken off may cost, in all rounds together


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
    """Where somebody is protected, no layer may mix examples; where nobody is, the method must carry what it keeps."""
    if promises or not algorithm.read.plain:  # clients, too, share the network of this process
        check_apart(task)
    if not task.statistics:
        return
    uplink, fix = algorithm.uplink, "use nn.GroupNorm"
    if not algorithm.carries_statistics or (isinstance(algorithm, LocalSgd) and algorithm.server_lr != 1):
        why = (
            "a running statistic is no weight: this method, with these settings, would step with it or keep half of it"
        )
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


def check_delta(offer: Offer, privacy: Privacy, population: int, examples: int) -> None:
    unit = offer.subject.unit
    protected = population if unit == "client" else examples
    if privacy.delta == 0 and offer.mechanism.calibration == PURE:
        return
    if not LEAST_DELTA <= privacy.delta < 1:
        raise InvalidBudget(
            f"privacy.delta is {privacy.delta}",
            why=f"delta is a probability: it must be at least {LEAST_DELTA:g} and below 1; only Laplace noise keeps a "
            "promise at 0",
            fix="set for example privacy.delta = 1e-5",
            code="delta-out-of-range",
        )
    if privacy.delta >= 1 / protected:
        raise UnsoundGuarantee(
            f"privacy.delta {privacy.delta} is not below 1/{protected}",
            why=f"a mechanism may then publish one of the {protected} protected {unit}s in full and still "
            "keep its promise",
            fix=f"set privacy.delta below {1 / protected:.1e}",
            code="delta-too-large",
        )


def check_sizes(privacy: Privacy) -> None:
    """Where numbers follow from how many examples a client has, these are public."""
    if not privacy.public_sizes:
        raise UnsoundGuarantee(
            "the weights or the size of the noise depend on the clients' numbers of examples, but public_sizes = false",
            why="a number that is computed from a secret size tells this size",
            fix="set privacy.public_sizes = true, or protect whole clients and use no stage that weighs by examples",
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
                "clients can be lost or late, in a secure sum over a hidden cohort",
                why="everybody sees whether enough clients stay to the end of a round, and that depends on who was "
                "drawn",
                fix="use no [stragglers], no [chaos] and no timeout, or a cohort that everybody sees",
                code="broken-rounds-tell",
            )
        if cohort.personal or chance > RARELY * delta:
            raise UnsoundGuarantee(
                f"a hidden cohort, with a secure sum of at least {secure.least(0)} clients",
                why=(
                    f"a round with fewer clients is broken off, which everybody sees: over {rounds} rounds "
                    f"the probability is {chance:.1g}, and delta is {delta:g}"
                )
                if not cohort.personal
                else (
                    "a round with fewer clients is broken off, which everybody sees, and with personal rates "
                    "this is not accounted for"
                ),
                fix="set a lower threshold, a larger cohort, or use a cohort that everybody sees",
                code="broken-rounds-tell",
            )


def too_few(population: int, rate: float, least: int) -> float:
    """How likely one client decides whether a round of independent coins has enough of them."""
    from scipy.stats import binom

    return float(rate * binom.pmf(least - 1, population - 1, rate)) if least > 1 else 0.0
