"""Is this one example in the noised sums of its class? The game that a promise about counting one or not is made
for, played against the release itself.

The attacker knows everything else: all other examples, the noise's size, the example in question. For Gaussian noise of
`multiplier` sensitivities nobody's AUC is above Phi(1 / (sqrt 2 multiplier)), and hits <= e^epsilon alarms + delta. In
the game of replacing one example the sums move twice as far: it says nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from sordino.accounting.events import Gaussian
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.audits.lower_bounds import tuned
from sordino.audits.pairs import Pair, Release
from sordino.audits.separation import Separation, separation
from sordino.errors import DataError
from sordino.privacy.readers.beside_public import taken
from sordino.privacy.readers.class_sums import ClassSums
from sordino.types import Examples, Grant, NoiseSource, Task, Work

ALPHA = 1e-4  # how likely a game is to refute a true promise


def pair(
    reader: ClassSums,
    examples: Examples,
    targets: Tensor,
    of: Callable[[Tensor], Tensor],
    task: Task,
    multiplier: float | None,
) -> Pair:
    """The neighbours of examples in sums per class. `targets`: their rows, of one class each. A class's noise is its
    own, so that one release attacks all of them, each as if it were alone. `examples.x` may be features already,
    with `of` leaving them as they are.
    """
    labels, size, classes = examples.y[targets], len(examples.y), int(examples.y.max()) + 1
    apart = len(set(labels.tolist()))
    if apart < len(labels):
        raise DataError(
            f"{len(labels)} target examples, but of only {apart} different classes",
            why="the attack tests the promise for one example at a time: two examples of the same class would "
            "change the same sum",
            fix="choose one example of each class",
            code="targets-share-a-class",
        )
    kept = torch.ones(size, dtype=torch.bool).index_fill(0, targets, False)

    def release(mine: Examples) -> Release:
        def seen(source: NoiseSource) -> Tensor:
            shard = reader.open(mine, Grant(0, size, size, source, multiplier), task)
            sums, counts = shard.by_class(of, classes)
            told = torch.cat([sums, counts[:, None]], 1) if reader.count else sums
            return told[labels]

        return seen

    return Pair(
        "an example in its class's sum, or not", release(taken(examples, kept.nonzero()[:, 0])), release(examples)
    )


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
    event = reader.claims(Work(None, 1, None), 1, multiplier)[0].event
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
