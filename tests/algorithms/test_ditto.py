"""Ditto against its closed forms on quadratics: f_k(v) + lambda/2 (v - w)^2 is at rest at (a b + lambda w) / (a +
lambda).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from sordino import config, tree
from sordino.algorithms.ditto import Ditto
from sordino.algorithms.fedavg import FedAvg, Server, Up
from sordino.errors import ConfigError, PrivacyError
from sordino.keys import Key
from sordino.privacy.noise.sources import Counter
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from sordino.types import Grant, Shard, Task
from tests.algorithms.test_algorithms import CLIENTS, LR, SHARDS, TASK, A, B, Played, local, quadratics

EACH = 0.05  # personal_lr
LESS = [[0, 1], [2], [0, 3, 1], [1, 2]]


def ditto(pull: float, personal_lr: float = EACH, **changes: Any) -> Ditto:
    return Ditto(pull=pull, personal_lr=personal_lr, **local(**changes))


def own(run: Played, k: int) -> Tensor:
    found: Tensor = run.states[k].v["w"]
    return found


def shared_models(rounds: int) -> list[Tensor]:
    """Of FedAvg, which knows nothing of Ditto: what is broadcast in each round."""
    run, found = quadratics(FedAvg(**local())), []
    for t in range(rounds):
        found.append(run.w)
        run.one_round(LESS[t % len(LESS)])
    return found


@pytest.mark.parametrize("pull", [0.0, 0.3, 5.0])
def test_the_global_model_is_that_of_fedavg(pull: float) -> None:
    plain = quadratics(FedAvg(**local())).play(8, lambda t: LESS[t % 4])
    run = quadratics(ditto(pull)).play(8, lambda t: LESS[t % 4])
    assert torch.equal(run.w, plain.w)
    assert plain.w.norm() > 0.1


@dataclass(frozen=True)
class SendsItsOwn(Ditto):
    """Broken twin: the client uploads its own model instead of its part in the global one."""

    def local(self, task: Task, down: Server, c: Any, shard: Shard, key: Key) -> tuple[Up, Any]:
        _, after = super().local(task, down, c, shard, key)
        return Up(tree.sub(after.v, down.x)), after


def test_another_upload_is_noticed() -> None:
    plain = quadratics(FedAvg(**local())).play(2).w
    broken = quadratics(SendsItsOwn(pull=0.3, personal_lr=EACH, **local())).play(2).w
    assert not torch.allclose(broken, plain, rtol=0, atol=1e-3)


@pytest.mark.parametrize("pull", [0.0, 0.3, 5.0])
def test_models_of_their_own_follow_the_recursion(pull: float) -> None:
    rounds, whole = 6, shared_models(6)
    run = quadratics(ditto(pull)).play(rounds, lambda t: LESS[t % 4])
    for k in range(CLIENTS):
        v: Tensor | None = None
        for t in range(rounds):
            if k not in LESS[t % 4]:
                continue
            v = whole[t] if v is None else v  # it starts from what it received first
            for _ in range(run.algorithm.local_steps):
                v = v - EACH * (A[k] * (v - B[k]) + pull * (v - whole[t]))
        assert v is not None
        assert torch.allclose(own(run, k), v, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_without_a_pull_it_is_training_alone() -> None:
    run = quadratics(ditto(0.0)).play(60)
    for k in range(CLIENTS):
        assert torch.allclose(own(run, k), B[k], rtol=0, atol=1e-4)
    pulled = quadratics(ditto(0.5)).play(5)
    assert all((own(pulled, k) - B[k]).norm() > 0.05 for k in range(CLIENTS))  # control


@pytest.mark.slow
def test_a_pull_ends_between_the_own_optimum_and_the_global_model() -> None:
    pull = 2.0
    run = quadratics(ditto(pull)).play(40)
    for k in range(CLIENTS):
        assert torch.allclose(own(run, k), (A[k] * B[k] + pull * run.w) / (A[k] + pull), rtol=0, atol=1e-4)


@pytest.mark.slow
def test_a_large_pull_ends_at_the_global_model() -> None:
    def gap(pull: float) -> float:
        run = quadratics(ditto(pull, personal_lr=0.5 / (1 + pull))).play(12)
        return float(max((own(run, k) - run.w).norm() for k in range(CLIENTS)))

    far = gap(10)
    assert gap(1e3) < min(0.01, far / 10)
    assert far < gap(0)  # control: without a pull it stays away


def test_who_never_took_part_is_judged_by_the_global_model() -> None:
    run = quadratics(ditto(0.3)).play(1, lambda t: [0])
    grant = Grant(0, 1, 1, Counter(0))
    first, last = (
        run.algorithm.personal(TASK, run.server.x, run.states[k], run.algorithm.read.open(SHARDS[k], grant, TASK))
        for k in (0, CLIENTS - 1)
    )
    assert torch.equal(first.params["w"], own(run, 0))
    assert torch.equal(last.params["w"], run.w)
    assert not torch.equal(first.params["w"], last.params["w"])


@pytest.mark.slow
def test_runs_are_judged_by_models_of_their_own(tmp_path: Any) -> None:
    table: dict[str, Any] = {
        "rounds": 3,
        "partition": {"scheme": "dirichlet", "clients": 5, "alpha": 0.2},
        "privacy": {},
        "engine": {"executor": "loop"},
        "evaluation": {"personal": ["own", "plain"]},
        "algorithm": {"name": "ditto", "pull": 0.0, "personal_lr": 0.5, "local_epochs": 3},
    }
    mine = start(config.validate(table), tmp_path / "run").metrics[-1]
    told = mine.to_json()
    assert mine.accuracy == told["accuracy"] > told["also"]["global, plain"]["accuracy"] + 0.02


def test_a_reader_that_is_paid_for_each_pass_is_refused() -> None:
    noisy = {"read": {"name": "noisy_gradient", "clip": 1.0}, "privacy": {"epsilon": 4.0}}
    table = {"algorithm": {"name": "ditto", "local_steps": 1, "batch_size": "full"}, **noisy}
    with pytest.raises(PrivacyError) as refusal:
        _ = simulated(config.validate(table)).setup.algorithm
    assert refusal.value.code == "read-beyond-reservation"
    assert simulated(config.validate({**table, "algorithm": {**table["algorithm"], "name": "fedavg"}})).setup.algorithm


@pytest.mark.parametrize("wrong", [{"pull": -0.1}, {"pull": float("inf")}, {"personal_lr": 0.0}])
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError) as refusal:
        Ditto(lr=LR, **wrong)  # type: ignore[arg-type]
    assert refusal.value.code == "not-positive"
