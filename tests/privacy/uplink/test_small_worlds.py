"""Every pair of small updates through clip, grid and noise: what is printed for the gate covers each, exactly.

The updates are all points of a fine lattice, in and beyond the ball of the clip. What the stages make of them is read
off the program, as is the law of its noise (`tests.helpers.exact_laws`); nothing is drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from sordino.accounting.accountants import best
from sordino.accounting.events import Event, NonPrivate
from sordino.accounting.gaussian_dp import epsilon_of
from sordino.accounting.statement import lacking
from sordino.privacy import noise
from sordino.privacy.noise import IntegerNoiseLaw, LaplaceNoise
from sordino.privacy.noise.sources import TABLE_ERROR
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.fixed_point import Layout, Quantise
from sordino.privacy.uplink.stages import Clip, Noise
from sordino.sampling import Everyone
from sordino.types import Bound, Grant
from tests.helpers.exact_laws import Law, Script, delta_of_both, gaussian_law, laplace_drawn, laplace_law, worst
from tests.privacy.doubles import Still

slow = pytest.mark.slow
CLIP, GRID = Clip(1.05, 1), Quantise(Layout(bits=3, reach=1.0))  # whole numbers from -3 to 3; 1.575 counts as 2


def steps(side: int, most: float = 1.5) -> np.ndarray:
    """What clip and grid make of all updates of two numbers on a lattice."""
    ticks = np.linspace(-most, most, side)
    updates = np.stack(np.meshgrid(ticks, ticks, indexing="ij"), -1).reshape(-1, 2)
    clipped = Uplink((CLIP, GRID))
    sent = [np.asarray(clipped.encode(torch.from_numpy(x), Grant(0, 1, 1, Still()))) for x in updates]
    return np.array(sent)


def moves(whole: np.ndarray) -> Counter[tuple[int, int]]:
    """How many pairs of updates lie how far apart, without signs: noise is symmetric."""
    found: Counter[tuple[int, int]] = Counter()
    for one in whole:
        apart, often = np.unique(np.abs(whole - one), axis=0, return_counts=True)
        found.update({(int(a), int(b)): int(n) for (a, b), n in zip(apart, often, strict=True)})
    return found


@lru_cache(maxsize=256)
def lost(scale: float, apart: tuple[int, int], epsilon: float) -> float:
    """Exact delta at this epsilon of two coordinates with the program's own noise of this scale in steps."""
    law = laplace_law(scale)
    first, second = (law.moved(by) for by in apart)
    return float(delta_of_both((law, first), (law, second), epsilon))  # the other direction is its mirror image


def promised(uplink: Uplink, multiplier: float) -> Event:
    (event,) = {
        claim.event
        for claim in uplink.claims(multiplier, Everyone().amplify)
        if not isinstance(claim.event, NonPrivate)
    }
    return event


def scale_of(noise: Noise, bound: Bound, multiplier: float, monkeypatch: pytest.MonkeyPatch) -> float:
    """The scale that the stage asks of its law, in steps of the grid."""
    asked: list[float] = []

    def whole(self: IntegerNoiseLaw, source: Any, count: int, scale: float) -> np.ndarray:
        asked.append(scale)
        return np.zeros(count, np.int64)

    with monkeypatch.context() as patched:
        patched.setattr(LaplaceNoise, "whole", whole)
        noise.release(torch.zeros(2, dtype=torch.int64), bound, multiplier, Still())
    return asked[0]


@pytest.mark.slow
@pytest.mark.parametrize("side", [7, 33])
@pytest.mark.parametrize("neighbours", ["replace", "zero_out"])
def test_whole_updates_keep_what_is_printed_for_them(
    side: int, neighbours: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.2 million pairs of updates in the slow tier, each with its exact delta; one of them needs four fifths of what
    is printed.
    """
    whole = steps(side)
    apart = moves(whole) if neighbours == "replace" else Counter(map(tuple, np.abs(whole).tolist()))
    assert sum(apart.values()) == (side**4 if neighbours == "replace" else side**2)
    uplink = Uplink((CLIP, GRID, Noise(LaplaceNoise(), neighbours)))
    noise, bound = uplink.client[-1], Uplink((CLIP, GRID)).bound(2)
    assert isinstance(noise, Noise)
    farthest = max(sum(move) for move in apart)
    assert farthest <= noise.sensitivity(bound)
    assert farthest >= 0.95 * noise.sensitivity(bound)
    for multiplier in (0.2, 0.5) if side > 7 else (0.2,):
        event, scale = promised(uplink, multiplier), scale_of(noise, bound, multiplier, monkeypatch)
        for allowed in (0.0, 1e-3, 0.05):
            epsilon = best(event, allowed, neighbours).epsilon
            stated = allowed + lacking(epsilon, 2 * TABLE_ERROR)
            # both coordinates have the same noise
            assert all(lost(scale, move, epsilon) <= stated for move in {(min(m), max(m)) for m in apart})
            farthest_apart = max(apart, key=lambda move: (sum(move), max(move)))
            assert lost(scale, farthest_apart, 0.8 * epsilon) > stated


def test_the_noise_of_a_stage_is_the_law_that_is_enumerated() -> None:
    """The stage adds to its integers what the law draws for a scale in steps."""
    drawn, given = laplace_drawn(2.0), np.arange(5)
    patterns = [0, 7, 40, 100, 200]
    source = Script(lambda place: drawn.words[place[-2:] if place[-2:] in drawn.words else place[-1:]][patterns])
    noise = Noise(LaplaceNoise(), "zero_out")
    noisy = noise.release(torch.from_numpy(given), Bound(l1=4.0, l2=4.0), 0.5, source)
    assert np.asarray(noisy).tolist() == (given + drawn.numbers[patterns]).tolist()


def without_the_spread(self: Quantise, bound: Bound, coordinates: int) -> Bound:
    return Bound(l1=bound.l1 * self.scale, l2=bound.l2 * self.scale)


def of_one_client(self: Noise, bound: Bound) -> float:
    return bound.l1


TWINS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "a grid without its half steps": (Quantise, "bound", without_the_spread),
    "half of the sensitivity": (Noise, "sensitivity", of_one_client),
}


@pytest.mark.slow
@pytest.mark.parametrize("twin", TWINS)
def test_too_little_spread_is_caught(twin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = steps(21)
    monkeypatch.setattr(*TWINS[twin])
    noise, bound = Noise(LaplaceNoise(), "replace"), Uplink((CLIP, GRID)).bound(2)
    scale = scale_of(noise, bound, 0.5, monkeypatch)
    epsilon = best(LaplaceNoise().event(0.5), 0.0, "replace").epsilon
    farthest = max(moves(whole), key=lambda move: (sum(move), max(move)))
    assert lost(scale, farthest, epsilon) > lacking(epsilon, 2 * TABLE_ERROR)


def test_a_grid_that_is_fine_enough_for_gaussian_noise_is_allowed() -> None:
    """The control of the refusal: the same uplink with more steps."""
    law, values = noise.GaussianNoise(), torch.zeros(3, dtype=torch.int64)
    law.add(values, noise.FINE, Still())


def test_delta_of_gaussian_noise_of_few_steps_is_above_the_curve() -> None:
    """Why it is refused: a sixth more at 1e-4 with a deviation of two steps."""
    law: Law = gaussian_law(2.0)
    over = [float(worst(law, law.moved(2), epsilon_of(1.0, at))) / at for at in (1e-4, 1e-3, 1e-2)]
    assert max(over) > 1.15
