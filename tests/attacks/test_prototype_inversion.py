"""What a mean of features was made of: exactly, where features keep everything; nothing, under noise; and the prototypes
of a run with a preparation.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sordino import config, keys
from sordino.attacks.attack import assault
from sordino.attacks.attacked_run import AttackSettings, MeanView
from sordino.attacks.methods.inversion import Decoder, LinearMap, PrototypeInversion, guess, nearest
from tests.helpers.slaug_runs import RUN

SIDE = 4


def uniform(seed: int, *shape: int) -> Tensor:
    return keys.uniform(keys.root(seed), torch.Size(shape).numel()).float().reshape(shape)


def turned(x: Tensor) -> Tensor:
    """Features that lose nothing: pixels, turned."""
    turn, _ = torch.linalg.qr(keys.normal(keys.root(5), SIDE**4).reshape(SIDE**2, SIDE**2))
    return x.flatten(1) @ turn.float() + 1


def view(noise: float = 0.0) -> tuple[MeanView, Tensor]:
    truth, others = uniform(1, 1, 1, SIDE, SIDE), uniform(2, 200, 1, SIDE, SIDE)
    mean = turned(truth)[0] + noise * keys.normal(keys.root(6), SIDE**2).float()
    return MeanView(mean, turned, 0, others, torch.zeros(200, dtype=torch.int64), keys.root(7)), truth


ATTACKS = [
    pytest.param(LinearMap(), 30, id="linear_map"),
    pytest.param(Decoder(), 18, id="decoder", marks=pytest.mark.slow),  # torch takes seconds to load its optimisers
]


@pytest.mark.parametrize(("attack", "least"), ATTACKS)
def test_features_that_lose_nothing_give_the_image_back(attack: PrototypeInversion, least: float) -> None:
    seen, truth = view()
    blind = nearest(guess(seen), truth).psnr
    assert nearest(attack.draw(seen), truth).psnr > max(least, blind + 3)


@pytest.mark.parametrize(("attack", "least"), ATTACKS)
def test_noise_hides_the_image(attack: PrototypeInversion, least: float) -> None:
    seen, truth = view(noise=5.0)
    assert nearest(attack.draw(seen), truth).psnr < nearest(guess(seen), truth).psnr


def test_the_nearest_of_several_images_counts() -> None:
    images = uniform(3, 5, 1, SIDE, SIDE)
    found = nearest(images[3] + 0.01, images)
    assert torch.equal(found.true[0], images[3])
    assert nearest(images[0] * float("nan"), images).psnr < 20


@pytest.mark.slow
def test_prototypes_of_a_preparation_are_drawn() -> None:
    """SlaugFL's devices tell means of features without noise: with some images a class, they are seen through a network
    that keeps what pixels say.
    """
    data = {"source": "digits", "train": 400, "test": 300, "probe": 5}
    algorithm = {"name": "slaug_fl", "gan_epochs": 1, "prepare_epochs": 3, "local_epochs": 1}
    parts = {"scheme": "iid", "clients": 10}
    table = RUN | {"model": {"name": "mlp"}, "data": data, "partition": parts, "algorithm": algorithm}
    found = assault(config.validate(table), names=("linear_map",), asked=AttackSettings(images=1)).found[0]
    assert found.verdict == "reached"
    assert [one.caption for one in found.pictures] == [
        "nearest original",
        "reconstruction",
        "guess: the mean of the class",
    ]
