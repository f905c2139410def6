"""Membership of one example in the noised sums of its class, played against the release itself.

The attacker knows everything else: all other examples, the size of the noise, the example in question. For Gaussian
noise of `multiplier` sensitivities no AUC is above Phi(1 / (sqrt 2 multiplier)), and hits <= e^epsilon alarms + delta.
In the game of replacing one example the sums move twice as far: it says nothing here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sordino.accounting.events import Gaussian
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.attacks.methods.members import Separation, separation
from sordino.audits.lower_bounds import Pair, tuned
from sordino.privacy.readers.class_sums import ClassSums
from sordino.types import LocalWork, NoiseSource

ALPHA = 1e-4  # probability that a game refutes a true promise


class PlayedSum(NamedTuple):
    found: Separation  # its interval fails as often as ALPHA / 2 on its lower side
    ceiling: float  # of the AUC, by the promise
    epsilon: float  # promised, at delta
    at_least: float  # lost

    @property
    def refuted(self) -> bool:
        return self.found.low > self.ceiling or self.at_least > self.epsilon


def played(
    reader: ClassSums, game: Pair, multiplier: float, delta: float, trials: int, source: NoiseSource
) -> PlayedSum:
    """The game against what the reader claims."""
    event = reader.claims(LocalWork(None, 1, None), 1, multiplier)[0].event
    assert isinstance(event, Gaussian)
    mu = 1 / event.noise_multiplier
    outputs = game.outputs(trials, source)
    epsilon = epsilon_of(mu, delta)
    lost = tuned(outputs, {delta: epsilon}, ALPHA / 2).epsilon
    return PlayedSum(separation(outputs.with_, outputs.without, ALPHA), most(mu), epsilon, max(0.0, lost))


def most(mu: float) -> float:
    """The AUC of the best test of N(0, 1) against N(mu, 1)."""
    from scipy.special import ndtr

    return float(ndtr(mu / math.sqrt(2)))
