"""PFLDyn against its formulas: what one step is, what the server makes of the first round, and the invariant g = mean
of all g_n.

The clients of most tests pull towards a point each, f_n(w) = 1/2 |w - a_n|^2, whatever loss they are asked for: every
step is then known by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from sordino import config, keys, tree
from sordino.algorithms.fedavg import FedAvg
from sordino.algorithms.local_sgd import LocalSgd
from sordino.algorithms.pfl_dyn import PFLDyn, ServerState
from sordino.errors import ConfigError
from sordino.keys import Key
from sordino.privacy.readers.open import Open
from sordino.runs.run import start
from sordino.runs.simulation import simulated
from sordino.tasks.quadratic import Quadratic
from sordino.tasks.supervised import Classification
from sordino.types import EpisodeLoss, Examples, Grant, LocalWork, Params, Task
from tests.algorithms.test_algorithms import Played, table

DIM, ALPHA = 3, 0.1


@dataclass(frozen=True)
class Pull:
    """An episode whose gradient is w - a."""

    a: Tensor

    def grad(self, loss: EpisodeLoss, params: Params) -> Params:
        return {"w": params["w"] - self.a}


@dataclass(frozen=True)
class Pulls(Open):
    def open(self, examples: Examples, grant: Grant, task: Task) -> Any:
        return PullShard(examples.x[0].double())


@dataclass(frozen=True)
class PullShard:
    a: Tensor

    def episodes(self, work: LocalWork, key: Key) -> Iterator[Pull]:
        for _ in range(work.count(1)):
            yield Pull(self.a)


def pulled(state: ServerState, points: Sequence[Sequence[float]], at: float = 0.0, **changes: Any) -> Played:
    plain: dict[str, Any] = {
        "lr": 0.3,
        "local_steps": 1,
        "weight_decay": 0.0,
        "most_grad": None,
        "lr_decay": 1.0,
        "alpha": ALPHA,
    }
    algorithm = PFLDyn(server_state=state, read=Pulls(), **(plain | changes))
    shards = [Examples(torch.tensor([point], dtype=torch.float64), torch.zeros(1).long()) for point in points]
    run = Played(algorithm, Quadratic(len(points[0])), shards)
    run.server = run.server._replace(x={"w": torch.full((len(points[0]),), at, dtype=torch.float64)})
    return run


POINTS: list[list[float]] = [[1.0, -2, 0.5], [0, 3, 1], [4, 0, -1], [-2, 2, 2], [0.5, 0.5, 5]]
LESS = [[0, 3], [1, 2, 4], [2], [0, 1, 2, 3, 4], [4, 0], [3]]  # partial participation, of changing size


def g_of(run: Played) -> tuple[Tensor, Tensor]:
    """The server's g, and the mean of the clients'."""
    mean = torch.stack([tree.flat(state.g) for state in run.states.values()]).mean(0)
    return tree.flat(run.server.g), mean


# the client -----------------------------------------------------------------------------------------------------------


def stepped(rule: LocalSgd, y: Any, eta: float, direction: Any) -> Any:
    walk = rule.walk(y, eta)
    walk(direction)
    return walk.y


def test_where_the_loss_is_flat_the_first_gradient_is_minus_g_n() -> None:
    """At w = w^t the pull of the regulariser is -g_n alone: a client at its own minimum moves by eta g_n."""
    run = pulled("scaled", [[2.0, 2, 2]], at=2.0)
    g_n = torch.tensor([0.5, -1.0, 3.0], dtype=torch.float64)
    run.states[0] = run.states[0]._replace(g={"w": g_n})
    run.one_round([0])
    assert torch.allclose(run.uploads[0].delta["w"], 0.3 * g_n, rtol=1e-12, atol=0)


def test_later_steps_are_held_by_alpha() -> None:
    """P steps of w <- w - eta (w - a - g_n + alpha (w - w^t)), written out; then g_n takes the move away."""
    run = pulled("scaled", POINTS, at=1.0, local_steps=4).play(2)  # g_n are something by now
    w, g_n = run.w.clone(), {k: run.states[k].g["w"].clone() for k in range(len(POINTS))}
    run.play(1)
    for k, point in enumerate(POINTS):
        y = w.clone()
        for _ in range(4):
            y = y - 0.3 * (y - torch.tensor(point) - g_n[k] + ALPHA * (y - w))
        assert torch.allclose(run.uploads[k].delta["w"], y - w, rtol=0, atol=1e-12)
        assert torch.allclose(run.states[k].g["w"], g_n[k] - ALPHA * (y - w), rtol=0, atol=1e-12)


def test_a_step_is_capped_and_then_decayed() -> None:
    """y - eta (d min(1, 10/|d|) + decay y): the cap sees the direction alone, over all its layers."""
    names = {"w": (4, 3), "b": (3,)}
    y = {
        name: keys.normal(keys.root(i), 12)[: torch.Size(s).numel()].view(s)
        for i, (name, s) in enumerate(names.items())
    }
    for size in (1.0, 9.99, 10.01, 400.0):
        d = {
            name: keys.normal(keys.root(i + 9), leaf.numel()).view_as(leaf) for i, (name, leaf) in enumerate(y.items())
        }
        d = tree.scale(size / float(tree.norm(d)), d)
        made = stepped(FedAvg(most_grad=10.0, weight_decay=0.5), y, 0.2, d)
        for name in names:
            wanted = y[name] - 0.2 * (d[name] * min(1.0, 10 / size) + 0.5 * y[name])
            assert torch.allclose(made[name], wanted, rtol=1e-12, atol=1e-12)
        late = tree.axpy(0.5, y, d)  # control: decay before the cap is another step where the cap bites
        late = tree.axpy(-0.2 * min(1.0, 10 / float(tree.norm(late))), late, y)
        if size in (1.0, 400.0):
            assert torch.allclose(made["w"], late["w"], rtol=0, atol=1e-9) == (size == 1.0)


def test_without_cap_and_decay_it_is_the_plain_step_bit_for_bit() -> None:
    y = {"w": keys.normal(keys.root(1), 1000).float()}
    d = {"w": keys.normal(keys.root(2), 1000).float()}
    plain = torch.add(y["w"], d["w"], alpha=-0.1)
    assert torch.equal(stepped(FedAvg(), y, 0.1, d)["w"], plain)
    walked = {"w": y["w"].clone()}
    assert torch.equal(stepped(FedAvg(), walked, 0.1, d)["w"], plain)
    assert torch.equal(stepped(FedAvg(most_grad=1e9), y, 0.1, d)["w"], plain)  # a cap that does not bite
    assert not torch.equal(stepped(FedAvg(weight_decay=1e-3), y, 0.1, d)["w"], plain)


def test_the_step_size_decays_with_the_rounds() -> None:
    run = pulled("scaled", [[1.0] * DIM, [3.0] * DIM], lr_decay=0.5)
    for t, who in enumerate(([0], [1], [0, 1])):
        w, g = run.w.clone(), {k: run.states[k].g["w"].clone() for k in (0, 1)}
        run.one_round(who)
        for k in who:
            slope = w - run.shards[k].x[0] - g[k]
            assert torch.allclose(run.uploads[k].delta["w"], -0.3 * 0.5**t * slope, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("state", ["scaled", "oracle"])
def test_an_update_that_is_no_number_is_none(state: ServerState) -> None:
    run = pulled(state, [[1.0, 2, 3], [float("nan"), 0, 0], [float("inf"), 0, 0]])
    kept = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    for k in (1, 2):
        run.states[k] = run.states[k]._replace(g={"w": kept})
    run.play(3)
    for k in (1, 2):
        assert not run.uploads[k].delta["w"].any()
        assert torch.equal(run.states[k].g["w"], kept)
        assert int(run.states[k].failures) == 3
        if state == "oracle":
            assert not run.uploads[k].g["w"].any()
    assert int(run.states[0].failures) == 0
    assert [int(s.participations) for s in run.states.values()] == [3, 3, 3]
    assert tree.finite(run.server)


def test_a_network_whose_features_are_the_input_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest mean of the pixels themselves: no parameter has a say, and none moves."""
    table: dict[str, Any] = {"partition": {"scheme": "iid", "clients": 2}, "model": {"name": "logistic"}}
    made = config.load({"rounds": 2, "algorithm": {"name": "pfl_dyn", "local_steps": 2, "weight_decay": 0.0}, **table})
    with pytest.raises(ConfigError, match="nothing to train"):
        start(made, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    monkeypatch.setattr(PFLDyn, "check", lambda self, home: None)  # this is why
    ended = start(made, tmp_path / "run")
    model = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(model[name], value) for name, value in simulated(made).setup.state("server").x.items())
    assert ended.metrics[0].accuracy == ended.metrics[-1].accuracy > 0.7


# the server -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", [[0, 1, 2, 3, 4], [1, 3], [2]])
@pytest.mark.parametrize(("state", "gain"), [("scaled", 1.0), ("literal", None), ("leaky", 1.0), ("oracle", 1.0)])
def test_the_first_round(state: ServerState, gain: float | None, who: list[int]) -> None:
    """w1 = w0 + (1 + |Q|/N) Delta; w0 + 2 Delta in the line as printed."""
    run = pulled(state, POINTS, at=0.5)
    run.one_round(who)
    delta = torch.stack([run.uploads[k].delta["w"] for k in who]).mean(0)
    shift = 1 + (gain * len(who) / len(POINTS) if gain is not None else 1)
    assert torch.allclose(run.w, 0.5 + shift * delta, rtol=0, atol=1e-12)


@pytest.mark.parametrize("state", ["scaled", "literal", "leaky", "oracle"])
def test_the_aggregate_is_the_model_before_the_shift(state: ServerState) -> None:
    run = pulled(state, POINTS)
    for who in LESS:
        before = run.w.clone()
        run.one_round(who)
        delta = torch.stack([run.uploads[k].delta["w"] for k in who]).mean(0)
        models = run.algorithm.models(run.server)
        assert list(models) == ["global", "aggregate"]
        assert torch.equal(models["global"]["w"], run.w)
        assert torch.allclose(models["aggregate"]["w"], before + delta, rtol=0, atol=1e-12)
        assert torch.allclose(run.w, before + delta - run.server.g["w"] / ALPHA, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cohorts", [LESS, [list(range(5))] * 6])
def test_g_is_the_mean_of_the_clients_and_scaled_is_oracle(cohorts: list[list[int]]) -> None:
    scaled, oracle, literal = (pulled(state, POINTS, local_steps=3) for state in ("scaled", "oracle", "literal"))
    for who in cohorts:
        for run in (scaled, oracle, literal):
            run.one_round(who)
        for run in (scaled, oracle):
            g, mean = g_of(run)
            assert torch.allclose(g, mean, rtol=0, atol=1e-12)
        assert torch.allclose(scaled.w, oracle.w, rtol=0, atol=1e-11)
    g, mean = g_of(literal)  # control: the line as printed keeps it only where everybody takes part
    assert torch.allclose(g, mean, rtol=0, atol=1e-9) == (cohorts is not LESS)


def test_the_invariant_holds_on_a_network() -> None:
    """With episodes, a cap and weight decay, in single precision: up to its rounding."""
    _, data = table(60, classes=3)
    net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    task = Classification(net, name="net", shape=(5,), mean=(0.0,) * 5, std=(1.0,) * 5, image=False)
    shards = [Examples(data.x[k::3], data.y[k::3]) for k in range(3)]
    runs = {}
    for state in ("scaled", "oracle"):
        run = Played(PFLDyn(0.5, local_steps=3, batch_size=8, server_state=state), task, shards)
        for who in ([0, 2], [1], [0, 1, 2], [2]):
            run.one_round(who)
            g, mean = g_of(run)
            assert torch.allclose(g, mean, rtol=1e-4, atol=1e-7)
        runs[state] = tree.flat(run.server.x)
        assert float(tree.norm(run.server.g)) > 1e-4
    assert torch.allclose(runs["scaled"], runs["oracle"], rtol=1e-4, atol=1e-6)


def test_leaky_forgets() -> None:
    """g <- keep g - alpha |Q|/N Delta, followed by hand; with keep near 1 it is `scaled`."""
    run, g = pulled("leaky", POINTS, keep=0.7), torch.zeros(DIM, dtype=torch.float64)
    for who in LESS:
        run.one_round(who)
        delta = torch.stack([run.uploads[k].delta["w"] for k in who]).mean(0)
        g = 0.7 * g - ALPHA * len(who) / len(POINTS) * delta
        assert torch.allclose(run.server.g["w"], g, rtol=0, atol=1e-13)
    near, scaled = pulled("leaky", POINTS, keep=1 - 1e-12).play(5), pulled("scaled", POINTS).play(5)
    assert torch.allclose(near.w, scaled.w, rtol=0, atol=1e-9)
    assert float((run.server.g["w"] - scaled.server.g["w"]).norm()) > 1e-2


def test_two_clients_that_solve_their_problem_meet_in_the_middle() -> None:
    """f_n = 1/2 (w - a_n)^2, a = (0, 4), from w = 1: 2.8182, 2.0744, 2.0068, ... -> 2. Curvature 1 + alpha: one step of
    1/(1 + alpha) is exact.
    """
    run, path = pulled("scaled", [[0.0], [4.0]], at=1.0, lr=1 / (1 + ALPHA)), []
    for _ in range(200):
        run.one_round([0, 1])
        path.append(float(run.w))
    assert path[:3] == pytest.approx([2.8182, 2.0744, 2.0068], abs=6e-5)
    assert path[7] == pytest.approx(2.0, abs=1e-6)
    assert [float(run.states[k].g["w"]) for k in (0, 1)] == pytest.approx([2.0, -2.0], abs=1e-6)  # the gradients there


# refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"alpha": 0.0}, "out-of-range"),
        ({"alpha": float("inf")}, "out-of-range"),
        ({"keep": 1.0}, "out-of-range"),
        ({"keep": -0.1}, "out-of-range"),
        ({"server_lr": 0.5}, "no-server-step"),
        ({"most_grad": 0.0}, "not-positive"),
        ({"weight_decay": -1.0}, "not-positive"),
    ],
)
def test_impossible_settings(changes: dict[str, Any], code: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        replace(PFLDyn(), **changes)
    assert refusal.value.code == code
