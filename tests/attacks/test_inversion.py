"""What a reconstruction is worth: measures by hand, inverters where the answer is known, and real digits found again
among their like.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from experiments.slaug_attacks.inverting import Look, by_network, by_pixels, ranks
from sordino import keys
from sordino.accounting.gaussian_dp import mu_of
from sordino.attacks.methods.inversion import fitted
from sordino.attacks.reconstruction import psnr, ssim, variation
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.class_sums import ClassSums
from sordino.types import Examples, Grant
from tests.attacks.devices import CLASSES, extractor, images, parts

pytestmark = pytest.mark.slow  # attacks on what others published: no promise of ours stands or falls with them


def uniform(seed: int, *shape: int) -> Tensor:
    return keys.uniform(keys.root(seed), math.prod(shape)).float().reshape(shape)


# ---------------------------------------------------------------- measures


def test_psnr_is_its_formula() -> None:
    a = torch.zeros(2, 1, 4, 4)
    assert psnr(a, a + 0.1).tolist() == pytest.approx([20.0, 20.0])
    assert psnr(a, a).tolist() == [math.inf, math.inf]


def by_hand(a: np.ndarray, b: np.ndarray, side: int) -> float:
    """SSIM of one channel, window by window."""
    bell = np.exp(-((np.arange(side) - side // 2) ** 2) / (2 * 1.5**2))
    window = np.outer(bell, bell) / bell.sum() ** 2
    found = []
    for i in range(a.shape[0] - side + 1):
        for j in range(a.shape[1] - side + 1):
            x, y = a[i : i + side, j : j + side], b[i : i + side, j : j + side]
            mx, my = (window * x).sum(), (window * y).sum()
            vx, vy, xy = (
                (window * (x - mx) ** 2).sum(),
                (window * (y - my) ** 2).sum(),
                (window * (x - mx) * (y - my)).sum(),
            )
            found.append((2 * mx * my + 1e-4) * (2 * xy + 9e-4) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4)))
    return float(np.mean(found))


@pytest.mark.parametrize(("height", "width", "side"), [(14, 12, 11), (8, 8, 7), (8, 16, 7)])
def test_ssim_is_its_definition(height: int, width: int, side: int) -> None:
    a, b = uniform(1, 2, 3, height, width), uniform(2, 2, 3, height, width)
    b = (a + b) / 2
    x, y = a.double().numpy(), b.double().numpy()
    wanted = [np.mean([by_hand(x[i, c], y[i, c], side) for c in range(3)]) for i in range(2)]
    assert ssim(a, b).tolist() == pytest.approx(wanted)
    assert ssim(a, a).tolist() == pytest.approx([1, 1])
    assert ssim(a, b).tolist() == pytest.approx(ssim(b, a).tolist())


def test_ranks_count_who_is_nearer() -> None:
    made = torch.zeros(3, 1, 1, 1)
    truth = torch.tensor([0.15, 0.3, 0.9]).reshape(3, 1, 1, 1)
    others = torch.tensor([0.1, 0.2, 0.3]).reshape(3, 1, 1, 1)
    assert ranks(made, truth, others).tolist() == [2, 3.5, 4]


# ---------------------------------------------------------------- inverters, where the answer is known


def test_a_linear_map_that_loses_nothing_is_learned_exactly() -> None:
    x = 0.2 + 0.6 * uniform(3, 80, 1, 4, 4)
    turn = keys.normal(keys.root(4), 256).float().reshape(16, 16)
    z = x.flatten(1) @ turn + 1
    made = fitted(z[:60], x[:60], z[60:], ridge=1e-9)
    assert torch.allclose(made, x[60:], atol=1e-3)


INVERTERS: dict[str, Callable[[Look, Tensor], Tensor]] = {
    "network": lambda look, z: by_network(look, z, (1, 8, 8), keys.root(1), steps=60),
    "pixels": lambda look, z: by_pixels(look, z, torch.full((1, 8, 8), 0.5), steps=60),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", INVERTERS)
def test_many_prototypes_are_inverted_each_by_itself(name: str) -> None:
    """What is made of one does not change with those beside it; and features come near the prototype."""
    of = extractor("cnn_norm")
    z = of.features(torch.cat([parts(label).members[:1] for label in (1, 4)]))
    together, alone = INVERTERS[name](of.look, z), INVERTERS[name](of.look, z[:1])
    if name == "pixels":  # its start is the same for all; networks draw theirs together
        assert torch.allclose(together[:1], alone, atol=1e-4)
    assert together.shape == (2, 1, 8, 8)
    assert 0 <= float(together.min()) <= float(together.max()) <= 1
    away = ((of.look(together) - z) ** 2).sum(1) / (z**2).sum(1)
    blank = ((of.look(torch.full((2, 1, 8, 8), 0.5)) - z) ** 2).sum(1) / (z**2).sum(1)
    assert (away < 0.2 * blank).all()
    swapped = ((of.look(together.flip(0)) - z) ** 2).sum(1) / (z**2).sum(1)
    assert (away < 0.2 * swapped).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", INVERTERS)
def test_the_same_key_makes_the_same_images(name: str) -> None:
    of = extractor("cnn_norm")
    z = of.features(parts(2).members[:2])
    assert torch.equal(INVERTERS[name](of.look, z), INVERTERS[name](of.look, z))


def test_total_variation_by_hand() -> None:
    x = torch.tensor([[0.0, 1.0], [0.5, 0.5]]).reshape(1, 1, 2, 2)
    assert float(variation(x)) == pytest.approx((0.5 + 0.5) / 2 + (1 + 0) / 2)
    assert float(variation(x.repeat(3, 1, 1, 1))) == pytest.approx(3.0)


def test_sides_that_four_does_not_divide() -> None:
    made = by_network(lambda x: x.flatten(1)[:, :5], torch.full((2, 5), 0.9), (3, 10, 7), keys.root(1), 100)
    assert made.shape == (2, 3, 10, 7)
    assert (made.flatten(1)[:, :5] - 0.9).abs().max() < 0.1


# ---------------------------------------------------------------- real digits

EACH = 6  # prototypes of a class


class Places(NamedTuple):
    """Mean places among images of the class: of a prototype's own images in what is made of it, in the mean of the
    attacker's images, and of another prototype's.
    """

    own: float
    in_the_mean: float
    strangers: float


def noised(z: Tensor, clip: float, epsilon: float, key: keys.Key) -> Tensor:
    """Means of groups [groups, n, d] as a device with a promise sends them; that there are n in each is given away."""
    groups, n = z.shape[:2]
    examples = Examples(z.flatten(0, 1), torch.arange(groups).repeat_interleave(n))
    reader = ClassSums(clip=clip, multiplier=1 / mu_of(epsilon, 1e-5))
    grant = Grant(0, groups * n, groups * n, Counter(keys.word(key)))
    sums, _ = reader.open(examples, grant, extractor("cnn_norm").task).by_class(lambda x: x, groups)
    return sums.float() / n


def made_of(how: str, prototypes: Tensor, elsewhere: Tensor) -> Tensor:
    of, seen = extractor("cnn_norm"), images(elsewhere)
    if how == "pixels":
        return by_pixels(of.look, prototypes, seen.mean(0), steps=40)
    return fitted(of.features(elsewhere), seen, prototypes)


@cache
def places(how: str, n: int, epsilon: float | None = None) -> Places:
    of, found = extractor("cnn_norm"), []
    for label in range(CLASSES):
        elsewhere, members, others = parts(label)
        draws = [keys.permutation(keys.fold(keys.root(7), label, i), len(members))[:n] for i in range(EACH)]
        groups = members[torch.stack(draws)]
        z = of.features(groups.flatten()).reshape(EACH, n, -1)
        clip = float(torch.linalg.vector_norm(of.features(elsewhere), dim=1).median())
        prototypes = z.mean(1) if epsilon is None else noised(z, clip, epsilon, keys.fold(keys.root(8), label))
        made, rest = made_of(how, prototypes, elsewhere), images(others)
        mean = images(elsewhere).mean(0).expand(EACH, -1, -1, -1)
        for own, strange in zip(groups.T, groups.roll(1, 0).T, strict=True):
            asked = ((made, own), (mean, own), (made, strange))
            found.append(torch.stack([ranks(image, images(rows), rest) for image, rows in asked]))
    return Places(*torch.cat(found, 1).mean(1).tolist())


# Sixty prototypes of one image each; a place among 55 at random has a deviation of 16, the mean of sixty one of 2.1
CLEARLY = 8.0


@pytest.mark.parametrize("how", [pytest.param("pixels", marks=pytest.mark.slow), "learning"])
def test_images_are_found_again_the_fewer_the_better(how: str) -> None:
    one, ten = places(how, 1), places(how, 10)
    assert one.own < one.in_the_mean - CLEARLY
    assert one.own < ten.own - CLEARLY
    assert one.strangers > one.in_the_mean - CLEARLY  # it is this image that is found, not any image


def test_noise_hides_which_image_it_was() -> None:
    clear, hidden = places("learning", 1), places("learning", 1, epsilon=4.0)
    assert clear.own + CLEARLY < hidden.own
    assert hidden.own == pytest.approx(hidden.strangers, abs=CLEARLY)
