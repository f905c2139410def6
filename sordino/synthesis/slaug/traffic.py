"""What SlaugFL's preparation adds to the traffic, counted in parameters by its published formula and charged to the
rounds that it is meant to save.

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

from sordino.types import HANDED, TRAINING, Message


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

    @property
    def messages(self) -> dict[Message, float]:
        """Parameters of each kind of message; together they are the formula."""
        prototypes = self.classes * self.prototype
        each = self.rounds * self.chosen * prototypes
        return {
            ("train", "up"): self.devices * self.model,
            ("ask", "up"): prototypes,
            (HANDED, "down"): self.devices * self.generator,
            (TRAINING, "down"): each,
            (TRAINING, "up"): each,
        }

    @property
    def parameters(self) -> float:
        """More than FedAvg, over all rounds: formula (18)."""
        prototypes = self.classes * self.prototype
        prepared = self.devices * (self.model + self.generator) + prototypes
        return prepared + 2 * self.rounds * self.chosen * prototypes

    @property
    def ratio(self) -> float:
        """R_e: of FedAvg's traffic over all rounds, so the more rounds are run the smaller it is."""
        return self.upfront / self.rounds + self.classes * self.prototype / self.model

    @property
    def upfront(self) -> float:
        """How many rounds of FedAvg the preparation costs before the first one: models up, generators down."""
        return self.devices * (self.model + self.generator) / self.round

    def charged(self, rounds: float) -> float:
        """The rounds of FedAvg whose traffic so many rounds take, all that is extra counted."""
        return rounds + self._replace(rounds=rounds).parameters / self.round
