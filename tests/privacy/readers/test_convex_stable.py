"""Several steps without a clip under one noise: what leaves the gate, and what client code can do to the bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sordino import keys, tree
from sordino.algorithms.client_noise import convex_stable
from sordino.algorithms.fedavg import Client, FedAvg, Server, Up
from sordino.errors import PrivacyError
from sordino.privacy.noise import GaussianNoise
from sordino.privacy.readers.convex_stable import LONGEST, ROUNDING, ConvexStable
from sordino.tasks.nets import Ball, bounded, logistic
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Grant, LocalWork, NoiseSource, Params
from tests.privacy.doubles import Still

DIM, CLASSES, N, B, ETA, E, Z = 4, 3, 8, 2.0, 0.7, 5, 1.7


def task_of(net: nn.Module | None = None) -> Classification:
    made = net or logistic((DIM,), CLASSES, B)
    return Classification(made, name="logistic", shape=(DIM,), mean=(0.0,), std=(1.0,), image=False)


TASK = task_of()


def rows(last: float = 1.0) -> Examples:
    x = keys.normal(keys.root(4), N * DIM).reshape(N, DIM).double()
    x[-1] *= last
    return Examples(x, torch.arange(N) % CLASSES)


def start() -> Params:
    return {name: value.double() for name, value in TASK.init(3).items()}


def answer(examples: Examples, source: NoiseSource, steps: int = E, params: Params | None = None) -> Params:
    shard = ConvexStable(B, ETA, Z).open(examples, Grant(0, N, N, source), TASK)
    (batch,) = shard.batches(LocalWork(None, steps, None), 1)
    return batch.grad(TASK.losses, start() if params is None else params)


def by_hand(examples: Examples, steps: int, eta: float = ETA, momentum: float = 0.0) -> Params:
    """The sum of the gradients along the steps, from torch's own optimiser."""
    net = nn.Linear(DIM, CLASSES).double()
    with torch.no_grad():
        for p, value in zip(net.parameters(), start().values(), strict=True):
            p.copy_(value)
    before, optimiser = [p.detach().clone() for p in net.parameters()], torch.optim.SGD(net.parameters(), eta, momentum)
    inside = Ball(B)(examples.x)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(inside), examples.y).backward()
        optimiser.step()
    moved = [(a - p.detach()) / eta for a, p in zip(before, net.parameters(), strict=True)]
    return dict(zip(start(), moved, strict=True))


@pytest.mark.parametrize("steps", [1, E])
def test_the_answer_is_the_sum_of_the_gradients_along_plain_steps(steps: int) -> None:
    found, wanted = answer(rows(), Still(), steps), by_hand(rows(), steps)
    assert all(torch.allclose(found[name], wanted[name], rtol=1e-9, atol=1e-12) for name in wanted)
    for other in (by_hand(rows(), steps + 1), by_hand(rows(), E, momentum=0.9), by_hand(rows(), E, eta=ETA / 2)):
        assert not torch.allclose(tree.flat(found), tree.flat(other), rtol=1e-4)  # negative control


@pytest.mark.parametrize("steps", [1, 2, E])
def test_its_noise_is_sized_for_all_steps(steps: int) -> None:
    """2 sqrt(2) B E / n times the multiplier, in every coordinate."""
    noise = tree.sub(answer(rows(), Still(1.0), steps), answer(rows(), Still(), steps))
    wanted = Z * 2 * math.sqrt(2) * B * steps * (1 / N + ROUNDING)
    assert all(torch.allclose(value, torch.full_like(value, wanted), rtol=1e-9) for value in noise.values())


def test_the_upload_is_what_the_steps_and_one_noise_at_their_end_would_give() -> None:
    """The method as its paper has it, through the algorithm that is made by its name."""
    algorithm = convex_stable(B, Z, local_steps=E, lr=ETA)
    shard = algorithm.read.open(rows(), Grant(0, N, N, Still(1.0), reads=1), TASK)
    state = Server(start(), torch.tensor(0)), Client(torch.tensor(0))
    up, _ = algorithm.local(TASK, *state, shard, keys.root(1))
    std = ConvexStable(B, ETA).noise_std(Z, N, E)
    for name, way in by_hand(rows(), E).items():
        assert torch.allclose(tree.formed(up.delta)[name], -ETA * (way + std), rtol=1e-9, atol=1e-12)


# what an algorithm of one's own may do with it
# --------------------------------------------------------------------------------------------


def moves(local: FedAvg, reader: ConvexStable) -> float:
    """How far one example moves the upload of five steps without noise, in units of its noise."""

    def delta(examples: Examples, source: NoiseSource) -> Tensor:
        shard = reader.open(examples, Grant(0, N, N, source, Z), TASK)
        state = Server(sure(), torch.tensor(0)), Client(torch.tensor(0))
        return tree.flat(local.local(TASK, *state, shard, keys.root(1))[0].delta)

    scale = float((delta(rows(), Still(1.0)) - delta(rows(), Still())).abs().min()) / Z
    pairs = [(rows(a), rows(b)) for a, b in ((1e3, -1e3), (1.0, 1e3), (1.0, -1.0))]
    return max(float((delta(a, Still()) - delta(b, Still())).norm()) / scale for a, b in pairs)


def sure() -> Params:
    """Weights that are sure of class 0: other labels have the longest gradients there are."""
    params = tree.zeros_like(start())
    params["2.bias"][0] = 50
    return params


@dataclass(frozen=True)
class Loud(FedAvg):
    """Sends what it was told first, a hundred times as loud."""

    def local(self, task: Any, down: Server, c: Client, shard: Any, key: Any) -> tuple[Up, Client]:
        told = [batch.grad(task.losses, down.x) for batch in shard.batches(self.work, key)]
        return Up(tree.axpy(100.0, told[0], told[-1])), c


WILD = {
    "the first gradient, loudly": Loud(ETA, None, E, "full"),
    "momentum": FedAvg(ETA, None, E, "full", momentum=0.95),
    "a step of 25": FedAvg(25.0, None, E, "full"),
    "a decay of the weights": FedAvg(ETA, None, E, "full", weight_decay=0.5),
    "several epochs": FedAvg(ETA, 3, None, "full"),
}


@pytest.mark.parametrize("name", WILD)
def test_no_algorithm_of_ones_own_moves_further_than_the_noise_is_sized_for(name: str) -> None:
    assert 0 < moves(WILD[name], ConvexStable(B, ETA)) <= 1 + 1e-9


class StepByStep(ConvexStable):
    """The broken twin: client code makes the steps with un-noised gradients, and only the last one is noised."""

    def open(self, examples: Examples, grant: Grant, task: Any) -> Any:
        reader = self

        class Batch:
            live = None

            def __init__(self, last: bool) -> None:
                self.last = last

            def grad(self, losses: Any, params: Params) -> Params:
                leaves = {k: v.detach().double().requires_grad_() for k, v in params.items()}
                mean = losses(leaves, *examples, keys.bits(1, N)).mean()
                found = dict(zip(leaves, torch.autograd.grad(mean, list(leaves.values())), strict=True))
                std = reader.noise_std(Z, N, E) if self.last else 0.0
                return tree.map(lambda g: GaussianNoise().add(g, std, grant.source), found)

        class Shard:
            size = N

            def batches(self, work: LocalWork, key: Any) -> list[Batch]:
                return [Batch(step == E - 1) for step in range(E)]

        return Shard()


@pytest.mark.parametrize("name", ["momentum", "the first gradient, loudly"])
def test_the_twin_that_hands_out_every_gradient_is_caught(name: str) -> None:
    assert moves(WILD[name], StepByStep(B, ETA)) > 2


@pytest.mark.parametrize("epochs", [None, 1, 2])
def test_it_answers_once_whatever_the_effort(epochs: int | None) -> None:
    """A straggler's smaller effort must not end the round before the steps that the noise is sized for."""
    shard = ConvexStable(B, ETA, Z).open(rows(), Grant(0, N, N, Still(), epochs=epochs), TASK)
    (batch,) = shard.batches(LocalWork(None, E, None), 1)
    found = batch.grad(TASK.losses, start())
    assert torch.equal(tree.flat(found), tree.flat(answer(rows(), Still())))
    for again in (lambda: batch.grad(TASK.losses, start()), lambda: list(shard.batches(LocalWork(None, E, None), 1))):
        with pytest.raises(PrivacyError) as refused:
            again()
        assert refused.value.code == "read-beyond-reservation"


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e308])
def test_weights_that_are_no_numbers_do_not_break_the_bound(bad: float) -> None:
    params = {name: torch.full_like(value, bad) for name, value in start().items()}
    gap = tree.sub(answer(rows(1e3), Still(), params=params), answer(rows(-1e3), Still(), params=params))
    assert float(tree.norm(gap)) <= ConvexStable(B, ETA).noise_std(1.0, N, E) * (1 + 1e-9)


@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("weight", "radius"), [(0.0, B), (100.0, B), (1e15, B), (2.0**53, B), (1e30, B), (100.0, LONGEST)]
)
def test_large_weights_do_not_break_the_bound(weight: float, radius: float) -> None:
    """Where a step is shorter than what lies between two numbers, one changed label decides which way it is rounded.
    At a radius of 1e12 the gradients moved by 1.28 of what their noise is sized for."""
    n = 1000
    net = Classification(logistic((1,), 2, radius), name="logistic", shape=(1,), mean=(0.0,), std=(1.0,), image=False)
    params = {name: torch.full_like(value.double(), weight) for name, value in net.init(1).items()}
    reader = ConvexStable(radius, 3.6 / radius**2, Z)

    def told(positive: int) -> Params:
        rows = Examples(torch.full((n, 1), 10.0 * radius).double(), (torch.arange(n) < positive).long())
        (batch,) = reader.open(rows, Grant(0, n, n, Still()), net).batches(LocalWork(None, E, None), 1)
        return batch.grad(net.losses, params)

    for positive in range(0, n, 100):
        moved = float(tree.norm(tree.sub(told(positive), told(positive + 1))))
        assert 0 < moved <= reader.noise_std(1.0, n, E)


def test_only_a_linear_layer_behind_a_ball_is_bounded() -> None:
    """By its structure: a name says nothing."""
    assert bounded(logistic((DIM,), CLASSES, B)) == B
    layer = nn.Linear(DIM, CLASSES)
    for net in (
        logistic((DIM,), CLASSES),
        nn.Sequential(nn.Flatten(), Ball(B), nn.Linear(DIM, 5), nn.ReLU(), nn.Linear(5, CLASSES)),
        nn.Sequential(nn.Flatten(), layer, Ball(B)),
        nn.Sequential(nn.Flatten(), Ball(B), nn.Sequential(layer)),
        layer,
    ):
        assert bounded(net) is None
        assert task_of(net).feature_radius is None


def test_its_own_multiplier_goes_before_the_grants() -> None:
    reader = replace(ConvexStable(B, ETA), multiplier=2 * Z)
    for own, wanted in ((reader, 2 * Z), (ConvexStable(B, ETA), Z)):
        found = [
            next(
                iter(own.open(rows(), Grant(0, N, N, Still(level), Z), TASK).batches(LocalWork(None, E, None), 1))
            ).grad(TASK.losses, start())
            for level in (1.0, 0.0)
        ]
        noise = float(tree.flat(tree.sub(*found)).max())
        assert noise == pytest.approx(own.noise_std(wanted, N, E))
