"""Layers clipped one by one under one price: the bound, the noise that each layer sees, the shares that cost least,
radii that follow what was released.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sordino import keys, tree
from sordino.errors import ConfigError, WireError
from sordino.privacy.noise.sources import Counter
from sordino.privacy.uplink import Uplink
from sordino.privacy.uplink.stages import ClipLayers, Noise
from sordino.tree import Tree
from sordino.types import Bound, Grant

GRANT = Grant(0, 1, 1, Counter(1), 1.0)
SIZES = (40_000, 10_000, 2_500, 900)
RADII = (0.3, 2.0, 0.05, 7.0)


def numbers(seed: int, size: int) -> Tensor:
    return keys.normal(keys.root(seed), size)


def at(stage: ClipLayers, radii: tuple[float, ...]) -> Any:
    """The stage in a round with these radii."""
    return stage.at(3, torch.tensor(radii, dtype=torch.float64))


def shares(kind: str, radii: tuple[float, ...], sizes: tuple[int, ...]) -> list[float]:
    parts = [1.0 if kind == "equal" else c * math.sqrt(m) for c, m in zip(radii, sizes, strict=True)]
    return [part / sum(parts) for part in parts]


@pytest.mark.parametrize("radius", [math.nan, math.inf, 0.0, -1.0, 1e-4, 1e4])
def test_radii_that_nobody_learns_are_refused(radius: float) -> None:
    """They come with the model, whoever sends it. The first ones may lie outside the ends of later ones."""
    stage = ClipLayers(1.0, adapt=1.0)
    with pytest.raises(WireError) as refused:
        at(stage, (1.0, radius))
    assert refused.value.code == "learned-beyond-plan"
    assert at(stage, (1e-3, 1e3))._each == (1e-3, 1e3)
    assert at(ClipLayers(1e4, adapt=1.0), (1e4,))._each == (1e4,)


# the bound ------------------------------------------------------------------------------------------------------------


def check_inside(stage: Any, x: dict[str, Tensor], radii: tuple[float, ...]) -> None:
    """What leaves is in the unit ball, and each layer of it within its own radius."""
    sent = stage.encode(x, Bound(), GRANT)
    bound = stage.bound(Bound(), tree.size(x))
    assert float(tree.norm(sent)) <= bound.l2 == 1.0
    assert float(tree.norm(sent, 1)) <= bound.l1
    for leaf, radius in zip(tree.leaves(stage.decode(sent, x)), radii, strict=True):
        assert float(leaf.double().norm()) <= radius * (
            1 + 1e-6
        )  # the product by which it is read back rounds once more


values = st.one_of(
    st.floats(width=32),
    st.floats(-3, 3, width=32),
    st.sampled_from([0.0, math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45, 1e-38]),
)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.lists(st.lists(values, min_size=1, max_size=6), min_size=1, max_size=5),
    st.sampled_from(["equal", "energy"]),
    st.sampled_from([torch.float32, torch.float64]),
    st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=5),
)
def test_whatever_comes_the_ball_holds(layers: list[list[float]], kind: Any, dtype: torch.dtype, radii: Any) -> None:
    x = {str(i): torch.tensor(layer, dtype=dtype) for i, layer in enumerate(layers)}
    own = tuple(radii[: len(layers)])
    check_inside(at(ClipLayers(1.0, kind, adapt=1.0), own), x, own)
    check_inside(ClipLayers(own[0], kind), x, own[:1] * len(layers))


class Forgetful(ClipLayers):
    """Broken twin: the last layer is not clipped."""

    def encode(self, x: Tree, bound: Bound, grant: Grant) -> Tree:
        whole, layers = super().encode(x, bound, grant), self._layers(x)
        name = list(x)[-1]
        return whole | {name: x[name] * (math.sqrt(layers[-1][1]) / layers[-1][0])}


def test_the_ball_is_filled_and_a_forgotten_layer_is_noticed() -> None:
    x = {str(i): 100 * numbers(i, 50) for i in range(3)}
    for kind in ("equal", "energy"):
        stage = ClipLayers(2.0, kind)
        check_inside(stage, x, (2.0,) * 3)
        assert float(tree.norm(stage.encode(x, Bound(), GRANT))) == pytest.approx(
            1.0, abs=1e-5
        )  # not smaller than need be
        twin = Forgetful(2.0, kind)
        with pytest.raises(AssertionError):
            check_inside(twin, x, (2.0,) * 3)


def test_what_is_inside_comes_back() -> None:
    radii = (0.5, 3.0)
    x = {"w": numbers(1, 20).view(4, 5), "b": numbers(2, 3)}
    x = {name: leaf * (0.99 * r / leaf.norm()) for (name, leaf), r in zip(x.items(), radii, strict=True)}
    for kind in ("equal", "energy"):
        stage = at(ClipLayers(1.0, kind, adapt=1.0), radii)
        back = stage.decode(stage.encode(x, Bound(), GRANT), x)
        assert all(torch.allclose(back[name], x[name], rtol=1e-12) for name in x)
        one = {"w": 10 * x["w"], "b": x["b"]}  # a large layer takes nothing from another one
        back = stage.decode(stage.encode(one, Bound(), GRANT), one)
        assert torch.allclose(back["b"], x["b"], rtol=1e-12)
        assert float(back["w"].norm()) == pytest.approx(0.5, rel=1e-5)


# the noise ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["server", "client"])
@pytest.mark.parametrize("kind", ["equal", "energy"])
def test_every_layer_has_the_noise_of_its_share(kind: Any, where: str) -> None:
    """C_l sigma / sqrt(a_l) in the layer's own units, twice that where a client hides any two of its uploads.

    Five standard errors of a standard deviation, 1/sqrt(2 m): a false alarm in 1,700,000 per layer. Control: the other
    shares' deviations are refused.
    """
    clip, sigma = ClipLayers(1.0, kind, adapt=1.0), 1.7
    uplink = (
        Uplink((at(clip, RADII),), (Noise(neighbours="zero_out", multiplier=sigma),))
        if where == "server"
        else Uplink((at(clip, RADII), Noise(neighbours="replace", multiplier=sigma)))
    )
    zero = {str(i): torch.zeros(size, dtype=torch.float64) for i, size in enumerate(SIZES)}
    found = uplink.receive({0: uplink.encode(zero, GRANT)}, zero, [1.0], 1.0, None, Counter(5)).mean
    twice = 1 if where == "server" else 2
    other = shares({"equal": "energy", "energy": "equal"}[kind], RADII, SIZES)
    refused = 0
    for leaf, radius, share, wrong in zip(found.values(), RADII, shares(kind, RADII, SIZES), other, strict=True):
        error = 5 / math.sqrt(2 * leaf.numel())
        assert float(leaf.std()) == pytest.approx(twice * radius * sigma / math.sqrt(share), rel=error)
        refused += float(leaf.std()) != pytest.approx(twice * radius * sigma / math.sqrt(wrong), rel=error)
    assert refused >= 2


def factors(stage: Any, sizes: tuple[int, ...]) -> list[float]:
    """What unit noise becomes, layer by layer."""
    ones = {str(i): torch.ones(size, dtype=torch.float64) for i, size in enumerate(sizes)}
    return [float(leaf[0]) for leaf in stage.decode(ones, ones).values()]


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(1e-2, 1e2)), min_size=1, max_size=6), st.integers(0, 999))
def test_energy_shares_leave_the_least_noise(layers: list[tuple[int, float]], seed: int) -> None:
    """sum m_l (C_l / sqrt(a_l))^2 against equal and a hundred random shares, and against the closed form (sum C_l
    sqrt(m_l))^2.
    """
    sizes, radii = zip(*layers, strict=True)
    energy, equal = (factors(at(ClipLayers(1.0, kind, adapt=1.0), radii), sizes) for kind in ("energy", "equal"))

    def total(found: list[float]) -> float:
        return float(sum(m * f**2 for m, f in zip(sizes, found, strict=True)))

    for found in (energy, equal):  # both spend their whole price and no more: sum of (C_l / factor)^2
        assert 1 - 1e-9 < sum((c / f) ** 2 for c, f in zip(radii, found, strict=True)) <= 1
    assert total(energy) == pytest.approx(sum(c * math.sqrt(m) for m, c in layers) ** 2, rel=1e-9)
    assert total(energy) <= total(equal) * (1 + 1e-9)
    for drawn in np.random.default_rng(seed).dirichlet([1.0] * len(layers), 100):
        assert total(energy) <= sum(m * c**2 / a for (m, c), a in zip(layers, drawn, strict=True)) * (1 + 1e-9)


# radii that follow what was released ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["equal", "energy"])
def test_the_next_radius_is_the_norm_beneath_the_noise(kind: Any) -> None:
    """c sqrt(|y_l|^2 - m_l s_l^2), y_l and s_l in the layer's own units, between half and twice the old one; the old
    one where noise hides the norm.
    """
    sizes = (300, 40, 7, 5)
    stage = at(ClipLayers(1.0, kind, adapt=1.5, least=0.02, most=40.0), RADII)
    mean = {str(i): 0.2 * numbers(i, size) for i, size in enumerate(sizes)}
    mean["2"] = mean["2"] * 1e-3  # beneath its noise there is nothing
    mean["3"] = mean["3"] * 1e3
    std = 0.05
    found = stage.learn(mean, mean, std, []).tolist()
    own, scaled = stage.decode(mean, mean), factors(stage, sizes)
    wanted = []
    for y, f, radius in zip(own.values(), scaled, RADII, strict=True):
        beneath, hides = float(y.norm()) ** 2 - y.numel() * (f * std) ** 2, (f * std) ** 2 * math.sqrt(2 * y.numel())
        norm = 1.5 * math.sqrt(beneath) if beneath > hides else radius
        wanted.append(min(max(norm, radius / 2, 0.02), 2 * radius, 40.0))
    assert found == pytest.approx(wanted, rel=1e-9)
    assert found[2] == RADII[2]
    assert found[3] == 2 * RADII[3]
    nothing = {name: torch.zeros_like(value) for name, value in mean.items()}
    for level in (0.0, std):  # nobody answered
        assert stage.learn(nothing, mean, level, []).tolist() == pytest.approx(list(RADII))
    near = {name: value * 1e-2 for name, value in stage.encode(mean, Bound(), GRANT).items()}
    exact = stage.learn(near, mean, 0.0, []).tolist()
    assert exact == pytest.approx([max(r / 2, 0.02) for r in RADII])  # far below, and no noise: half as far


def test_the_next_radius_where_the_step_is_small() -> None:
    stage = at(ClipLayers(1.0, "equal", adapt=1.0), (2.0,))
    mean = {"w": torch.full((100,), 0.12, dtype=torch.float64)}  # of norm 1.2, in units of 1 = 2.0
    assert stage.learn(mean, mean, 0.0, []).tolist() == pytest.approx([2.4])
    assert stage.learn(mean, mean, 0.05, []).tolist() == pytest.approx([2.0 * math.sqrt(1.44 - 100 * 0.05**2)])


def test_radii_that_stay() -> None:
    stage, x = ClipLayers(0.7), {"w": numbers(1, 9)}
    assert not stage.learns
    assert stage.begin(x, x) == stage.learn(x, x, 1.0, []) == ()
    assert stage.at(5, ()) is stage
    adaptive = ClipLayers(0.7, adapt=1.0)
    assert adaptive.learns
    assert adaptive.begin({"w": x["w"], "b": x["w"]}, x).tolist() == [0.7, 0.7]


@pytest.mark.parametrize(
    "bad",
    [
        {"radius": 0.0},
        {"radius": math.inf},
        {"adapt": 0.0},
        {"least": -1.0},
        {"most": 0.0},
        {"least": 2.0, "most": 1.0},
    ],
)
def test_what_is_no_radius(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError) as refusal:
        ClipLayers(**{"radius": 1.0} | bad)  # type: ignore[arg-type]
    assert refusal.value.code in ("clip-not-positive", "radius-out-of-range")
