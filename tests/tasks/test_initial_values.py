"""Where training starts: a user's own class keeps what its constructor leaves, everywhere alike; built-in
networks are drawn from the seed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sordino import config, keys
from sordino.config import Experiment
from sordino.errors import ConfigError
from sordino.runs.public_inputs import WARM
from sordino.runs.run import resume, start
from sordino.runs.simulation import simulated
from sordino.tasks.architecture import Architecture
from sordino.tasks.supervised import Classification
from tests.helpers.between_sites import Federated

OWN = """
import random
import numpy as np
import torch
from torch import nn
class Pretrained(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)
        for p in self.parameters():
            nn.init.constant_(p, 0.07)
    def forward(self, x):
        return self.head(x.flatten(1))
class Drawn(nn.Module):  # from every generator that there is
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(64, 6).requires_grad_(False)
        self.register_buffer("shift", torch.tensor(np.random.standard_normal(6), dtype=torch.float32))
        self.gain = nn.Parameter(torch.full((6,), random.random()))
        self.head = nn.LazyLinear(10)
    def forward(self, x):
        return self.head(self.gain * torch.relu(self.base(x.flatten(1)) + self.shift))
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_start.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("own_start", None)


def experiment(model: str | dict[str, Any], lr: float = 1e-7, **more: Any) -> Experiment:
    table = {"name": model} if isinstance(model, str) else model
    return config.validate(
        {
            "rounds": 1,
            "data": {"source": "digits", "train": 60, "test": 40},
            "partition": {"scheme": "iid", "clients": 2},
            "algorithm": {"name": "fedavg", "lr": lr, "batch_size": 10},
            "privacy": {},
            "model": table,
            **more,
        }
    )


def weights(made: Experiment, folder: Path) -> dict[str, Tensor]:
    return load_file(start(made, folder).folder / "model.safetensors")


def test_weights_of_the_constructor_are_where_training_starts(tmp_path: Path) -> None:
    kept = weights(experiment("own_start:Pretrained"), tmp_path / "kept")
    assert all((value - 0.07).abs().max() < 1e-5 for value in kept.values())


@pytest.mark.parametrize(("model", "said"), [("own_start:Pretrained", 1), ("logistic", 0)])
def test_a_receipt_says_that_the_data_behind_them_are_not_counted(model: str, said: int, tmp_path: Path) -> None:
    assumed = start(experiment(model), tmp_path / "run").receipt.assumptions
    assert [line for line in assumed if "initial values" in line] == [WARM.format(model)] * said


def test_they_are_drawn_anew_where_that_is_asked_for(tmp_path: Path) -> None:
    reset = weights(experiment({"name": "own_start:Pretrained", "reset": True}), tmp_path / "reset")
    assert (reset["head.weight"] - 0.07).abs().mean() > 0.02


@pytest.mark.parametrize(
    "model", [{"name": "logistic", "reset": True}, {"name": "own_start:Pretrained", "reset": "yes"}]
)
def test_built_in_networks_have_nothing_to_keep(model: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refusal:
        _ = simulated(experiment(model)).setup.task
    assert refusal.value.code == "no-reset"


def test_what_a_constructor_draws_is_the_same_at_every_site(tmp_path: Path) -> None:
    """Whatever was drawn in these processes before: server and sites build the class one by one."""
    made = experiment("own_start:Drawn", lr=0.5)
    here = weights(made, tmp_path / "loop")
    random.random(), np.random.rand(3), torch.rand(3)
    Federated(made, tmp_path / "sites").play()
    assert (tmp_path / "sites/server/model.safetensors").read_bytes() == (
        tmp_path / "loop/model.safetensors"
    ).read_bytes()
    assert sorted(here) == ["base.bias", "base.weight", "gain", "head.bias", "head.weight", "shift"]
    one, other = (simulated(experiment("own_start:Drawn", seed=s)).setup.task for s in (0, 1))
    wholes = [task.state_dict(task.init(keys.root(9))) for task in (one, other)]
    assert not any(torch.equal(wholes[0][name], wholes[1][name]) for name in here)


@pytest.mark.slow
def test_what_a_constructor_draws_is_the_same_in_every_process(tmp_path: Path) -> None:
    made = [
        experiment("own_start:Drawn", lr=0.5, rounds=2, engine=where)
        for where in ({"executor": "loop"}, {"executor": "processes", "workers": 2})
    ]
    loop, processes = (weights(each, tmp_path / each.engine.executor) for each in made)
    assert all(torch.equal(loop[name], processes[name]) for name in loop)
    resume(tmp_path / "processes")
    again = load_file(tmp_path / "processes/model.safetensors")
    assert all(torch.equal(loop[name], again[name]) for name in loop)


def test_nobody_elses_draws_are_moved() -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[union-attr]
    Architecture(name="own_start:Drawn", inputs=(1, 8, 8), outputs=10).built(3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.array_equal(np.random.get_state()[1], before[2])  # type: ignore[arg-type]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.base, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.again = self.first
        self.base.requires_grad_(False)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.again(self.base(self.first(x))) * self.scale)  # type: ignore[no-any-return]


def test_a_drawn_start_leaves_alone_what_is_frozen_and_what_somebody_trains() -> None:
    """Shared weights are told under both names; a start that is drawn later is none of anybody's weights."""
    net = Tied()
    base = net.base.weight.clone()
    task = Classification(net, name="tied", shape=(4,), mean=(0.0,), std=(1.0,), image=False)
    params = task.init(keys.root(1))
    x, y = task.ready(torch.ones(3, 4), torch.tensor([0, 1, 0]))
    task.gradient(params, x, y, lambda: keys.bits(keys.root(2), 3))
    before = {name: value.clone() for name, value in params.items()}
    assert not torch.equal(task.init(keys.root(5))["out.weight"], params["out.weight"])
    assert all(torch.equal(before[name], params[name]) for name in params)
    whole = task.state_dict(params)
    assert torch.equal(whole["base.weight"], base)
    assert torch.equal(whole["again.weight"], params["first.weight"])
    other = Tied()
    other.load_state_dict(whole, strict=True)
    assert torch.allclose(task.predict(params, torch.ones(3, 4)), other(torch.ones(3, 4)))
