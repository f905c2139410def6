"""Several steps without a clip part by no more than their noise was sized for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sordino import keys, tree
from sordino.algorithms.fedavg import Client, FedAvg, Server
from sordino.privacy.noise import GaussianNoise, LaplaceNoise, NoiseLaw
from sordino.privacy.readers.convex_stable import ConvexStable
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.tasks.nets import logistic
from sordino.tasks.quadratic import Quadratic
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Grant, Losses, NoiseSource, Params
from tests.privacy.doubles import Still, linear
from tests.privacy.neighbours import DIM, DOUBLE, Z, examples_of, labelled_pairs, largest_move, sound


# ---------------------------------------------------------------- several steps without a clip, held together by
# convexity
def convex_ratio(read: ConvexStable, steps: int) -> float:
    """How far E un-noised full-batch steps of a client part, in units of what the one noise at their end is sized for."""
    algorithm = FedAvg(0.3, None, steps, "full", read=read)
    net = logistic((4,), 3, read.radius)
    task = Classification(net, name="logistic", shape=(4,), mean=(0.0,), std=(1.0,), image=False)
    start = {k: v.double() * 0 for k, v in task.init(3).items()}
    start["2.bias"][0] = 50  # sure of class 0: the other labels have the longest gradients there are

    def delta(rows: Examples, source: NoiseSource = Still()) -> Tensor:  # noqa: B008
        n = len(rows.y)
        shard = algorithm.read.open(rows, Grant(0, n, n, source, Z), task)
        down, state = Server(start, torch.tensor(0)), Client(torch.tensor(0))
        return tree.flat(algorithm.local(task, down, state, shard, keys.root(1))[0].delta)

    worst = 0.0
    for pair in labelled_pairs((4,), 60, DOUBLE):
        allowed = float((delta(pair.a) - delta(pair.a, Still(1.0))).max()) / Z
        worst = max(worst, largest_move(delta, iter([pair]), allowed, 2))
    return worst


class OneStep(ConvexStable):
    """A twin that sizes its noise as if one step had been made."""

    def noise_std(self, multiplier: float, size: int, steps: int = 1) -> float:
        return super().noise_std(multiplier, size, 1)


@pytest.mark.slow
def test_convex_steps_stay_together() -> None:
    ratio = convex_ratio(ConvexStable(2.0, 0.3, Z), steps=5)
    assert 0.8 < ratio <= 1 + 1e-9  # sqrt(3)/2 is what a sign change of the features can reach
    assert not sound(convex_ratio(OneStep(2.0, 0.3, Z), steps=5))


# ---------------------------------------------------------------- one local step of an algorithm, and why not two
def local_move(algorithm: FedAvg, start: Params, a: Examples, b: Examples, order: int, losses: Losses) -> float:
    """How far one replaced example moves the upload of a client, without noise."""

    class Given(Quadratic):
        def losses(self, params: Params, x: Tensor, y: Tensor, keys: Tensor) -> Tensor:
            return losses(params, x, y, keys)

    task = Given(DIM)
    down, state = Server(start, torch.tensor(0)), Client(torch.tensor(0))

    def delta(rows: Examples) -> Tensor:
        shard = algorithm.read.open(rows, Grant(0, len(rows.y), len(rows.y), Still(), Z), task)
        return tree.flat(algorithm.local(task, down, state, shard, keys.root(1))[0].delta)

    return float(torch.linalg.vector_norm(delta(a) - delta(b), order))


@pytest.mark.parametrize("law", [GaussianNoise(), LaplaceNoise()], ids=["l2", "l1"])
def test_one_step_moves_by_exactly_twice_eta_c_over_n(law: NoiseLaw) -> None:
    n, eta, clip = 6, 0.1, 10.0
    a = torch.zeros(n, DIM, dtype=DOUBLE)
    a[:, 2], a[-1, 2] = 3.0, 1e5
    b = a.clone()
    b[-1, 2] = -1e5
    algorithm = FedAvg(eta, None, 1, "full", read=NoisyGradient(clip, law))
    moved = local_move(algorithm, {"w": a[0] * 0}, examples_of(a), examples_of(b), law.order, linear)
    assert moved == pytest.approx(2 * eta * clip / n, rel=2e-6)


def test_two_steps_part_as_far_as_the_counter_example_says() -> None:
    # n - 1 examples push by the sign of w, one by +1 or -1: the first step leaves w on either side of 0, the second
    # runs away
    n, eta = 600, 0.1

    def losses(params: Params, x: Tensor, y: Tensor, keys: Tensor) -> Tensor:
        w = params["w"].sum()
        return torch.where(x[:, 0] == 0, 0.5e9 * w * w, x[:, 0] * w)

    a = torch.zeros(n, 1, dtype=DOUBLE)
    b = a.clone()
    a[-1], b[-1] = 1.0, -1.0
    start = {"w": torch.tensor([eta * (n - 1) / n], dtype=DOUBLE)}
    moved = {
        steps: local_move(
            FedAvg(eta, None, steps, "full", read=NoisyGradient(1.0)), start, examples_of(a), examples_of(b), 2, losses
        )
        for steps in (1, 2)
    }
    assert moved[1] == pytest.approx(2 * eta / n, rel=1e-5)
    assert moved[2] == pytest.approx(0.199, rel=1e-3)
    assert moved[2] <= eta * (2 / n + 2)  # the general bound: no promise that a one-step price could keep
