"""The algorithms against formulas written here: fixed points on quadratics, plain SGD, and broken twins that must miss
them.

On f_k(w) = 1/2 sum a_k (w - b_k)^2 every step is linear, so where FedAvg, FedProx and SCAFFOLD come to rest is known
exactly:

    optimum            sum a b / sum a
    FedAvg, E steps    sum s b / sum s with s = 1 - (1 - eta a)^E      (client drift)
    FedProx, solved    sum s b / sum s with s = a / (a + mu)
    SCAFFOLD           the optimum, whatever E
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sordino import keys, tree
from sordino.algorithms import all_algorithms
from sordino.algorithms.fedavg import FedAvg
from sordino.algorithms.fedprox import FedProx
from sordino.algorithms.scaffold import Client, Scaffold, Server, Up
from sordino.data import sources
from sordino.errors import ConfigError
from sordino.privacy.noise.sources import Counter
from sordino.tasks.quadratic import Quadratic
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Grant, Params, Received, Shard, Task

DIM, CLIENTS, STEPS, LR = 6, 4, 8, 0.2
TASK = Quadratic(DIM)
DATA, _ = sources.quadratic_with_optimum(CLIENTS, DIM, seed=3, heterogeneity=2.0)
ROWS = torch.from_numpy(DATA.train.x)
A, B = ROWS.double().chunk(2, dim=1)  # one row per client
SHARDS = [Examples(ROWS[k : k + 1], torch.zeros(1, dtype=torch.int64)) for k in range(CLIENTS)]
OPTIMUM = (A * B).sum(0) / A.sum(0)


class Played:
    """A federation without an engine: who takes part is up to the test."""

    def __init__(self, algorithm: Any, task: Any, shards: Sequence[Examples], key: int = 1) -> None:
        self.algorithm, self.task, self.shards, self.key = algorithm, task, shards, key
        self.home: Any = SimpleNamespace(task=task, key=key, sizes=[len(shard.y) for shard in shards])
        self.server = algorithm.init(task, key)
        self.states = {k: algorithm.init_client(task) for k in range(len(shards))}
        self.uploads: dict[int, Any] = {}
        self.round = 0

    def play(self, rounds: int, cohort: Callable[[int], Sequence[int]] | None = None) -> Played:
        for _ in range(rounds):
            self.one_round(range(len(self.shards)) if cohort is None else cohort(self.round))
        return self

    def one_round(self, who: Sequence[int]) -> None:
        a, sizes = self.algorithm, [len(shard.y) for shard in self.shards]
        down = a.broadcast(self.server)
        encoded = {}
        for k in who:
            grant = Grant(k, sizes[k], max(sizes), Counter(0))
            shard = a.read.open(self.shards[k], grant, self.task)
            self.uploads[k], self.states[k] = a.local(
                self.task, down, self.states[k], shard, keys.fold(self.key, self.round, k)
            )
            encoded[k] = a.uplink.encode(self.uploads[k], grant)
        weights = [a.uplink.weight(size, max(sizes)) for size in sizes]
        received = a.uplink.receive(encoded, a.zero(self.task, down), weights, float(len(who)), None, Counter(0))
        self.server = a.update(self.server, received, self.home)
        self.round += 1

    @property
    def w(self) -> Tensor:
        found: Tensor = self.server.x["w"]
        return found


def quadratics(algorithm: Any) -> Played:
    return Played(algorithm, TASK, SHARDS)


def resting(algorithm: Any, w: Tensor) -> Played:
    """A federation that already stands at w."""
    run = quadratics(algorithm)
    run.server = run.server._replace(x={"w": w})
    return run


def local(**changes: Any) -> dict[str, Any]:
    return {"lr": LR, "local_steps": STEPS, "batch_size": "full"} | changes


def rest(share: Tensor) -> Tensor:
    return (share * B).sum(0) / share.sum(0)


# FedAvg ---------------------------------------------------------------------------------------------------------------


def test_fedavg_comes_to_rest_where_client_drift_leaves_it() -> None:
    share = 1 - (1 - LR * A) ** STEPS
    assert torch.allclose(quadratics(FedAvg(**local())).play(40).w, rest(share), rtol=0, atol=1e-9)
    assert (rest(share) - OPTIMUM).norm() > 0.1  # far from the optimum
    one = quadratics(FedAvg(**local(local_steps=1))).play(100).w
    assert torch.allclose(one, OPTIMUM, rtol=0, atol=1e-7)  # one step does not drift


def test_fedavg_weighs_by_the_number_of_examples() -> None:
    rows = torch.cat([ROWS[0:1], ROWS[1:2].repeat(3, 1)])
    shards = [Examples(rows[:1], torch.zeros(1).long()), Examples(rows[1:], torch.zeros(3).long())]
    w = Played(FedAvg(lr=LR, local_steps=1, batch_size="full", server_lr=0.5), TASK, shards).play(1).w
    g = -A * B  # the gradients at w = 0
    assert torch.allclose(w, -0.5 * LR * (1 * g[0] + 3 * g[1]) / 4, rtol=0, atol=1e-15)
    uniform = FedAvg(lr=LR, local_steps=1, batch_size="full", uplink=Scaffold().uplink)
    assert torch.allclose(Played(uniform, TASK, shards).play(1).w, -LR * (g[0] + g[1]) / 2, rtol=0, atol=1e-15)


def table(n: int = 23, features: int = 5, classes: int = 3) -> tuple[Classification, Examples]:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(n, features)).astype(np.float32), rng.integers(0, classes, n)
    net = nn.Sequential(nn.Linear(features, classes))
    task = Classification(
        net, name="net", shape=(features,), mean=(0.0,) * features, std=(1.0,) * features, image=False
    )
    return task, Examples(torch.from_numpy(x), torch.from_numpy(y))


def softmax_sgd(x: Params, data: Examples, batches: Sequence[Tensor], lr: float) -> tuple[Any, Any]:
    """Plain SGD on softmax regression, by hand and in float64."""
    w, b = x["0.weight"].double().numpy(), x["0.bias"].double().numpy()
    for rows in batches:
        xs, ys = data.x[rows].double().numpy(), data.y[rows].numpy()
        logits = xs @ w.T + b
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(ys)), ys] -= 1
        w, b = w - lr * p.T @ xs / len(ys), b - lr * p.mean(0)
    return w, b


@pytest.mark.parametrize("batch", [4, "full"])
def test_fedavg_with_one_client_is_plain_sgd(batch: Any) -> None:
    task, data = table()
    run = Played(FedAvg(lr=0.3, local_epochs=2, batch_size=batch), task, [data])
    start, n = run.server.x, len(data.y)
    run.play(2)
    batches: list[Tensor] = []
    for t in range(2):  # data order is a function of the round's key and the epoch
        key = keys.fold(run.key, t, 0)
        for epoch in range(2):
            batches += torch.split(keys.permutation(keys.fold(key, "epoch", epoch), n), n if batch == "full" else batch)
    assert len(batches) == (4 if batch == "full" else 4 * 6)  # the last batch of an epoch is the short one
    w, b = softmax_sgd(start, data, batches, 0.3)
    assert np.allclose(run.server.x["0.weight"].numpy(), w, rtol=0, atol=2e-6)
    assert np.allclose(run.server.x["0.bias"].numpy(), b, rtol=0, atol=2e-6)


def test_steps_stop_in_the_middle_of_an_epoch() -> None:
    task, data = table()
    run = Played(FedAvg(lr=0.3, local_steps=8, batch_size=4), task, [data])
    start = run.server.x
    run.play(1)
    key = keys.fold(run.key, 0, 0)
    orders = [torch.split(keys.permutation(keys.fold(key, "epoch", e), len(data.y)), 4) for e in range(2)]
    w, _ = softmax_sgd(start, data, [*orders[0], *orders[1][:2]], 0.3)  # 6 batches make an epoch of 23 rows
    assert np.allclose(run.server.x["0.weight"].numpy(), w, rtol=0, atol=2e-6)


# decay ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
@pytest.mark.parametrize("per", ["round", "participation"])
def test_the_step_size_decays_per_round_or_per_participation(name: str, per: str) -> None:
    """One full-batch step from x moves by eta (g - c_i + c): divide the upload by that and look at eta."""
    run = quadratics(all_algorithms()[name](**local(local_steps=1, lr_decay=0.5, lr_decay_per=per)))
    seen: dict[int, list[float]] = {0: [], 1: [], 2: []}
    who = {0: [0, 1], 1: [2, 0], 2: [1, 2], 3: [0, 1]}
    for t in range(4):
        x, states, server = run.w.clone(), dict(run.states), run.server
        run.one_round(who[t])
        for k in who[t]:
            step = A[k] * (x - B[k])
            if name == "scaffold":
                step = step - states[k].c_i["w"] + server.c["w"]
            moved = run.uploads[k].delta_y if name == "scaffold" else run.uploads[k].delta
            seen[k].append(float((-moved["w"] / step).mean()))
    times = {"round": {0: [0, 1, 3], 1: [0, 2, 3], 2: [1, 2]}, "participation": {0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1]}}
    for k, found in seen.items():
        assert found == pytest.approx([LR * 0.5**j for j in times[per][k]], rel=1e-9)


# FedProx --------------------------------------------------------------------------------------------------------------


def test_fedprox_without_mu_is_fedavg_bit_for_bit() -> None:
    task, data = table()
    halves = [Examples(data.x[:9], data.y[:9]), Examples(data.x[9:], data.y[9:])]
    runs = [
        Played(a(lr=0.3, local_epochs=3, batch_size=4), task, halves).play(3)
        for a in (FedAvg, lambda **k: FedProx(mu=0.0, **k))
    ]
    for ours, theirs in zip(*(tree.leaves(run.server) for run in runs), strict=True):
        assert torch.equal(ours, theirs)
    other = Played(FedProx(lr=0.3, local_epochs=3, batch_size=4, mu=1e-3), task, halves).play(3)
    assert not torch.equal(other.server.x["0.weight"], runs[0].server.x["0.weight"])


@dataclass(frozen=True)
class Repelled(FedProx):
    """Broken twin: pushed away from the received model instead of held by it."""

    def direction(self, g: Params, y: Params, x: Params) -> Params:
        return tree.axpy(-self.mu, tree.sub(y, x), g)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_fedprox_follows_the_proximal_problem(mu: float) -> None:
    """E steps on f_k(w) + mu/2 |w - w_t|^2 shrink the distance to its solution by (1 - eta (a + mu))^E."""
    algorithm = FedProx(**local(), mu=mu)
    run = quadratics(algorithm)
    run.one_round([2])
    x = run.w.clone()
    run.one_round([2])
    solved = (A[2] * B[2] + mu * x) / (A[2] + mu)
    assert torch.allclose(run.w, solved + (1 - LR * (A[2] + mu)) ** STEPS * (x - solved), rtol=0, atol=1e-12)

    share = A / (A + mu) * (1 - (1 - LR * (A + mu)) ** STEPS)
    assert torch.allclose(resting(algorithm, rest(share)).play(2).w, rest(share), rtol=0, atol=1e-12)
    twin = resting(Repelled(**local(), mu=mu), rest(share)).play(2).w
    assert (twin - rest(share)).norm() > 1e-3


def test_fedprox_solved_locally_is_the_proximal_point() -> None:
    run = quadratics(FedProx(**local(local_steps=200), mu=1.0)).play(1)  # every client, from w = 0
    assert torch.allclose(run.w, (A * B / (A + 1)).mean(0), rtol=0, atol=1e-9)


@pytest.mark.slow
def test_a_larger_mu_leaves_less_drift() -> None:
    gaps = [float((quadratics(FedProx(**local(), mu=mu)).play(20).w - OPTIMUM).norm()) for mu in (0.0, 0.5, 2.0)]
    assert gaps[0] > gaps[1] > gaps[2] > 0.01


# SCAFFOLD -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flipped(Scaffold):
    """Broken twin: the sign of c_i is wrong in line 10."""

    def local(self, task: Task, down: Server, client: Client, shard: Shard, key: keys.Key) -> tuple[Up, Client]:
        against = client._replace(c_i=tree.scale(-1.0, client.c_i))
        up, _ = super().local(task, down, against, shard, key)
        c_plus = tree.map(lambda ci, c, d: ci - c - d / (STEPS * LR), client.c_i, down.c, up.delta_y)
        return up._replace(delta_c=tree.sub(c_plus, client.c_i)), Client(c_plus, client.participations + 1)


def test_scaffold_reaches_the_optimum_that_fedavg_misses() -> None:
    """With the same step and the same number of steps. Measured: FedAvg rests 0.284 (2-norm) from the optimum, SCAFFOLD
    comes below 1e-8.
    """
    scaffold = quadratics(Scaffold(**local())).play(40).w
    fedavg = quadratics(FedAvg(**local(), uplink=Scaffold().uplink)).play(40).w
    assert (scaffold - OPTIMUM).norm() < 1e-6
    assert (fedavg - OPTIMUM).norm() > 0.25
    twin = quadratics(Flipped(**local())).play(20).w
    assert not (twin - OPTIMUM).norm() < 1e-2  # `not <`: it may be no number any more


@pytest.mark.slow
def test_scaffold_reaches_it_with_two_clients_a_round() -> None:
    run = quadratics(Scaffold(**local())).play(120, lambda t: [t % CLIENTS, (t + 1) % CLIENTS])
    assert (run.w - OPTIMUM).norm() < 1e-6


@dataclass(frozen=True)
class Overcounted(Scaffold):
    """Broken twin: line 17 without |S|/N."""

    def update(self, s: Server, r: Received[Up], home: Any) -> Server:
        return super().update(s, replace(r, participation=1.0), home)


@pytest.mark.parametrize("algorithm", [Scaffold, Overcounted])
def test_the_server_control_is_the_mean_of_the_clients(algorithm: type[Scaffold]) -> None:
    """c = 1/N sum_n c_n, invariant from line 17, in full and in partial participation."""

    def gap(run: Played) -> float:
        mean = torch.stack([run.states[k].c_i["w"] for k in range(CLIENTS)]).mean(0)
        return float((run.server.c["w"] - mean).abs().max())

    full = quadratics(algorithm(**local())).play(5)
    partial = quadratics(algorithm(**local())).play(
        5, lambda t: [t % CLIENTS, (t + 2) % CLIENTS, (t + 3) % CLIENTS][: 1 + t % 3]
    )
    assert gap(full) < 1e-12
    assert (gap(partial) < 1e-12) == (algorithm is Scaffold)


def test_after_one_step_the_client_control_is_the_gradient() -> None:
    """Option II: c_i+ = c_i - c + (x - y)/(K eta) = g(x) for K = 1."""
    run = quadratics(Scaffold(**local(local_steps=1))).play(3)
    x = run.w.clone()
    run.play(1)
    for k in range(CLIENTS):
        assert torch.allclose(run.states[k].c_i["w"], A[k] * (x - B[k]), rtol=0, atol=1e-12)


# refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold"])
@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("lr", 0.0, "not-positive"),
        ("lr", -0.1, "not-positive"),
        ("lr", float("nan"), "not-positive"),
        ("lr", float("inf"), "not-positive"),
        ("lr_decay", 0.0, "not-positive"),
        ("server_lr", float("inf"), "not-positive"),
        ("local_steps", 0, "not-positive"),
        ("local_epochs", -1, "not-positive"),
        ("batch_size", 0, "not-positive"),
    ],
)
def test_impossible_hyper_parameters_are_refused(name: str, field: str, value: Any, code: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        all_algorithms()[name](**{field: value})
    assert refusal.value.code == code


def test_steps_and_epochs_exclude_each_other() -> None:
    with pytest.raises(ConfigError) as refusal:
        FedAvg(local_steps=1, local_epochs=1)
    assert refusal.value.code == "steps-and-epochs"
    for mu in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError) as refusal:
            FedProx(mu=mu)
        assert refusal.value.code == "not-positive"
