"""The add/remove game on noised sums per class, through the reader's own release: promises hold, and are nearly
reached; broken ones are found.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from experiments.slaug_attacks.sum_game import PlayedSum, most, played
from sordino import keys
from sordino.accounting.gaussian_dp import mu_of
from sordino.audits.noise_sources import Weak
from sordino.audits.records import class_sums
from sordino.errors import DataError
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.class_sums import ClassSums
from sordino.types import Examples, NoiseSource
from tests.attacks.devices import CLASSES, extractor, parts

pytestmark = pytest.mark.slow  # attacks on what others published: no promise of ours stands or falls with them

DELTA, CLIP, DRAWS = 1e-5, 2.0, 20_000
FEW = 5_000  # where a promise is broken: as sure that it is, and these are broken widely enough to be seen by as many
# a game refutes a true promise with probability 1e-4 over the seed of its noise, however few its draws


def unchanged(x: Tensor) -> Tensor:
    return x


@cache
def held() -> Examples:
    """Features of one client's real digits, six of each class: each longer than the clip, so that every one moves its
    sum as far as it may.
    """
    z = torch.cat([extractor("cnn_norm").features(parts(label).members[:6]) for label in range(CLASSES)])
    assert float(torch.linalg.vector_norm(z, dim=1).min()) > CLIP
    return Examples(z, torch.arange(CLASSES).repeat_interleave(6))


def game(reader: ClassSums, epsilon: float, source: NoiseSource | None = None, draws: int = DRAWS) -> PlayedSum:
    multiplier = 1 / mu_of(epsilon, DELTA)
    found = class_sums(
        reader, held(), torch.arange(0, 6 * CLASSES, 6), unchanged, extractor("cnn_norm").task, multiplier
    )
    return played(reader, found, multiplier, DELTA, draws, source or Counter(keys.word(keys.root(5))))


def test_ceilings_are_those_of_the_analytic_gaussian() -> None:
    found = [most(mu_of(epsilon, DELTA)) for epsilon in (1, 2, 4, 8)]
    assert found == pytest.approx([0.575, 0.639, 0.743, 0.881], abs=6e-4)


@pytest.mark.parametrize("count", [0.0, 1.0])
@pytest.mark.parametrize("epsilon", [1.0, pytest.param(4.0, marks=pytest.mark.slow)])
def test_promises_hold_and_are_nearly_reached(epsilon: float, count: float) -> None:
    found = game(ClassSums(clip=CLIP, count=count), epsilon)
    assert not found.refuted
    assert found.epsilon == pytest.approx(epsilon, rel=1e-6)
    # the game is as hard as the promise allows: what it finds is the ceiling itself, in an interval that fails with
    # probability 1e-4
    assert found.found.low <= found.ceiling <= found.found.high
    assert found.found.high - found.found.low < 0.03
    assert 0.05 * epsilon < found.at_least <= epsilon


def test_a_short_feature_is_told_apart_less() -> None:
    examples = held()._replace(x=held().x / 20)
    multiplier = 1 / mu_of(4.0, DELTA)
    reader = ClassSums(clip=CLIP)
    found = class_sums(reader, examples, torch.arange(0, 60, 6), unchanged, extractor("cnn_norm").task, multiplier)
    assert played(reader, found, multiplier, DELTA, FEW, Counter(9)).found.high < most(1 / multiplier)


class ForgetsTheCount(ClassSums):
    """Noise for the sums alone."""

    @property
    def sensitivity(self) -> float:
        return self.clip


class ForgetsTheClip(ClassSums):
    """Noise as if features had length one."""

    @property
    def sensitivity(self) -> float:
        return 1.0


def halved() -> NoiseSource:
    return Weak(Counter(keys.word(keys.root(5))), 2.0)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
@pytest.mark.parametrize("twin", ["halved noise", "count forgotten", "clip forgotten"])
def test_broken_promises_are_found(twin: str, epsilon: float) -> None:
    broken = {
        "halved noise": lambda: game(ClassSums(clip=CLIP), epsilon, halved(), FEW),
        "count forgotten": lambda: game(ForgetsTheCount(clip=CLIP, count=1.5), epsilon, draws=FEW),
        "clip forgotten": lambda: game(ForgetsTheClip(clip=CLIP), epsilon, draws=FEW),
    }
    found = broken[twin]()
    assert found.found.low > found.ceiling
    assert found.refuted


def test_hits_alone_find_a_noise_that_is_much_too_small() -> None:
    """hits > e^epsilon alarms + delta, whatever the law of the noise."""
    found = game(ClassSums(clip=CLIP), 1.0, Weak(Counter(3), 6.0), FEW)
    assert found.at_least > found.epsilon


def test_two_of_a_class_are_refused() -> None:
    with pytest.raises(DataError) as error:
        class_sums(ClassSums(), held(), torch.tensor([0, 1]), unchanged, extractor("cnn_norm").task, 1.0)
    assert error.value.code == "targets-share-a-class"


def test_a_typed_multiplier_is_what_the_promise_is_about() -> None:
    reader = replace(ClassSums(clip=CLIP), multiplier=2.0)
    found = class_sums(reader, held(), torch.tensor([0, 6]), unchanged, extractor("cnn_norm").task, 99.0)
    told = played(reader, found, 99.0, DELTA, 1000, Counter(4))
    assert told.ceiling == pytest.approx(most(0.5))
    assert not told.refuted
