"""FedAvgM against its recursion: without momentum it is FedAvg bit by bit, with it the rounds are those written here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sordino
from sordino import tree
from sordino.algorithms.fedavg import FedAvg, Up
from sordino.algorithms.fedavgm import FedAvgM, Server
from sordino.errors import ConfigError
from sordino.types import Received
from tests.algorithms.test_algorithms import LR, local, quadratics

BETA, ETA = 0.7, 0.5


def recursion(rounds: int, momentum: float = BETA) -> Tensor:
    """v <- beta v + mean update, w <- w + eta v, where the mean update at w is asked of FedAvg."""
    w = v = torch.zeros(0)
    for t in range(rounds):
        run = quadratics(FedAvg(**local()))
        w = run.w if t == 0 else w
        run.server = run.server._replace(x={"w": w})
        delta = run.play(1).w - w
        v = delta if t == 0 else momentum * v + delta
        w = w + ETA * v
    return w


@pytest.mark.parametrize("server_lr", [1.0, ETA])
def test_without_momentum_it_is_fedavg(server_lr: float) -> None:
    settings = local(server_lr=server_lr)
    plain = quadratics(FedAvg(**settings)).play(5).w
    assert torch.equal(quadratics(FedAvgM(server_momentum=0.0, **settings)).play(5).w, plain)
    assert not torch.equal(quadratics(FedAvgM(server_momentum=1e-3, **settings)).play(5).w, plain)  # control


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_rounds_are_the_recursion(rounds: int) -> None:
    run = quadratics(FedAvgM(server_momentum=BETA, **local(server_lr=ETA))).play(rounds)
    assert torch.allclose(run.w, recursion(rounds), rtol=0, atol=1e-12)


@dataclass(frozen=True)
class Swapped(FedAvgM):
    """Broken twin: the mean update is damped, and the momentum is not."""

    def update(self, s: Any, r: Received[Up], home: Any) -> Any:
        v = tree.axpy(self.server_momentum, r.mean.delta, s.v)
        return Server(tree.axpy(self.server_lr, v, s.x), v, s.round + 1)


def test_the_recursion_catches_another_one() -> None:
    run = quadratics(Swapped(server_momentum=BETA, **local(server_lr=ETA))).play(2)
    assert (run.w - recursion(2)).norm() > 0.01
    assert (recursion(2) - recursion(2, momentum=0.0)).norm() > 0.01


@pytest.mark.slow
def test_it_comes_to_rest_where_fedavg_does() -> None:
    """A momentum changes the way, not the end."""
    plain = quadratics(FedAvg(**local())).play(60).w
    assert torch.allclose(quadratics(FedAvgM(server_momentum=0.3, **local())).play(60).w, plain, rtol=0, atol=1e-7)


def test_clients_do_not_get_the_momentum() -> None:
    run = quadratics(FedAvgM(**local())).play(2)
    assert run.server.v["w"].norm() > 0
    assert run.algorithm.broadcast(run.server)._fields == ("x", "round")


@pytest.mark.parametrize("beta", [-0.1, 1.0, float("nan")])
def test_a_momentum_lies_below_1(beta: float) -> None:
    with pytest.raises(ConfigError) as refusal:
        FedAvgM(lr=LR, server_momentum=beta)
    assert refusal.value.code == "momentum-out-of-range"


def test_a_round_that_nobody_took_part_in_says_what_became_of_the_model(tmp_path: Path) -> None:
    small = ("rounds=6", "partition.clients=2", "data.train=80", "data.test=40", "chaos.drop=0.7", "privacy={}")
    told: dict[str, list[str]] = {}
    for name in ("fedavg", "fedavgm"):
        run = sordino.run(None, *small, f"algorithm={name}", out=tmp_path / name)
        told[name] = [note for note in run.notes if "nobody could take part" in note]
        norms = [row.model_norm for row in run.metrics]
        for note in told[name]:
            t = int(note.split()[1].rstrip(":"))
            still = t > 1 and norms[t - 1] == norms[t - 2]
            assert ("stays as it was" in note) == (still or t == 1)
    assert len(told["fedavg"]) >= 2
    assert all("stays as it was" in note for note in told["fedavg"])
    assert any("moved the model on" in note for note in told["fedavgm"])
