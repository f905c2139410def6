"""Noise-free neighbours never move an upload or a sum by more than its noise was sized for; and some move
it by exactly that."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sordino import keys, tree
from sordino.errors import ConfigError
from sordino.privacy.noise import GaussianNoise, LaplaceNoise, NoiseLaw
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.compression import BlockSum
from sordino.privacy.uplink.coordinate_laplace import ClipCoordinates
from sordino.privacy.uplink.fixed_point import Quantise
from sordino.privacy.uplink.stages import SLACK, Clip, ClipLayers, Noise, Stage, Weigh, clip_factor
from sordino.types import Bound, Grant, NoiseSource, Params
from tests.privacy.doubles import Still
from tests.privacy.neighbours import DIM, DOUBLE, Pair, Z, largest_move, row, slow, sound, tiers, tight

# ---------------------------------------------------------------- clients behind an uplink
ZERO = {"a": torch.zeros(3, dtype=DOUBLE), "b": torch.zeros(2, 2, dtype=DOUBLE)}


class Crowd(NamedTuple):
    """Uploads by client, and the public sizes of the whole population."""

    uploads: Mapping[int, Params]
    sizes: tuple[int, ...]


def upload(rng: random.Random) -> Params:
    return tree.unflat(row(rng), ZERO)


def crowds(relation: str, count: int, seed: int) -> Iterator[Pair]:
    """1 to 4 clients of wildly different sizes; one is replaced, or counts for nothing: it sends zeros, or nothing (an
    empty round is among them).
    """
    rng = random.Random(seed)
    for _ in range(count):
        sizes = tuple(rng.choice((1, 10, 10**6)) for _ in range(rng.choice((1, 1, 2, 4))))
        a = {k: upload(rng) for k in range(len(sizes))}
        who = rng.randrange(len(sizes))
        opposite = tree.scale(-1.0, a[who]) if rng.random() < 0.5 else upload(rng)
        others = {k: x for k, x in a.items() if k != who}
        b = {
            "replace": {**others, who: opposite},
            "zero_out": {**others, who: tree.zeros_like(ZERO)} if len(a) % 2 else others,
        }
        yield Pair(Crowd(a, sizes), Crowd(b[relation], sizes))


def central(uplink: Uplink, crowd: Crowd, source: NoiseSource = Still(), expected: float = 2.5) -> Tensor:  # noqa: B008
    """The mean that the server sees. `expected` is a public constant, whoever turns up."""
    largest = max(crowd.sizes)
    sent = {k: uplink.encode(x, Grant(k, crowd.sizes[k], largest, source)) for k, x in crowd.uploads.items()}
    weights = [uplink.weight(size, largest) for size in crowd.sizes]
    return tree.flat(uplink.receive(sent, ZERO, weights, expected, Z, source).mean)


def central_ratio(uplink: Uplink, relation: str, count: int, like: Uplink | None = None) -> float:
    """The checker; a twin without noise of its own is measured by the scale of the uplink it is `like`."""
    nobody = Crowd({}, (1,))
    scale = float((central(like or uplink, nobody, Still(1.0)) - central(like or uplink, nobody)).min())
    order = (like or uplink).server[0].mechanism.order  # type: ignore[attr-defined]
    return largest_move(partial(central, uplink), crowds(relation, count, seed=count), scale / Z, order)


def central_uplink(law: NoiseLaw, relation: Any, weigh: tuple[Stage, ...]) -> Uplink:
    return Uplink(client=(Clip(0.3, law.order), *weigh), server=(Noise(law, relation),))


CENTRAL: dict[str, tuple[Uplink, str]] = {
    f"{law.order}-{relation}-{'weighed' if weigh else 'plain'}": (central_uplink(law, relation, weigh), relation)
    for law in (GaussianNoise(), LaplaceNoise())
    for relation in ("zero_out", "replace")
    for weigh in ((), (Weigh(),))
}


# every relation, law and weighing; the other combinations in the slow tier
FIRST_CENTRAL = {"2-zero_out-plain", "1-zero_out-weighed", "1-replace-plain"}


@pytest.mark.one_fast
@pytest.mark.parametrize(("name", "count"), tiers(CENTRAL, FIRST_CENTRAL, 80, 400))
def test_a_central_sum_moves_by_its_sensitivity_and_never_further(name: str, count: int) -> None:
    uplink, relation = CENTRAL[name]
    assert tight(central_ratio(uplink, relation, count))


LOCAL: dict[str, Uplink] = {
    "gaussian": Uplink(client=(Clip(0.3, 2), Noise(), Weigh())),
    "gaussian, weighed first": Uplink(client=(Clip(0.3, 2), Weigh(), Noise())),
    "gaussian, zero_out": Uplink(client=(Clip(0.3, 2), Noise(neighbours="zero_out"), Weigh())),
    "gaussian, l1 clip": Uplink(client=(Clip(0.3, 1), Noise())),
    "gaussian, tighter clip second": Uplink(client=(Clip(9.0, 2), Clip(0.3, 2), Noise())),
    "laplace": Uplink(client=(Clip(0.3, 1), Noise(LaplaceNoise()), Weigh())),
    "laplace, zero_out": Uplink(client=(Clip(0.3, 1), Noise(LaplaceNoise(), "zero_out"), Weigh())),
    "laplace, l2 clip": Uplink(client=(Clip(0.3, 2), Noise(LaplaceNoise()))),
}


def local_ratio(uplink: Uplink, count: int, dtype: torch.dtype = DOUBLE, relation: str | None = None) -> float:
    """The checker: one client's encoded upload against another, for a client of half the largest size."""
    noise = uplink.noise()
    assert noise is not None

    def encode(x: Params, source: NoiseSource = Still()) -> Tensor:  # noqa: B008
        return tree.flat(uplink.encode(tree.map(lambda leaf: leaf.to(dtype), x), Grant(0, 5, 10, source, Z)))

    scale = float((encode(ZERO, Still(1.0)) - encode(ZERO)).min())  # of the field with the least noise
    made = crowds(relation or noise.neighbours, count, seed=count)
    pairs = (Pair(p.a.uploads[0], p.b.uploads.get(0, tree.zeros_like(ZERO))) for p in made)
    return largest_move(encode, pairs, scale / Z, noise.mechanism.order)


FIRST_LOCAL = {"gaussian, weighed first", "gaussian, zero_out", "laplace", "laplace, l2 clip"}


@pytest.mark.one_fast
@pytest.mark.parametrize(("name", "count"), tiers(LOCAL, FIRST_LOCAL, 150, 400))
def test_an_upload_moves_by_its_sensitivity_and_never_further(name: str, count: int) -> None:
    ratio = local_ratio(LOCAL[name], count)
    assert sound(ratio)
    weighed_first, loose = "weighed first" in name, name == "laplace, l2 clip"
    reached = 0.5 if weighed_first else 1.0  # the noise is sized for the largest client, whose weight is 1
    assert ratio >= 0.99 * reached or (loose and ratio > 0.9)


@pytest.mark.one_fast
@pytest.mark.parametrize(("name", "count"), tiers(LOCAL, FIRST_LOCAL, 80, 200))
def test_the_bound_holds_for_float32_uploads(name: str, count: int) -> None:
    # the clip stops short of its radius by 1e-6, which is more than float32 can lose on the way
    assert local_ratio(LOCAL[name], count, dtype=torch.float32) <= 1 + 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_clip_of_coordinates_holds_in_half_precision(dtype: torch.dtype) -> None:
    """The nearest number of half precision may lie above a radius: of these by up to a 250th."""
    here = Grant(0, 1, 1, Still())
    for radius in torch.linspace(0.05, 0.5, 100).tolist():
        clipped = ClipCoordinates(radius).encode({"w": torch.full((3,), 9.0).to(dtype)}, Bound(), here)
        assert 0.96 * radius < float(clipped["w"].double().max()) <= radius
        (whole,) = tree.leaves(Quantise().encode(clipped, Bound(), here))  # on a grid, too
        assert whole.dtype == torch.int64


@pytest.mark.parametrize("clip", [Clip(1.0), ClipLayers(1.0)], ids=["whole", "by layers"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_bound_holds_for_uploads_in_half_precision(clip: Clip | ClipLayers, dtype: torch.dtype) -> None:
    """The broken twin, which leaves these dtypes the slack of float32, is beyond the bound in more than one of ten."""
    uploads = [{"w": (3 * keys.normal(keys.root(seed), 300)).to(dtype)} for seed in range(100)]
    norms = [float(tree.norm(clip.encode(one, Bound(), Grant(0, 1, 1, Still())))) for one in uploads]
    assert 0.9 < max(norms) <= 1
    coarse = [one["w"] * (1 / (tree.norm(one) * SLACK)).to(dtype) for one in uploads]
    assert sum(float(tree.norm(one)) > 1 for one in coarse) > 10


@pytest.mark.parametrize("clip", [Clip(0.03, 1), Clip(1e-3), ClipLayers(0.03), ClipLayers(1e3)], ids=repr)
def test_many_small_numbers_of_half_precision_are_not_all_rounded_up(clip: Clip | ClipLayers) -> None:
    """The broken twin multiplies only: in the 1-norm it is twice as long as its radius."""
    bound, norms, twin = clip.bound(Bound(), 10**6), list[float](), list[float]()
    for size in torch.logspace(-7, 0, 40, dtype=torch.float64):
        upload = {"w": torch.full((10**6,), float(size), dtype=torch.float16)}
        order = clip.order if isinstance(clip, Clip) else 2
        norms.append(float(tree.norm(clip.encode(upload, Bound(), Grant(0, 1, 1, Still())), order)) / bound.of(order))
        twin.append(float(tree.norm({"w": upload["w"] * clip_factor(tree.norm(upload, 1), 0.03, torch.float16)}, 1)))
    assert max(norms) <= 1
    assert max(twin) > 1.5 * 0.03


def test_a_subnormal_clip_factor_is_no_way_around_the_bound() -> None:
    huge = {"w": torch.full((4,), 3e38)}
    clipped = Uplink(client=(Clip(1e-4),)).encode(huge, Grant(0, 1, 1, Still()))
    assert float(tree.norm(clipped)) <= 1e-4


def test_no_clip_is_so_short_that_rounded_coordinates_go_beyond_it() -> None:
    """The broken twin, which takes any radius, is 1.4 times as long as it says."""
    worst: dict[float, float] = {}
    for radius in (1e-30, 1e-42):
        clip = Clip(1.0)
        object.__setattr__(clip, "radius", radius)  # past the refusal
        full = ({"w": torch.full((10**6,), radius / 1000 * size)} for size in (0.5, 0.9, 1.0, 1.1, 1.4, 2.0))
        worst[radius] = max(float(tree.norm(clip.encode(one, Bound(), Grant(0, 1, 1, Still())))) for one in full)
    assert worst[1e-30] <= Clip(1e-30).radius
    assert worst[1e-42] > 1.3e-42
    with pytest.raises(ConfigError) as refusal:
        Clip(1e-42)
    assert refusal.value.code == "clip-not-positive"


def test_no_clip_is_so_long_that_sums_of_what_it_leaves_are_no_numbers() -> None:
    """Behind the broken twin, which takes any radius, block sums are infinite whatever the noise of the client."""
    fewer, finite = BlockSum(rate=0.01), {}
    for radius in (1e30, 1e38):
        clip = Clip(1.0)
        object.__setattr__(clip, "radius", radius)  # past the refusal
        kept = clip.encode({"w": torch.full((200,), 3e38)}, Bound(), Grant(0, 1, 1, Still()))
        finite[radius] = tree.finite(fewer.encode(kept, Bound(), Grant(0, 1, 1, Still())))
    assert finite == {Clip(1e30).radius: True, 1e38: False}
    with pytest.raises(ConfigError) as refusal:
        Clip(1e38)
    assert refusal.value.code == "clip-not-positive"


@dataclass(frozen=True)
class Deaf(Clip):
    """A broken twin: the whole radius, whatever the client's own budget buys."""

    def encode(self, x: Any, bound: Bound, grant: Grant) -> Any:
        return super().encode(x, bound, replace(grant, reach=1.0))


COORDINATES = st.floats(-1e30, 1e30) | st.floats(-2.0, 2.0) | st.sampled_from([math.inf, -math.inf, math.nan])


def stays_within_its_reach(clip: type[Clip], phases: Iterable[Phase] = tuple(Phase)) -> None:
    """The checker: no upload of a client is longer than its own share of the radius, and none is cut that need not be."""

    @given(
        st.lists(COORDINATES, min_size=DIM, max_size=DIM),
        st.sampled_from([torch.float32, DOUBLE]),
        st.sampled_from([1, 2]),
        st.floats(1e-3, 1e3),
        st.floats(1e-6, 1.0),
    )
    @settings(max_examples=60, deadline=None, database=None, phases=phases)
    def check(values: list[float], dtype: torch.dtype, order: Literal[1, 2], radius: float, reach: float) -> None:
        x = tree.map(lambda leaf: leaf.to(dtype), tree.unflat(torch.tensor(values, dtype=DOUBLE), ZERO))
        sent = clip(radius, order, personal=True).encode(x, Bound(), Grant(0, 1, 1, Still(), Z, reach=reach))
        allowed, before, after = radius * reach, float(tree.norm(x, order)), float(tree.norm(sent, order))
        assert after <= allowed * (1 + 1e-6)
        if before <= 1e25:  # beyond, the factor may be too small for single precision, which then sends nothing
            assert after >= min(before, allowed) * (1 - 1e-5)

    check()


def test_a_personal_clip_stays_within_its_reach() -> None:
    stays_within_its_reach(Clip)


def test_a_personal_clip_that_ignores_its_reach_is_caught() -> None:
    with pytest.raises(AssertionError):
        stays_within_its_reach(Deaf, [Phase.generate])


def test_what_is_longer_than_a_personal_share_of_the_bound_is_left_out() -> None:
    """A second bound does not shrink with the client's share: only the server can see to that, so none is in a secure
    sum. Whoever has the whole budget is counted."""
    uplink = Uplink((ClipCoordinates(0.1), Clip(3.0, personal=True)), (Noise(neighbours="zero_out"),))
    for reach in (0.05, 1.0):
        sent = uplink.encode(tree.map(lambda leaf: leaf + 9, ZERO), Grant(0, 1, 1, Still(), Z, reach=reach))
        share = reach * uplink.bound(tree.size(ZERO)).l2
        total = uplink.sum({0: sent}, ZERO, reach=lambda client, reach=reach: reach).total
        assert float(tree.norm(total)) <= share < float(tree.norm(sent)) * (1 + 1e-5)
        assert bool(tree.norm(total) > 0) == (reach == 1.0)


def test_a_personal_share_is_kept_in_the_norm_of_the_noise() -> None:
    """A clip in the 1-norm before a personal one in the 2-norm: a hundredth of the budget shortens the 2-norm to its
    share, not the 1-norm, for which Laplace noise is sized.
    """
    stages, full = (Clip(1.0, 1), Clip(0.5, 2, personal=True)), tree.map(lambda leaf: leaf + 9, ZERO)
    for law, reach in itertools.product((LaplaceNoise(), GaussianNoise()), (0.01, 0.5, 1.0)):
        uplink = Uplink(stages, (Noise(law, neighbours="zero_out"),))
        sent = uplink.encode(full, Grant(0, 1, 1, Still(), Z, reach=reach))
        total = uplink.sum({0: sent}, ZERO, reach=lambda client, reach=reach: reach).total
        share = reach * uplink.bound(tree.size(ZERO)).of(law.order)
        assert float(tree.norm(total, law.order)) <= share
        assert bool(tree.norm(total) > 0) == bool(tree.norm(sent, law.order) <= share)
        assert law.order == 1 or bool(tree.norm(total) > 0)


def test_a_central_sum_hides_who_took_part() -> None:
    central_noise, _ = CENTRAL["2-zero_out-plain"]
    open_sum = Uplink(client=(Clip(0.3),))

    def participation(uplink: Uplink, who: int) -> float:
        uploads = {k: tree.zeros_like(ZERO) for k in range(who)}
        return uplink.receive(uploads, ZERO, [1.0] * 5, 2.5, Z, Still()).participation

    assert participation(central_noise, 0) == participation(central_noise, 4) == 0.5
    assert participation(open_sum, 4) == 0.8


# twins of an uplink
@dataclass(frozen=True)
class CarelessClip(Clip):
    """min(1, C/n) of Python: a norm that is no number passes."""

    def encode(self, x: Any, bound: Bound, grant: Grant) -> Any:
        factor = min(1.0, self.radius / (float(tree.norm(x, self.order)) or 1.0))
        return tree.scale(factor, x)


@dataclass(frozen=True)
class LayerClip(Clip):
    """Every layer into the ball of the whole."""

    def encode(self, x: Any, bound: Bound, grant: Grant) -> Any:
        return {k: Clip(self.radius, self.order).encode({k: v}, bound, grant)[k] for k, v in x.items()}


@dataclass(frozen=True)
class Trusting(Weigh):
    """A client's number of examples as its weight, however large."""

    def weight(self, size: int, largest: int, precision: float = 1.0) -> float:
        return float(size)


BROKEN: dict[str, tuple[tuple[Stage, ...], str]] = {
    "nan passes min(1, C/n)": ((CarelessClip(0.3),), "zero_out"),
    "clip per layer": ((LayerClip(0.3),), "zero_out"),
    "weights after the clip unbounded": ((Clip(0.3), Trusting()), "zero_out"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_stage_is_caught(name: str) -> None:
    assert not sound(local_ratio(Uplink(client=(*BROKEN[name][0], Noise())), count=100))


@pytest.mark.one_fast
@pytest.mark.parametrize("count", [100, pytest.param(300, marks=slow)])
@pytest.mark.parametrize("name", BROKEN)
def test_a_server_adds_nothing_for_a_client_whose_stages_are_broken(name: str, count: int) -> None:
    stages, relation = BROKEN[name]
    noise = Noise(neighbours=relation)  # type: ignore[arg-type]
    assert sound(central_ratio(Uplink(client=stages, server=(noise,)), relation, count))


def test_a_mean_by_realised_count_is_caught() -> None:
    honest, relation = CENTRAL["2-zero_out-plain"]
    twin = Uplink(client=honest.client, denominator="received")
    assert not sound(central_ratio(twin, relation, count=100, like=honest))


@pytest.mark.slow
def test_zero_out_noise_for_replaced_clients_is_caught() -> None:
    uplink, _ = CENTRAL["2-zero_out-plain"]
    assert central_ratio(uplink, "replace", count=100) == pytest.approx(2, rel=1e-2)
    assert local_ratio(LOCAL["gaussian, zero_out"], count=200, relation="replace") == pytest.approx(2, rel=1e-2)
