"""Running statistics of a batch are named fields of the model: moved by passes, averaged like weights, and never by a
step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import sordino
from sordino import config, keys, tree
from sordino.algorithms.fedavg import Client, FedAvg, Server
from sordino.algorithms.fedprox import FedProx
from sordino.algorithms.local_sgd import Walk
from sordino.algorithms.moon import Client as MoonClient
from sordino.algorithms.moon import Moon
from sordino.algorithms.moon import Server as MoonServer
from sordino.algorithms.scaffold import Client as ScaffoldClient
from sordino.algorithms.scaffold import Scaffold
from sordino.algorithms.scaffold import Server as ScaffoldServer
from sordino.errors import DataError, SordinoError
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.open import Open
from sordino.runs.simulation import simulated
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Grant, Params
from tests.laws.cases import BUDGET, CENTRAL

KEY = keys.root(5)
ROWS = Examples((255 * keys.uniform(KEY, 24 * 64)).to(torch.uint8).view(24, 8, 8, 1), torch.arange(24) % 10)
SETTINGS: dict[str, Any] = {"lr": 0.1, "local_steps": 3, "batch_size": "full", "weight_decay": 0.01, "momentum": 0.5}
STATISTICS = ("1.running_mean", "1.running_var")
DIGITS: dict[str, Any] = {
    "rounds": 2,
    "data": {"source": "digits", "train": 60, "test": 20},
    "partition": {"scheme": "iid", "clients": 3},
    "algorithm": {"name": "fedavg", "local_steps": 2},
    "privacy": {},
    "evaluation": {"every": 2, "final": 1},
}


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))


def task() -> Classification:
    return Classification(Normed(), name="net", shape=(8, 8, 1), mean=(0.5,), std=(0.3,), image=True)


def plain_torch(start: Params, steps: int) -> Params:
    """What a loop of somebody else's makes of the same rows."""
    net = Normed()
    net.load_state_dict({**start, "1.num_batches_tracked": torch.tensor(0)})
    descent = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5, weight_decay=0.01)
    x = ((ROWS.x.float() / 255 - 0.5) / 0.3).movedim(-1, 1)
    for _ in range(steps):
        descent.zero_grad()
        nn.functional.cross_entropy(net(x), ROWS.y).backward()
        descent.step()
    return dict(net.state_dict())


def trained(method: str, at: Classification, x: Params) -> Params:
    """How far a client of all rows moves the model."""
    shard = Open().open(ROWS, Grant(0, len(ROWS.y), len(ROWS.y), Counter(0)), at)
    zero, never = tree.zeros_like(x), torch.tensor(0)
    if method == "scaffold":
        server = ScaffoldServer(x, zero, never)
        return Scaffold(**SETTINGS).local(at, server, ScaffoldClient(zero, never), shard, KEY)[0].delta_y
    if method == "moon":  # with a pull of nothing, but with looks at two more models in training
        last = MoonClient(x, torch.tensor(1))
        return Moon(**SETTINGS, mu=1e-30).local(at, MoonServer(x, never), last, shard, KEY)[0].delta
    made = FedAvg(**SETTINGS) if method == "fedavg" else FedProx(**SETTINGS, mu=1e-30)
    return made.local(at, Server(x, never), Client(never), shard, KEY)[0].delta


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "scaffold", "moon"])
def test_a_client_trains_as_plain_torch_does(method: str) -> None:
    at = task()
    x = at.init(KEY)
    before = {name: value.clone() for name, value in x.items()}
    delta = trained(method, at, x)
    assert all(torch.equal(x[name], before[name]) for name in x)  # the server's model is as it was
    wanted = plain_torch(before, 3)
    assert all(torch.allclose(x[name] + delta[name], wanted[name], rtol=1e-4, atol=1e-5) for name in x)
    assert float(delta[STATISTICS[1]].abs().max()) > 0.01


def test_a_step_with_a_statistic_as_if_it_were_a_weight_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken twin: weight decay pulls at the statistics, too."""
    monkeypatch.setattr(Walk, "_of_weights", lambda self, direction: direction)
    at = task()
    x = at.init(KEY)
    found, wanted = x[STATISTICS[1]] + trained("fedavg", at, x)[STATISTICS[1]], plain_torch(x, 3)[STATISTICS[1]]
    assert not torch.allclose(found, wanted, rtol=1e-3, atol=1e-4)


def test_who_evaluates_uses_them_and_moves_nothing() -> None:
    at = task()
    x = at.init(KEY)
    moved = {**x, STATISTICS[0]: x[STATISTICS[0]] + 1}
    whole = at.predict(moved, ROWS.x)
    alone = torch.cat([at.predict(moved, ROWS.x[i : i + 1]) for i in range(len(ROWS.x))])
    assert torch.allclose(whole, alone, atol=1e-5)
    assert not torch.allclose(whole, at.predict(x, ROWS.x), atol=1e-2)
    with torch.no_grad():
        at.losses(moved, ROWS.x, ROWS.y, keys.bits(KEY, len(ROWS.y)))  # in training, followed by no gradient
    assert torch.equal(moved[STATISTICS[0]], x[STATISTICS[0]] + 1)
    assert (at.statistics, at.stacks(8), at.pads, at.room) == (STATISTICS, 1, False, 0)  # clients stay apart


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"algorithm": {"name": "gaussian_gdp"}, "privacy": {"epsilon": 4.0, "delta": 1e-5}}, "batch-norm"),
        ({"uplink": CENTRAL, "cohort": {"name": "poisson", "rate": 0.5}, "privacy": BUDGET}, "batch-norm"),
        ({"algorithm": {"name": "ldp_fl"}}, "batch-norm"),
        ({"algorithm": {"name": "ditto"}}, "statistics-not-carried"),
        ({"algorithm": {"name": "fedopt"}}, "statistics-not-carried"),
        ({"algorithm": {"name": "fedavg", "server_lr": 2.0}}, "statistics-not-carried"),
        ({"uplink": {"client": [{"name": "clip", "radius": 1.0}]}}, "statistics-not-carried"),
    ],
)
def test_where_it_would_be_unsound_or_wrong_it_is_refused(changes: dict[str, Any], code: str) -> None:
    normed = {"name": f"{__name__}:Normed"}
    with pytest.raises(SordinoError) as refused:
        _ = simulated(config.validate({**DIGITS, "model": normed, **changes})).setup.plan
    assert refused.value.code == code
    assert "GroupNorm" in refused.value.fix


def test_a_batch_of_one_example_says_what_helps() -> None:
    at = Classification(
        nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10)),
        name="net",
        shape=(8, 8, 1),
        mean=(0.5,),
        std=(0.3,),
        image=True,
    )
    with pytest.raises(DataError, match="batch of one") as refused:
        at.gradient(at.init(KEY), *at.ready(ROWS.x[:1], ROWS.y[:1]), lambda: keys.bits(KEY, 1))
    assert "batch_size" in refused.value.fix


def test_what_a_run_leaves_is_loaded_and_used_by_plain_torch(tmp_path: Path) -> None:
    result = sordino.run(config.validate({**DIGITS, "model": {"name": f"{__name__}:Normed"}}), out=tmp_path / "run")
    net, held = Normed(), load_file(tmp_path / "run" / "model.safetensors")
    net.load_state_dict(held)
    assert not torch.equal(held[STATISTICS[0]], torch.zeros(4))
    assert float(held[STATISTICS[1]].min()) > 0
    at = simulated(config.validate({**DIGITS, "model": {"name": f"{__name__}:Normed"}}))
    scored = at.setup.task.score({name: held[name] for name in at.setup.task.init(KEY)}, at.home.tested)["accuracy"]
    assert float(scored.mean()) == pytest.approx(result.metrics[-1].accuracy)


def test_a_network_that_keeps_its_values_keeps_its_statistics() -> None:
    """As whoever predicts, or starts from pretrained weights, has it."""
    net = Normed()
    net[1].running_mean.fill_(3.0)
    at = Classification(net, name="net", shape=(8, 8, 1), mean=(0.5,), std=(0.3,), image=True, keeps=True)
    begun = at.init(KEY)
    assert torch.equal(begun[STATISTICS[0]], torch.full((4,), 3.0))
    net.load_state_dict(at.state_dict(begun))
    x = ((ROWS.x.float() / 255 - 0.5) / 0.3).movedim(-1, 1)
    assert torch.allclose(at.predict(begun, ROWS.x), net.eval()(x), atol=1e-5)
    assert task().init(KEY)[STATISTICS[0]].eq(0).all()  # drawn anew they begin as the layer does
