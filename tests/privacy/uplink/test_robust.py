"""Robust sums: what they equal, what they do not mind, and how far f false uploads can move them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino import tree
from sordino.accounting.claims import ADVERSARIES
from sordino.privacy.noise.sources import Counter
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.robust import (
    CoordinateMedian,
    Krum,
    NearestMixing,
    NormBound,
    RobustStage,
    TrimmedMean,
    fewest,
)
from sordino.privacy.uplink.stages import Clip, Noise, Stage, Weigh
from sordino.tree import Tree
from sordino.types import Params

Array = NDArray[np.float64]
ZERO = {"a": torch.zeros(3), "b": torch.zeros(2, 2), "c": torch.zeros(()), "d": torch.zeros(0)}
N, F = 9, 2

CHAINS: dict[str, tuple[RobustStage, ...]] = {
    "median": (CoordinateMedian(F),),
    "trimmed mean": (TrimmedMean(F),),
    "krum": (Krum(F),),
    "multi-krum": (Krum(F, keep=4),),
    "mixing, then median": (NearestMixing(F), CoordinateMedian(F)),
    "mixing, then trimmed mean": (NearestMixing(F), TrimmedMean(F)),
    "mixing, then krum": (NearestMixing(F), Krum(F)),
    "bounded": (NormBound(F, radius=1.5),),
    "bounded by the median": (NormBound(F),),
    "bounded, then median": (NormBound(F), CoordinateMedian(F)),
}
ROBUST = [name for name in CHAINS if not name.startswith("bounded")]


def honest(count: int = N, seed: int = 0) -> list[Params]:
    rows = torch.from_numpy(np.random.default_rng(seed).normal(0.3, 1.0, (count, 8))).float()
    return [tree.unflat(row, ZERO) for row in rows]


def mean(
    stages: Sequence[RobustStage],
    uploads: Sequence[Tree],
    client: tuple[Stage, ...] = (),
    weights: Sequence[float] | None = None,
) -> Tensor:
    """What the server sees of these uploads, as one vector."""
    uplink = Uplink(client=client, server=tuple(stages))
    weights = weights or [1.0] * len(uploads)
    seen = uplink.receive(dict(enumerate(uploads)), ZERO, weights, 1.0, None, Counter(0), each=False)
    return tree.flat(seen.mean)


def rows(uploads: Sequence[Tree]) -> Array:
    found: Array = torch.stack([tree.flat(one) for one in uploads]).double().numpy()
    return found


# ---------------------------------------------------------------- against another implementation


def krum(x: Array, f: int, keep: int) -> Array:
    apart = np.array([[np.sum((a - b) ** 2) for b in x] for a in x])
    scores = [np.sort(np.delete(apart[i], i))[: len(x) - f - 2].sum() for i in range(len(x))]
    found: Array = x[np.argsort(scores, kind="stable")[:keep]].mean(0)
    return found


def mixed(x: Array, f: int) -> Array:
    return np.stack([x[np.argsort(np.linalg.norm(x - one, axis=1))[: len(x) - f]].mean(0) for one in x])


def bounded(x: Array, radius: float) -> Array:
    found: Array = x * np.minimum(1, radius / np.linalg.norm(x, axis=1))[:, None]
    return found


def expected(name: str, x: Array) -> Array:
    trimmed = np.sort(mixed(x, F) if "mixing" in name else x, axis=0)[F : len(x) - F].mean(0)
    lengths = np.sort(np.linalg.norm(x, axis=1))
    made: dict[str, Array] = {
        "median": np.median(x, axis=0),
        "trimmed mean": trimmed,
        "krum": krum(x, F, 1),
        "multi-krum": krum(x, F, 4),
        "mixing, then median": np.median(mixed(x, F), axis=0),
        "mixing, then trimmed mean": trimmed,
        "mixing, then krum": krum(mixed(x, F), F, 1),
        "bounded": bounded(x, 1.5).mean(0),
        "bounded by the median": bounded(x, lengths[(len(x) - 1) // 2]).mean(0),
        "bounded, then median": np.median(bounded(x, lengths[(len(x) - 1) // 2]), axis=0),
    }
    return made[name]


@pytest.mark.parametrize("name", CHAINS)
def test_each_is_what_its_formula_says(name: str) -> None:
    for count, seed in ((N, 0), (N + 1, 1), (N + 4, 2)):  # odd and even
        uploads = honest(count, seed)
        assert mean(CHAINS[name], uploads).numpy() == pytest.approx(expected(name, rows(uploads)), abs=2e-6)


# ---------------------------------------------------------------- laws


@pytest.mark.parametrize("name", CHAINS)
def test_who_is_called_what_changes_nothing(name: str) -> None:
    uploads = honest()
    assert torch.allclose(mean(CHAINS[name], uploads), mean(CHAINS[name], uploads[::-1]), atol=1e-6)


@pytest.mark.parametrize("name", ROBUST)
def test_moved_uploads_move_the_estimate_as_much(name: str) -> None:
    uploads, way = honest(), tree.map(lambda leaf: leaf + 3.0, ZERO)
    moved = mean(CHAINS[name], [tree.add(one, way) for one in uploads])
    assert torch.allclose(moved, mean(CHAINS[name], uploads) + tree.flat(way), atol=1e-5)


@pytest.mark.parametrize("name", CHAINS)
def test_equal_uploads_are_their_own_mean(name: str) -> None:
    same = [tree.scale(0.3, honest()[0])] * N
    assert torch.allclose(mean(CHAINS[name], same), tree.flat(same[0]), atol=1e-6)


def test_made_for_nobody_they_are_the_plain_mean() -> None:
    uploads = honest()
    plain = mean((), uploads)
    nobody: list[tuple[RobustStage, ...]] = [
        (TrimmedMean(0),),
        (NearestMixing(0), CoordinateMedian(0)),
        (NearestMixing(0), Krum(0)),
        (NormBound(0, radius=1e3),),
    ]
    for stages in nobody:
        assert torch.allclose(mean(stages, uploads), plain, atol=1e-5), stages


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("what", [1e38, -1e38, math.nan, math.inf, 30.0])
def test_f_false_uploads_stay_without_effect_and_the_plain_mean_does_not(name: str, what: float) -> None:
    """The estimate of a coordinate stays between the honest ones, or their mixtures; the twin without a rule leaves."""
    good = honest(N - F)
    false = [tree.map(lambda leaf: torch.full_like(leaf, what), ZERO)] * F
    x = rows([*good, tree.zeros_like(ZERO)])  # what is no number counts as zeros
    found = mean(CHAINS[name], [*false, *good]).double().numpy()
    assert (found >= x.min(0) - 1e-5).all()
    assert (found <= x.max(0) + 1e-5).all()
    if math.isfinite(what):
        plain = mean((), [*false, *good]).double().numpy()
        assert ((plain < x.min(0)) | (plain > x.max(0))).all()


RULES: dict[str, Callable[[int], RobustStage]] = {"median": CoordinateMedian, "trimmed mean": TrimmedMean}


@pytest.mark.parametrize("cases", [30, pytest.param(2_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", RULES)
def test_each_coordinate_stays_between_the_honest_ones(name: str, cases: int) -> None:
    """For any number of false uploads up to the bound, of any size, in any order. One that holds no number is no
    upload: it counts as zeros, and as false.
    """
    draw = np.random.default_rng(21)
    worst = [0.0, -0.0, 1.0, -1e3, 1e30, -3e38, 5e-324, math.nan, math.inf, -math.inf]
    for _ in range(cases):
        count = int(draw.integers(1, 14))
        f = int(draw.integers(0, (count - 1) // 2 + 1))
        good = honest(count - f, int(draw.integers(1 << 30)))
        numbers = torch.from_numpy(draw.choice(worst, (f, 8))).float()
        false = [tree.unflat(row, ZERO) for row in numbers]
        sent = [*good, *false]
        mixed_up = [sent[i] for i in draw.permutation(count)]
        found, x = mean((RULES[name](f),), mixed_up), torch.stack([tree.flat(one) for one in good])
        assert bool((found >= x.min(0).values - 1e-5).all())
        assert bool((found <= x.max(0).values + 1e-5).all())
        assert torch.allclose(found, mean((RULES[name](f),), sent), atol=1e-6)


def test_one_false_upload_too_many_breaks_a_median() -> None:
    """The negative control of the test above."""
    false = [tree.map(lambda leaf: torch.full_like(leaf, 1e6), ZERO)] * (N // 2 + 1)
    assert float(mean((CoordinateMedian(F),), [*false, *honest(N // 2)]).min()) > 1e5


def test_krum_takes_an_honest_upload() -> None:
    good = honest(N - F)
    false = [tree.scale(-50.0, good[0]), tree.scale(80.0, good[1])]
    found = mean((Krum(F),), [*good, *false])
    assert any(torch.equal(found, tree.flat(one)) for one in good)


def test_a_bound_limits_what_one_can_do() -> None:
    false = tree.map(lambda leaf: torch.full_like(leaf, 1e30), ZERO)
    good = honest(N - 1)
    moved = mean((NormBound(1, radius=1.5),), [false, *good]) - mean((NormBound(1, radius=1.5),), [ZERO, *good])
    assert float(moved.norm()) == pytest.approx(1.5 / N, rel=1e-4)


def test_a_weighed_bound_bounds_the_upload_and_not_its_weight() -> None:
    weights, uploads = [1.0, 0.25, 0.5], honest(3)
    sent = [tree.scale(w, one) for w, one in zip(weights, uploads, strict=True)]
    found = mean((NormBound(1, radius=1.0),), sent, (Weigh(),), weights)
    by_hand = np.average(bounded(rows(uploads), 1.0), axis=0, weights=weights)
    assert found.numpy() == pytest.approx(by_hand, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_no_number_of_a_false_upload_gets_past_a_weighed_bound(dtype: torch.dtype) -> None:
    """Without its small weight the largest float64 is infinite."""
    zero, weights = tree.map(lambda leaf: leaf.to(dtype), ZERO), [1.0, 1.0, 1e-3]
    uplink, good = Uplink(client=(Weigh(),), server=(NormBound(1, radius=1.0),)), [zero, zero]
    for number in (torch.finfo(dtype).max, math.inf, math.nan, torch.finfo(dtype).tiny):
        false = tree.map(lambda leaf, number=number: torch.full_like(leaf, number), zero)
        seen = uplink.receive(dict(enumerate([*good, false])), zero, weights, 1.0, None, Counter(0), each=False)
        assert float(tree.norm(seen.mean)) <= 1.0 * 1e-3 / 2


def test_too_few_uploads_change_nothing() -> None:
    for stages in CHAINS.values():
        assert not mean(stages, honest(fewest(stages) - 1)).any()


def test_an_upload_beyond_its_clip_counts_as_zeros() -> None:
    small = [tree.scale(0.01, one) for one in honest(4)]
    cheat = tree.map(lambda leaf: torch.full_like(leaf, 9.0), ZERO)
    stages = (TrimmedMean(0),)
    assert torch.equal(mean(stages, [cheat, *small], (Clip(1.0),)), mean(stages, [ZERO, *small], (Clip(1.0),)))


# ---------------------------------------------------------------- promises


def test_after_the_clients_own_noise_the_promise_stands() -> None:
    client = (Clip(1.0), Noise(multiplier=2.0))
    plain, robust = Uplink(client=client), Uplink(client=client, server=(CoordinateMedian(1),))
    assert robust.claims(None, lambda event, by: event) == plain.claims(None, lambda event, by: event)
    assert robust.offer(1.0, False) == plain.offer(1.0, False)
    assert robust.bound(100) == plain.bound(100)
    assert {claim.adversary for claim in robust.claims(None, lambda event, by: event)} == set(ADVERSARIES)
