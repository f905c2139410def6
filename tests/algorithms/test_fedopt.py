"""FedOpt against its recursions, and against torch.optim where the two are equal: SGD with momentum, and Adagrad."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sordino
from sordino import tree
from sordino.algorithms.fedavg import FedAvg, Up
from sordino.algorithms.fedopt import FedOpt, Server
from sordino.errors import ConfigError
from sordino.types import Received
from tests.algorithms.test_algorithms import LR, local, quadratics

BETA, ETA, TAU = 0.7, 0.5, 1e-3


def momentum(beta1: float = BETA, **settings: Any) -> dict[str, Any]:
    return local(server_optimizer="momentum", beta1=beta1, **{"server_lr": 1.0} | settings)


def mean_update(w: Tensor) -> Tensor:
    """The mean update at w, asked of FedAvg."""
    run = quadratics(FedAvg(**local()))
    run.server = run.server._replace(x={"w": w})
    return run.play(1).w - w


def path(step: Callable[[Tensor, Tensor], Tensor], rounds: int) -> Tensor:
    """The model after so many rounds of a server that goes from w by a function of the mean update there."""
    w = quadratics(FedAvg(**local())).w
    for _ in range(rounds):
        w = step(w, mean_update(w))
    return w


def recursion(rounds: int, beta: float = BETA) -> Tensor:
    """v <- beta v + mean update, w <- w + eta v."""
    v = torch.zeros(())

    def step(w: Tensor, delta: Tensor) -> Tensor:
        nonlocal v
        v = beta * v + delta
        return w + ETA * v

    return path(step, rounds)


def by_torch(optimizer: type[torch.optim.Optimizer], rounds: int, **settings: Any) -> Tensor:
    w = torch.nn.Parameter(quadratics(FedAvg(**local())).w.clone())
    made = optimizer([w], **settings)
    for _ in range(rounds):
        w.grad = -mean_update(w.detach())
        made.step()
    return w.detach()


@pytest.mark.parametrize("server_lr", [1.0, ETA])
def test_without_momentum_it_is_fedavg(server_lr: float) -> None:
    plain = quadratics(FedAvg(**local(server_lr=server_lr))).play(5).w
    assert torch.equal(quadratics(FedOpt(**momentum(0.0, server_lr=server_lr))).play(5).w, plain)
    assert not torch.equal(quadratics(FedOpt(**momentum(1e-3, server_lr=server_lr))).play(5).w, plain)  # control


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_momentum_is_its_recursion_and_that_of_torch(rounds: int) -> None:
    found = quadratics(FedOpt(**momentum(server_lr=ETA))).play(rounds).w
    assert torch.allclose(found, recursion(rounds), rtol=0, atol=1e-12)
    assert torch.allclose(found, by_torch(torch.optim.SGD, rounds, lr=ETA, momentum=BETA), rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 5])
def test_adagrad_without_momentum_is_that_of_torch(rounds: int) -> None:
    made = FedOpt(**local(server_optimizer="adagrad", beta1=0.0, server_lr=ETA, tau=TAU))
    told = {"lr": ETA, "initial_accumulator_value": TAU**2, "eps": TAU}
    found, theirs = quadratics(made).play(rounds).w, by_torch(torch.optim.Adagrad, rounds, **told)
    assert torch.allclose(found, theirs, rtol=0, atol=1e-12)
    assert (found - by_torch(torch.optim.Adagrad, rounds, **told | {"eps": 1.0})).norm() > 0.01  # control


# Algorithm 2, lines 12 to 14, in numpy: (v, delta squared, beta2) -> v
SECOND: dict[str, Callable[[Any, Any, float], Any]] = {
    "adagrad": lambda v, d2, b: v + d2,
    "adam": lambda v, d2, b: b * v + (1 - b) * d2,
    "yogi": lambda v, d2, b: v - (1 - b) * d2 * np.sign(v - d2),
}


@pytest.mark.one_fast
@pytest.mark.parametrize("name", SECOND)
def test_the_adaptive_ones_are_algorithm_2(name: Any) -> None:
    b1, b2 = 0.8, 0.6
    m, v = np.zeros(()), np.full((), TAU**2)

    def step(w: Tensor, delta: Tensor) -> Tensor:
        nonlocal m, v
        d = delta.numpy()
        m = b1 * m + (1 - b1) * d
        v = SECOND[name](v, d**2, b2)
        return w + torch.from_numpy(ETA * m / (np.sqrt(v) + TAU))

    made = FedOpt(**local(server_optimizer=name, beta1=b1, beta2=b2, tau=TAU, server_lr=ETA))
    ends = [quadratics(made).play(rounds).w for rounds in (1, 2, 6)]
    for rounds, end in zip((1, 2, 6), ends, strict=True):
        m, v = np.zeros(()), np.full((), TAU**2)
        assert torch.allclose(end, path(step, rounds), rtol=0, atol=1e-10)
    assert all((a - b).norm() > 0.01 for a, b in pairwise(ends))


def test_the_optimisers_differ() -> None:
    made = [FedOpt(**local(server_optimizer=name, server_lr=ETA)) for name in ("momentum", *SECOND)]
    ends = [quadratics(one).play(3).w for one in made]
    assert all((a - b).norm() > 1e-3 for i, a in enumerate(ends) for b in ends[:i])


@dataclass(frozen=True)
class Swapped(FedOpt):
    """Broken twin: the mean update is damped, and the momentum is not."""

    def update(self, s: Server, r: Received[Up], home: Any) -> Server:
        m = tree.axpy(self.beta1, r.mean.delta, s.m)
        return Server(tree.axpy(self.server_lr, m, s.x), m, s.v, s.round + 1)


def test_the_recursion_catches_another_one() -> None:
    run = quadratics(Swapped(**momentum(server_lr=ETA))).play(2)
    assert (run.w - recursion(2)).norm() > 0.01
    assert (recursion(2) - recursion(2, 0.0)).norm() > 0.01


@pytest.mark.slow
def test_it_comes_to_rest_where_fedavg_does() -> None:
    """A momentum changes the way, not the end."""
    plain = quadratics(FedAvg(**local())).play(60).w
    assert torch.allclose(quadratics(FedOpt(**momentum(0.3))).play(60).w, plain, rtol=0, atol=1e-7)


@pytest.mark.parametrize("settings", [local(), momentum()])
def test_clients_do_not_get_the_state_of_the_optimiser(settings: dict[str, Any]) -> None:
    run = quadratics(FedOpt(**settings)).play(2)
    assert run.server.m["w"].norm() > 0
    assert run.algorithm.broadcast(run.server)._fields == ("x", "round")


@pytest.mark.parametrize("name", ["beta1", "beta2"])
@pytest.mark.parametrize("beta", [-0.1, 1.0, float("nan")])
def test_momenta_lie_below_1(name: str, beta: float) -> None:
    with pytest.raises(ConfigError) as refusal:
        FedOpt(lr=LR, **{name: beta})  # type: ignore[arg-type]
    assert refusal.value.code == "momentum-out-of-range"


@pytest.mark.parametrize("tau", [0.0, -1.0, float("inf"), float("nan")])
def test_tau_is_above_0(tau: float) -> None:
    with pytest.raises(ConfigError) as refusal:
        FedOpt(lr=LR, tau=tau)
    assert refusal.value.code == "not-positive"


def test_a_round_that_nobody_took_part_in_says_what_became_of_the_model(tmp_path: Path) -> None:
    small = ("rounds=6", "partition.clients=2", "data.train=80", "data.test=40", "chaos.drop=0.7", "privacy={}")
    told: dict[str, list[str]] = {}
    for name in ("fedavg", "fedopt"):
        run = sordino.run(None, *small, f"algorithm={name}", out=tmp_path / name)
        told[name] = [note for note in run.notes if "nobody could take part" in note]
        norms = [row.model_norm for row in run.metrics]
        for note in told[name]:
            t = int(note.split()[1].rstrip(":"))
            still = t > 1 and norms[t - 1] == norms[t - 2]
            assert ("stays as it was" in note) == (still or t == 1)
    assert len(told["fedavg"]) >= 2
    assert all("stays as it was" in note for note in told["fedavg"])
    assert any("moved the model on" in note for note in told["fedopt"])
