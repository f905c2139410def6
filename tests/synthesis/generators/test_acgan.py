"""ACGAN: its losses in closed form, its order, and that it learns which class is which."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
import torch
from torch import Tensor

from sordino import keys
from sordino.errors import DataError, NonFiniteModel
from sordino.synthesis.generators import GeneratorShape, Halved, draw, init
from sordino.synthesis.generators.training import (
    AcganSettings,
    balanced,
    discriminator_loss,
    generator_loss,
    train_acgan,
)

KEY = keys.root(8)
SHAPE = GeneratorShape("small", 3, 16, 16, 1)
FEW = AcganSettings(epochs=2, batch=8)


def corners(per: int, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Class c is bright in corner c, on noise."""
    y = torch.arange(classes).repeat(per)
    x = 60 * keys.uniform(keys.root(9), len(y) * 256).reshape(-1, 16, 16, 1)
    for i, c in enumerate(y.tolist()):
        x[i, 8 * (c // 2) : 8 * (c // 2) + 8, 8 * (c % 2) : 8 * (c % 2) + 8] += 170
    return x.to(torch.uint8), y


def test_losses_at_ignorance() -> None:
    s, q, y = torch.zeros(7, dtype=torch.float64), torch.full((7, 10), 3.0, dtype=torch.float64), torch.arange(7)
    wanted = (log(2) + log(10)) / 2
    assert abs(float(generator_loss(s, q, y)) - wanted) < 1e-12
    assert abs(float(discriminator_loss(s, q, y, s, q, y)) - wanted) < 1e-12


def test_who_wants_what() -> None:
    s = torch.zeros(4, requires_grad=True)
    q = torch.zeros(4, 3, requires_grad=True)
    y = torch.tensor([0, 1, 2, 0])
    ds, dq = torch.autograd.grad(generator_loss(s, q, y), [s, q])
    assert (ds < 0).all()  # taken for real
    assert (dq.gather(1, y[:, None]) < 0).all()  # and for its class
    s_real, q_real = s.detach().requires_grad_(), q.detach().requires_grad_()
    loss = discriminator_loss(s_real, q_real, y, s, q, y)
    d_real, dq_real, d_fake, dq_fake = torch.autograd.grad(loss, [s_real, q_real, s, q])
    assert (d_real < 0).all()
    assert (d_fake > 0).all()
    assert (dq_real.gather(1, y[:, None]) < 0).all()
    assert (dq_fake.gather(1, y[:, None]) < 0).all()


def test_small_classes_are_shown_more_often() -> None:
    labels = torch.tensor([0] * 7 + [1] * 2 + [2] * 3)
    seen = torch.zeros(12)
    for epoch in range(6):
        order = balanced(labels, 3, epoch, KEY)
        assert labels[order].bincount().tolist() == [7, 7, 7]
        assert len(set(order.tolist())) == 12
        seen += order.bincount(minlength=12)
    assert seen.tolist() == [6] * 7 + [21] * 2 + [14] * 3  # over six epochs every image of a class equally often
    assert not torch.equal(balanced(labels, 3, 0, KEY), balanced(labels, 3, 1, KEY))


def test_dropout_of_one_half() -> None:
    drop = Halved()
    drop.source = keys.generator(KEY)
    x = torch.ones(10, 7, 13, 11).to(memory_format=torch.channels_last)
    out = drop(x)
    assert set(out.flatten().tolist()) == {0.0, 2.0}
    assert abs(float((out > 0).double().mean()) - 0.5) < 6 * 0.5 / x.numel() ** 0.5  # false alarm 2e-9
    places = torch.stack([drop(torch.ones(4000)) for _ in range(50)]).reshape(50, -1, 8).mean((0, 1))
    assert (places - 1).abs().max() < 6 / 25000**0.5  # each of the eight bytes of a word is a fair coin


def test_training_is_a_function_of_its_key() -> None:
    x, y = corners(4)
    before = torch.get_rng_state()
    one, again, other = (
        train_acgan(SHAPE, x, y, FEW, KEY),
        train_acgan(SHAPE, x, y, FEW, KEY),
        train_acgan(SHAPE, x, y, FEW, keys.root(1)),
    )
    assert torch.equal(before, torch.get_rng_state())
    assert one.log == again.log != other.log
    assert all(torch.equal(one.state[k], again.state[k]) for k in one.state)
    assert one.state.keys() == init(SHAPE, KEY).keys()
    assert {v.dtype for v in one.state.values()} == {torch.float32}
    assert [row["epoch"] for row in one.log] == [1, 2]


@pytest.mark.slow
def test_the_best_state_is_kept() -> None:
    x, y = corners(6)
    shown: list[Tensor] = []
    scores = iter([0.1, 0.9, 0.3, 0.2])

    def score(images: Tensor, labels: Tensor) -> float:
        assert sorted(set(labels.tolist())) == [0, 1, 2]
        shown.append(images)
        return next(scores)

    kept = train_acgan(SHAPE, x, y, AcganSettings(epochs=8, batch=8, lr=2e-3, checks=4), KEY, score)
    assert [row.get("score") for row in kept.log] == [None, 0.1, None, 0.9, None, 0.3, None, 0.2]
    # stopping at the best check gives the same: choosing changes nothing in the training
    stopped = train_acgan(SHAPE, x, y, AcganSettings(epochs=4, batch=8, lr=2e-3), KEY)
    assert all(torch.equal(kept.state[k], stopped.state[k]) for k in kept.state)
    assert not torch.equal(shown[0], shown[1])


@pytest.mark.slow
def test_several_generators_learn_their_own_classes() -> None:
    x, y = corners(6, 4)
    shape, seen = GeneratorShape("small", 4, 8, 16, 1, split=2), []

    def score(images: Tensor, labels: Tensor) -> float:
        seen.append(sorted(set(labels.tolist())))
        return 1.0

    made = train_acgan(shape, x, y, replace(FEW, checks=1), KEY, score)
    assert made.state.keys() == init(shape, KEY).keys()
    assert seen == [[0, 1], [2, 3]]
    assert [row["generator"] for row in made.log] == [0, 0, 1, 1]
    alone = train_acgan(shape.one(), x[y >= 2], y[y >= 2] - 2, FEW, keys.fold(KEY, 1))
    assert all(torch.equal(made.state[f"1.{k}"], v) for k, v in alone.state.items())


def nearest_mean(x: Tensor, real: Tensor, y: Tensor) -> Tensor:
    means = torch.stack([real[y == c].float().flatten(1).mean(0) for c in range(int(y.max()) + 1)])
    return torch.cdist(x.float().flatten(1), means).argmin(1)


@pytest.mark.slow
def test_it_learns_which_class_is_which() -> None:
    x, y = corners(60)
    made = train_acgan(SHAPE, x, y, AcganSettings(epochs=10, batch=32, lr=2e-3), KEY)
    labels = torch.arange(3).repeat(60)
    right = [
        float((nearest_mean(draw(SHAPE, state, labels, KEY), x, y) == labels).double().mean())
        for state in (made.state, init(SHAPE, keys.root(11)))
    ]
    assert right[0] > 0.85
    assert right[1] < 0.55  # before training: chance is 1/3, and 6 standard errors of 180 coins are 0.21
    assert made.log[-1]["accuracy_on_fakes"] > made.log[0]["accuracy_on_fakes"] + 0.2
    # negative control: with shuffled labels there is nothing to learn
    mixed = train_acgan(SHAPE, x, y[keys.permutation(KEY, len(y))], AcganSettings(epochs=10, batch=32, lr=2e-3), KEY)
    guessed = nearest_mean(draw(SHAPE, mixed.state, labels, KEY), x, y)
    assert float((guessed == labels).double().mean()) < 0.6


def test_a_class_without_images() -> None:
    x, y = corners(4)
    with pytest.raises(DataError) as refused:
        train_acgan(SHAPE, x[y != 1], y[y != 1], FEW, KEY)
    assert refused.value.code == "generator-class-missing"


def test_a_training_that_diverges() -> None:
    x, y = corners(4)
    with pytest.raises(NonFiniteModel) as refused:
        train_acgan(SHAPE, x, y, replace(FEW, lr=1e38), KEY)
    assert refused.value.code == "generator-not-finite"
