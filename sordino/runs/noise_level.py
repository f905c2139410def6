"""Will the signal be heard? The noise that a real experiment must expect in the mean of a round, and how large a
federation would drown less.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from sordino import tree
from sordino.budget.calculator import Enough, enough, marks, warning, ways_out
from sordino.budget.noise_level import Loudness, of_reader, of_uplink
from sordino.budget.schedules import Adaptive
from sordino.runs.setup import Setup


class ExpectedNoise(NamedTuple):
    """The noise in the mean of a round: in gradients, before the step size, where records are protected; in updates
    where clients are.
    """

    norm: float
    signal: float  # the largest norm of what is under the noise

    @property
    def ratio(self) -> float:
        return self.norm / self.signal


def multiplier(setup: Setup, client: int) -> float | None:
    """Halfway through the client's exposures; at the first one where spending adapts and later ones are not known."""
    plan, times = setup.plan, setup.plan.exposures[client]
    adaptive = plan.budget is not None and isinstance(plan.budget.schedule, Adaptive)
    price = plan.price(client, 0 if adaptive else times // 2, plan.currency.zero()) if times else None
    return None if price is None else price.multiplier


def expected_noise(setup: Setup) -> ExpectedNoise | None:
    """The noise of a cohort of the expected size, drawn like the plan draws; None where nothing is noised, or by a
    reader that does not say how much.
    """
    offer, plan, algorithm, slow = setup.plan.offer, setup.plan, setup.algorithm, setup.experiment.stragglers
    if offer is None:
        return None
    # clients of one kind are alike in all that follows
    granted = [None if plan.budget is None else plan.budget.of(k) for k in range(len(setup.public.sizes))]
    kinds = list(zip(plan.exposures, plan.reads, setup.public.sizes, granted, strict=True))
    one_of = {kind: k for k, kind in enumerate(kinds)}
    cohort, largest = setup.cohort.expected(len(kinds)), max(setup.public.sizes)
    answering = 1 - slow.share if slow.policy in ("drop", "late") else 1.0
    seen: list[tuple[float, float, Loudness]] = []  # (how often, weight, loudness)
    for kind, count in Counter(kinds).items():
        z, (times, _, size, _) = multiplier(setup, one_of[kind]), kind
        if z is None:
            continue
        loud = (
            of_uplink(algorithm.uplink, z, setup.coordinates)
            if offer.subject.unit == "client"
            else of_reader(algorithm.read, algorithm.work, z, size)
        )
        if loud is None:
            return None
        if algorithm.uplink.personal:  # one noise for all, and a bound for each
            loud = Loudness(loud.std * plan.quietest / z, loud.signal * plan.quietest / z)
        weight = algorithm.uplink.weight(size, largest, plan.precision(one_of[kind]))
        seen.append((count * times, weight, loud))
    visits = math.fsum(often for often, _, _ in seen)
    if not visits or not answering:
        return None
    weight = math.fsum(often * w for often, w, _ in seen) / visits
    signal = math.fsum(often * w * loud.signal for often, w, loud in seen) / visits / weight
    if offer.subject.unit == "client" and algorithm.uplink.central:
        # one noise, and a denominator that counts the missing too
        std, signal = max(loud.std for _, _, loud in seen) / (cohort * weight), signal * answering
    else:
        square = math.fsum(often * (w * loud.std) ** 2 for often, w, loud in seen) / visits
        std = math.sqrt(square / (cohort * answering)) / weight
    coordinates = setup.coordinates if offer.subject.unit == "client" else tree.size(setup.task.init(0))
    return ExpectedNoise(std * math.sqrt(coordinates), signal)


def drowning(setup: Setup) -> list[str]:
    """What to say at the start of a private run whose noise is louder than anything it could hear; nothing where it is
    not.

    Reads public numbers only, and calibrates nothing: the plan has been made.
    """
    noise = expected_noise(setup)
    if noise is None:
        return []
    same = [way for way in loud_enough(setup, noise) if way.delta == _delta(setup)]
    said = warning(noise.ratio, [*ways_out(same, _delta(setup)), "`sordino privacy plan` compares what would help."])
    return [said] if said else []


def loud_enough(setup: Setup, noise: ExpectedNoise, at_delta: Callable[[float], Setup] | None = None) -> list[Enough]:
    """Federations grown from this one that would be heard; without `at_delta` only those with the same delta."""
    offer, delta = setup.plan.offer, _delta(setup)
    assert offer is not None
    central = offer.subject.unit == "client" and setup.algorithm.uplink.central
    clients = len(setup.public.sizes)
    units = -(-sum(setup.public.sizes) // clients) if offer.subject.unit != "client" else 1

    def ratio(wanted: float) -> float:
        if wanted == delta:
            return noise.ratio
        found = expected_noise(at_delta(wanted)) if at_delta else None
        return math.inf if found is None else found.ratio

    def search(below: float) -> Enough | None:
        return enough(below, clients, setup.cohort.expected(clients), delta, units, 1 if central else 2, ratio)

    return marks(search, noise.ratio)


def _delta(setup: Setup) -> float:
    return setup.experiment.privacy.delta
