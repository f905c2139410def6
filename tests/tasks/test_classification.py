"""Tasks: losses and scores against formulas, networks of the published sizes, dropout that is a function of its key."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sordino import config, keys
from sordino.data import sources
from sordino.errors import ConfigError, DataError, UnsoundGuarantee
from sordino.fast.factored import Product
from sordino.privacy.readers.per_example_gradients import slow_sum
from sordino.runs.simulation import simulated
from sordino.tasks.nets import NETS, Dropout, keyed_dropout
from sordino.tasks.quadratic import Quadratic
from sordino.tasks.supervised import Classification
from sordino.types import Examples

KEY = keys.root(8)


def image_task(net: nn.Module, side: int = 8, channels: int = 1) -> Classification:
    mean, std = (0.1307,) * channels, (0.3081,) * channels
    return Classification(net, name="net", shape=(side, side, channels), mean=mean, std=std, image=True)


def pixels(n: int, side: int = 8, channels: int = 1, seed: int = 0) -> Tensor:
    count = n * side * side * channels
    return keys.integers(keys.root(seed), count, 256).to(torch.uint8).reshape(n, side, side, channels)


# networks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [
        ("cnn", (1, 28, 28), 21_840),  # the experiment of the source
        ("cnn_wide", (3, 32, 32), 797_962),
        ("logistic", (1, 28, 28), 7_850),
        ("logistic", (17,), 180),
        ("mlp", (1, 28, 28), 784 * 200 + 200 + 200 * 10 + 10),
        ("cnn_stride", (1, 28, 28), 28_938),
        ("cnn_stride", (3, 32, 32), 34_538),
        ("cnn_pool", (1, 28, 28), 28_938),
        ("cnn_pool", (3, 32, 32), 34_538),
        ("cnn_stride", (1, 8, 8), 416 + 12_832 + 32 * 4 * 10 + 10),
        ("cnn_stride", (1, 9, 9), 416 + 12_832 + 32 * 9 * 10 + 10),
        ("cnn_pool", (1, 9, 9), 416 + 12_832 + 32 * 4 * 10 + 10),
        ("cnn_norm", (1, 28, 28), (9 * 16 + 16 + 32) + (9 * 16 * 32 + 32 + 64) + (9 * 32 * 64 + 64 + 128) + 650),
    ],
)
def test_networks_have_the_published_sizes(name: str, shape: tuple[int, ...], size: int) -> None:
    net = NETS[name](shape, 10)
    assert sum(p.numel() for p in net.parameters()) == size
    assert net(torch.zeros(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize("name", ["cnn_stride", "cnn_pool"])
def test_strides_paddings_and_poolings_take_the_fast_way_to_the_same_gradient(name: str) -> None:
    task = image_task(NETS[name]((1, 8, 8), 10))
    assert task._chain is not None
    params, x, y, draws = task.init(KEY), pixels(6), torch.arange(6), keys.bits(KEY, 6)
    wide = {key: value.double() for key, value in params.items()}
    leaves = {key: value.clone().requires_grad_() for key, value in wide.items()}
    wanted = torch.autograd.grad(task.losses(leaves, x, y, draws).mean(), list(leaves.values()))
    ready = task._scaled(x, torch.float64), task._target(y, torch.float64)
    found = task.gradient(wide, *ready, lambda: draws)
    for (key, g), right in zip(found.items(), wanted, strict=True):
        assert torch.allclose(g.dense() if isinstance(g, Product) else g, right, rtol=1e-9, atol=1e-12), key
    few = task.clipped_sum(task.losses, wide, Examples(x, y), draws, 0.3, 2)
    slow = slow_sum(task.losses, wide, Examples(x, y), draws, 0.3, 2)
    assert all(torch.allclose(few[key], slow[key]) for key in slow)


@pytest.mark.parametrize("name", ["cnn_stride", "cnn_pool"])
def test_two_convolutions_need_four_pixels(name: str) -> None:
    with pytest.raises(DataError) as refusal:
        NETS[name]((1, 3, 3), 10)
    assert refusal.value.code == "model-does-not-fit"


# classification -------------------------------------------------------------------------------------------------------


def test_losses_are_cross_entropies_of_normalised_pixels() -> None:
    task = image_task(NETS["logistic"]((3, 4, 4), 5), side=4, channels=3)
    params, x, y = task.init(KEY), pixels(6, 4, 3), torch.arange(6) % 5
    w, b = (value.double().numpy() for value in params.values())
    scaled = (x.numpy().transpose(0, 3, 1, 2) / 255 - 0.1307) / 0.3081
    logits = scaled.reshape(6, -1) @ w.T + b
    expected = np.log(np.exp(logits).sum(1)) - logits[np.arange(6), y]
    assert np.allclose(task.losses(params, x, y, keys.bits(KEY, 6)).numpy(), expected, atol=1e-5)
    assert np.allclose(task.predict(params, x).numpy(), logits, atol=1e-5)


def test_tables_are_standardised_by_feature() -> None:
    net = nn.Linear(2, 2)
    task = Classification(net, name="n", shape=(2,), mean=(1.0, -2.0), std=(2.0, 0.5), image=False)
    params = {"weight": torch.eye(2), "bias": torch.zeros(2)}
    assert task.predict(params, torch.tensor([[3.0, -1.0]])).tolist() == [[1.0, 2.0]]


def test_scores_do_not_depend_on_how_the_test_set_is_cut() -> None:
    task = image_task(NETS["logistic"]((1, 8, 8), 10))
    params, x, y = task.init(KEY), pixels(1500), keys.integers(KEY, 1500, 10)
    scores = task.score(params, Examples(x, y))  # more than one block of 1,024
    assert torch.equal(scores["accuracy"], (task.predict(params, x).argmax(1) == y).double())
    assert torch.allclose(scores["loss"], task.losses(params, x, y, keys.bits(KEY, 1500)).double(), atol=1e-6)


def test_initial_weights_are_a_function_of_the_key() -> None:
    tasks = [image_task(NETS["cnn_norm"]((1, 8, 8), 10)) for _ in range(2)]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, second = (task.init(KEY) for task in tasks)
    assert torch.equal(torch.get_rng_state(), before)  # nobody else's generator is touched
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = tasks[0].init(keys.root(9))
    assert not torch.equal(first["0.weight"], other["0.weight"])


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Linear(10, 10))
        self.net[1].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]


def test_frozen_parameters_are_no_part_of_the_state() -> None:
    assert list(image_task(Frozen()).init(KEY)) == ["net.2.weight", "net.2.bias"]


@pytest.mark.parametrize(
    ("layer", "refused"),
    [
        (nn.BatchNorm2d(1, track_running_stats=False), True),
        (nn.BatchNorm2d(1, momentum=None), True),
        (nn.SyncBatchNorm(1), True),
        (nn.InstanceNorm2d(1), False),
        (nn.GroupNorm(1, 1), False),
        (nn.LayerNorm(8), False),
    ],
)
def test_layers_whose_statistics_cannot_be_a_part_of_the_model_are_refused(layer: nn.Module, refused: bool) -> None:
    def make() -> Classification:
        return image_task(nn.Sequential(nn.Sequential(layer), nn.Flatten(), nn.Linear(64, 10)))

    if not refused:
        assert make().mixes_examples == ""
        return
    with pytest.raises(UnsoundGuarantee) as refusal:
        make()
    assert refusal.value.code == "batch-norm"


# dropout --------------------------------------------------------------------------------------------------------------


def dropping() -> Classification:
    return image_task(
        nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.Dropout2d(0.5),
            nn.Sequential(nn.ReLU(), nn.Dropout(0.3)),
            nn.Flatten(),
            nn.Linear(144, 10),
            Dropout(0.2),
        )
    )


def test_dropout_is_the_same_looped_and_stacked_and_again() -> None:
    task = dropping()
    params, x, y, draws = task.init(KEY), pixels(5), torch.arange(5), keys.bits(KEY, 5)
    torch.manual_seed(0)
    together = task.losses(params, x, y, draws)
    torch.manual_seed(1)
    alone = torch.cat([task.losses(params, x[i : i + 1], y[i : i + 1], draws[i : i + 1]) for i in range(5)])
    assert torch.allclose(together, alone, atol=1e-6)
    assert torch.equal(together, dropping().losses(params, x, y, draws))
    assert not torch.allclose(together, task.losses(params, x, y, keys.bits(keys.root(1), 5)), atol=1e-3)
    assert torch.equal(task.predict(params, x), task.predict(params, x))


def test_torch_s_own_dropouts_are_replaced_everywhere() -> None:
    net = nn.Sequential(
        nn.Dropout(0.1), nn.Sequential(nn.Dropout1d(0.2), nn.ModuleList([nn.Dropout2d(0.3), nn.Dropout3d(0.4)]))
    )
    found = keyed_dropout(net)
    assert [d.p for d in found] == [0.1, 0.2, 0.3, 0.4]
    assert [d.whole_channels for d in found] == [False, True, True, True]
    assert len({d.place for d in found}) == 4
    assert not any(isinstance(m, nn.modules.dropout._DropoutNd) for m in net.modules())


@pytest.mark.parametrize("whole", [False, True])
def test_dropout_keeps_the_mean_and_drops_the_right_share(whole: bool) -> None:
    """|z| < 6 for 20,000 coins: false alarm 2e-9."""
    layer = Dropout(0.3, whole_channels=whole).train()
    layer.keys, layer.place = keys.bits(KEY, 1000), "here"
    out = layer(torch.ones(1000, 20, 3, 3) if whole else torch.ones(1000, 20))
    if whole:
        assert torch.equal(out, out[:, :, :1, :1].expand_as(out))  # a channel lives or dies as one
        out = out[:, :, 0, 0]
    values = sorted(set(out.flatten().tolist()))
    assert values == pytest.approx([0.0, 1 / 0.7])
    dropped = float((out == 0).sum())
    assert abs(dropped - 0.3 * 20_000) < 6 * (20_000 * 0.21) ** 0.5
    layer.place = "elsewhere"
    other = layer(torch.ones(1000, 20))
    agree = float(((out == 0) == (other == 0)).double().mean())
    assert abs(agree - (0.09 + 0.49)) < 6 * (0.58 * 0.42 / 20_000) ** 0.5  # two layers toss different coins
    assert torch.equal(layer.eval()(torch.ones(2, 3)), torch.ones(2, 3))


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_a_dropout_is_a_probability_below_one(p: float) -> None:
    with pytest.raises(ConfigError) as refusal:
        Dropout(p)
    assert refusal.value.code == "dropout-out-of-range"


# models of the user ---------------------------------------------------------------------------------------------------

OWN = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.register_buffer("mix", torch.randn(64, width))
        self.gain = nn.Parameter(torch.randn(width))
        self.head = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(width, 10))
    def forward(self, x):
        return self.head(self.gain * (x.flatten(1) @ self.mix))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "own_net.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield (
        lambda **more: (
            simulated(config.validate({"model": {"name": "own_net:Net"} | more.pop("model", {}), **more})).setup
        )
    )
    sys.modules.pop("own_net", None)


def test_a_class_of_the_user_s_is_the_same_in_every_process(own: Any) -> None:
    """Also where its constructor draws buffers and bare parameters: every process builds it anew."""
    x = pixels(3)
    torch.manual_seed(0)
    first = own()
    a = first.task.predict(first.state("server").x, x)
    torch.manual_seed(1)
    again = own()
    assert torch.equal(a, again.task.predict(again.state("server").x, x))
    other = own(seed=1)
    assert not torch.equal(a, other.task.predict(other.state("server").x, x))


def test_options_reach_the_class_of_the_user(own: Any) -> None:
    for model in ({"width": 3}, {"options": {"width": 3}}):
        assert own(model=model).task.init(KEY)["gain"].shape == (3,)


# the quadratic --------------------------------------------------------------------------------------------------------


def test_the_quadratic_and_its_optimum() -> None:
    data, optimum = sources.quadratic_with_optimum(4, 3, seed=1, heterogeneity=2.0)
    task, x = Quadratic(3), torch.from_numpy(data.train.x)
    w = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    a, b = np.hsplit(data.train.x.astype(np.float64), 2)
    found = task.losses({"w": w}, x, torch.zeros(4), torch.zeros(4))
    assert np.allclose(found.numpy(), 0.5 * (a * (w.numpy() - b) ** 2).sum(1))
    best = torch.from_numpy(optimum).requires_grad_()
    (gradient,) = torch.autograd.grad(task.losses({"w": best}, x, torch.zeros(4), torch.zeros(4)).sum(), best)
    assert gradient.abs().max() < 1e-12
    assert torch.equal(task.init(KEY)["w"], torch.zeros(3, dtype=torch.float64))
    scored = task.score({"w": w}, Examples(x, torch.zeros(4).long()))
    assert torch.equal(scored["loss"], found)


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn_norm"])
def test_operations_are_counted_as_torch_counts_them(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    net = NETS[name]((1, 8, 8), 10)
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        net(torch.zeros(1, 1, 8, 8))
    task = image_task(net)
    assert task.flops == 3 * counted.get_total_flops() > 0
    assert name != "logistic" or task.flops == 3 * 2 * 64 * 10


@pytest.mark.slow
def test_counting_does_not_load_the_compiler() -> None:
    """Its import takes a second, in every process of a run."""
    code = "import sys, torch; from sordino.tasks.network import count_flops as count; net = torch.nn.Linear(3, 2); print(count(lambda: net(torch.zeros(1, 3))), 'torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["12", "False"]
