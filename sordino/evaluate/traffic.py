"""What a preparation phase adds to the traffic, counted in parameters by a published formula and charged to the rounds
that it is meant to save.

Formula (18) of SlaugFL (IEEE Transactions on Mobile Computing, 2024). M devices send a model of d_m parameters and get
a generator of d_g, C class prototypes of d_p are sent once, and in each of T rounds K devices get and send C of them
beside the model:

    M (d_m + d_g) + C d_p + 2 T K C d_p                       more than FedAvg's 2 T K d_m
    R_e = M (d_m + d_g) / (2 T K d_m) + C d_p / d_m           the published ratio: without the prototypes that are sent
                                                              once

The formula knows no first broadcast, no running statistics and no headers: the measured bytes stand beside it.
"""

from __future__ import annotations

from typing import NamedTuple

from sordino.evaluate import measures
from sordino.evaluate.measures import Metrics


class Sizes(NamedTuple):
    """All of them public."""

    devices: int
    chosen: int  # per round
    rounds: float  # whole, but for a mean over seeds
    classes: int
    model: int  # parameters
    generator: int
    prototype: int  # dimensions of one

    @property
    def round(self) -> int:
        """Parameters of one round of FedAvg, both directions."""
        return 2 * self.chosen * self.model


def extra_parameters(sizes: Sizes) -> float:
    """More than FedAvg, over all rounds: formula (18)."""
    prototypes = sizes.classes * sizes.prototype
    prepared = sizes.devices * (sizes.model + sizes.generator) + prototypes
    return prepared + 2 * sizes.rounds * sizes.chosen * prototypes


def ratio(sizes: Sizes) -> float:
    """R_e: of FedAvg's traffic over all rounds, so the more rounds are run the smaller it is."""
    return upfront_rounds(sizes) / sizes.rounds + sizes.classes * sizes.prototype / sizes.model


def upfront_rounds(sizes: Sizes) -> float:
    """How many rounds of FedAvg the preparation costs before the first one: models up, generators down."""
    return sizes.devices * (sizes.model + sizes.generator) / sizes.round


def charged_rounds(sizes: Sizes) -> float:
    """The rounds of FedAvg whose traffic `sizes.rounds` rounds take, all that is extra counted."""
    return sizes.rounds + extra_parameters(sizes) / sizes.round


def saving(rounds: float, against: float) -> float:
    """The part of the other's rounds that is not needed; negative where more are."""
    return 1 - rounds / against


# measured -------------------------------------------------------------------------------------------------------------


def rounds_to(rows: Metrics, target: float) -> int | None:
    """The first round that reached the target accuracy; None where none did, which a table must count."""
    found = measures.rounds_to(target)(rows)
    return None if found is None else int(found)


def bytes_to(rows: Metrics, target: float, before: int = 0) -> int | None:
    """What was sent both ways up to that round, with what the preparation `before` the first one cost."""
    found = measures.bytes_to(target)(rows)
    return None if found is None else int(found) + before
