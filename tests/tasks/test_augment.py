"""Training images, cut and mirrored: the same in every way a gradient is taken, never in evaluation, and a function of
one key per image.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sordino import config, keys, tree
from sordino.errors import ConfigError
from sordino.fast.factored import Part, dense
from sordino.privacy.readers.noisy_gradient import NoisyGradient, NoisyShard
from sordino.privacy.readers.per_example_gradients import one_by_one, slow_sum
from sordino.runs.simulation import simulated
from sordino.tasks.augment import PAD, crop_flip
from sordino.tasks.nets import NETS
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Grant, LocalWork, Params
from tests.privacy.doubles import Coupled

CLASSES, SIDE, N = 4, 16, 5
DRAWS = keys.bits(keys.root(9), N)
NETWORKS = ["mlp", "cnn", "cnn_norm", "own"]


class Own(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Linear(channels * SIDE * SIDE, 7)
        self.head = nn.Linear(7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.tanh(self.body(x.view(len(x), -1))))
        return out


def task_of(name: str, channels: int = 3, augment: str = "crop_flip", **more: Any) -> Classification:
    net = Own(channels) if name == "own" else NETS[name]((channels, SIDE, SIDE), CLASSES)
    middle = (0.4,) * channels
    return Classification(
        net, name=name, shape=(SIDE, SIDE, channels), mean=middle, std=middle, image=True, augment=augment, **more
    )


def batch(channels: int = 3, n: int = N) -> Examples:
    pixels = keys.integers(keys.root(3), n * SIDE * SIDE * channels, 256).to(torch.uint8)
    return Examples(pixels.reshape(n, SIDE, SIDE, channels), torch.arange(n) % CLASSES)


def close(a: Params, b: Params, tolerance: float = 1e-5) -> bool:
    size = float(tree.norm(b))
    return all(float((dense(a[k]) - b[k]).norm()) <= tolerance * size for k in b)


# one image ------------------------------------------------------------------------------------------------------------


def by_hand(image: Tensor) -> list[Tensor]:
    """All 162 windows of one image [c, h, w], mirrored or not."""
    c, h, w = image.shape
    whole = torch.zeros(c, h + 2 * PAD, w + 2 * PAD)
    whole[:, PAD : PAD + h, PAD : PAD + w] = image
    windows = [whole[:, i : i + h, j : j + w] for i in range(2 * PAD + 1) for j in range(2 * PAD + 1)]
    return [*windows, *(window.flip(2) for window in windows)]


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 5, 9)])
def test_every_image_is_one_of_its_windows_and_all_of_them_occur(shape: tuple[int, int, int]) -> None:
    image = 1 + torch.rand(shape, generator=torch.Generator().manual_seed(1))
    known = {window.numpy().tobytes(): k for k, window in enumerate(by_hand(image))}
    n = 4000
    x = image.expand(n, *shape).permute(0, 2, 3, 1).contiguous().movedim(-1, 1)
    found = crop_flip(x, keys.bits(keys.root(2), n))
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    assert found.is_contiguous(memory_format=torch.channels_last)
    which = torch.tensor([known[one.contiguous().numpy().tobytes()] for one in found])  # KeyError: no window of it
    counts = torch.bincount(which, minlength=162)
    # uniform: chi-square of 161 degrees of freedom, mean 161, deviation 18; below 270 but for 1e-6. Control: no mirror
    # doubles half of the cells.
    assert float(((counts - n / 162) ** 2 / (n / 162)).sum()) < 270
    control = torch.bincount(which % 81, minlength=162)
    assert float(((control - n / 162) ** 2 / (n / 162)).sum()) > 270


def test_an_image_does_not_depend_on_its_neighbours() -> None:
    x = torch.rand(N, 8, 8, 3, generator=torch.Generator().manual_seed(1)).movedim(-1, 1)
    together = crop_flip(x, DRAWS)
    for i in (0, 3):
        assert torch.equal(crop_flip(x[i : i + 1], DRAWS[i : i + 1])[0], together[i])
    assert torch.equal(crop_flip(x.bfloat16(), DRAWS), together.bfloat16())
    stacked = torch.vmap(crop_flip)(x[:4].reshape(2, 2, 3, 8, 8), DRAWS[:4].reshape(2, 2))
    assert torch.equal(stacked.flatten(0, 1), together[:4])
    assert not torch.equal(crop_flip(x, DRAWS + 1), together)


# gradients ------------------------------------------------------------------------------------------------------------


@pytest.mark.one_fast
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_way_to_a_gradient_sees_the_same_images(name: str, channels: int) -> None:
    task, plain, (x, y) = task_of(name, channels), task_of(name, channels, "none"), batch(channels)
    params = task.init(keys.root(5))
    asked = []

    def draws() -> Tensor:
        asked.append(1)
        return DRAWS

    leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
    wanted = dict(
        zip(leaves, torch.autograd.grad(task.losses(leaves, x, y, DRAWS).mean(), list(leaves.values())), strict=True)
    )
    found = {k: dense(g).clone() for k, g in task.gradient(params, *task.ready(x, y, whole=True), draws).items()}
    assert len(asked) == 1
    assert close(found, wanted)
    # a batch cut from what was made ready earlier
    ready = task.ready(x, y, whole=True)
    part = task.gradient(params, ready[0][1:3], ready[1][1:3], lambda: DRAWS[1:3])
    leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
    half = dict(
        zip(
            leaves,
            torch.autograd.grad(task.losses(leaves, x[1:3], y[1:3], DRAWS[1:3]).mean(), list(leaves.values())),
            strict=True,
        )
    )
    assert close({k: dense(g) for k, g in part.items()}, half)
    # control: the images were changed, and differently by other keys
    assert not torch.allclose(task.losses(params, x, y, DRAWS), plain.losses(params, x, y, DRAWS))
    assert not torch.allclose(task.losses(params, x, y, DRAWS), task.losses(params, x, y, DRAWS + 1))


@pytest.mark.one_fast
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_clipped_sums_agree_on_both_paths(name: str, order: int) -> None:
    task, rows = task_of(name), batch()
    params = task.init(keys.root(5))
    fast = task.clipped_sum(task.losses, params, rows, DRAWS, 0.3, order)
    slow, single = (way(task.losses, params, rows, DRAWS, 0.3, order) for way in (slow_sum, one_by_one))
    assert close(fast, slow)
    assert close(fast, single)
    plain = task_of(name, augment="none")
    assert not close(plain.clipped_sum(plain.losses, params, rows, DRAWS, 0.3, order), slow)


def test_a_fast_path_that_forgets_to_augment_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken twin."""
    task, rows = task_of("cnn_norm"), batch()
    params = task.init(keys.root(5))
    slow = slow_sum(task.losses, params, rows, DRAWS, 0.3, 2)
    whole = Classification._seen
    monkeypatch.setattr(
        task, "_inputs", lambda x, p, draws=None: whole(task, x, p["0.weight"].dtype, draws).contiguous()
    )
    monkeypatch.setattr(task, "_seen", lambda x, dtype, draws: task._scaled(x, dtype))
    broken = task.clipped_sum(task.losses, params, rows, DRAWS, 0.3, 2)
    assert not close(broken, slow)


def test_features_are_augmented_with_keys_only() -> None:
    task, plain, (x, _) = task_of("cnn_wide"), task_of("cnn_wide", augment="none"), batch()
    params = task.init(keys.root(5))
    assert torch.equal(task.features(params, x), plain.features(params, x))
    z = task.features(params, x, DRAWS)
    assert not torch.allclose(z, plain.features(params, x, DRAWS))
    logits = task.head(params, z)
    losses = nn.functional.cross_entropy(logits, batch().y, reduction="none")
    assert torch.allclose(losses, task.losses(params, x, batch().y, DRAWS), atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_evaluation_sees_the_images_as_they_are(name: str) -> None:
    task, plain, rows = task_of(name), task_of(name, augment="none"), batch()
    params = task.init(keys.root(5))
    assert torch.equal(task.predict(params, rows.x), plain.predict(params, rows.x))
    ours, theirs = task.score(params, rows), plain.score(params, rows)
    assert all(torch.equal(ours[k], theirs[k]) for k in theirs)


def test_shortcuts_for_rows_that_stay_the_same_are_not_taken() -> None:
    rows, plain = batch(n=2), task_of("mlp", augment="none")
    task = task_of("mlp")
    assert isinstance(plain.ready(*rows, whole=True)[0][:1], Part)
    assert isinstance(task.ready(*rows, whole=True)[0], Tensor)
    assert plain.room > 0
    assert task.room == 0


# experiments ----------------------------------------------------------------------------------------------------------

BASE = ["algorithm=fedavg", "algorithm.lr=0.1", "partition={scheme='iid', clients=4}", "data.augment=crop_flip"]


def test_the_experiment_file_says_whether() -> None:
    on, off = (
        simulated(config.load({}, [*BASE[:3], f"data.augment={said}"])).setup.task for said in ("crop_flip", "none")
    )
    assert isinstance(on, Classification)
    x = torch.arange(64, dtype=torch.uint8).reshape(1, 8, 8, 1).repeat(8, 1, 1, 1)
    params, y, draws = on.init(1), torch.zeros(8, dtype=torch.long), keys.bits(1, 8)
    assert len(set(on.losses(params, x, y, draws).tolist())) > 1
    assert len(set(off.losses(params, x, y, draws).tolist())) == 1
    with pytest.raises(ConfigError):
        config.load({}, ["data.augment=rotate"])


@pytest.mark.parametrize("source", ["synthetic", "quadratic"])
def test_only_images_can_be_augmented(source: str) -> None:
    data = f"data={{source='{source}', augment='crop_flip'}}"
    with pytest.raises(ConfigError) as refused:
        _ = simulated(config.load({}, ["algorithm=fedavg", "partition={scheme='natural'}", data])).setup.task
    assert refused.value.code == "setting-of-another-source"


# under noise ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["full", "poisson"])
def test_a_missing_image_moves_the_sum_by_one_clip_at_most(sampling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One image fewer must not cut its neighbours differently; keys counted by place do so, and move the sum further
    than noise was sized for.
    """
    task, whole = task_of("mlp"), batch(n=20)
    params, fewer = task.init(keys.root(1)), Examples(whole.x[1:], whole.y[1:])
    reader = NoisyGradient(0.01, sampling=sampling, rate=1.0, neighbours="zero_out", multiplier=1.0)

    def total(examples: Examples) -> Params:
        shard = reader.open(examples, Grant(0, 20, 20, Coupled(0.0), 1.0), task)
        (one,) = shard.batches(LocalWork(None, 1, None), keys.root(2))
        return {name: 20 * dense(g) for name, g in one.grad(task.losses, params).items()}

    def moved() -> float:
        return float(tree.norm(tree.sub(total(whole), total(fewer))))

    assert 0 < moved() <= 0.01 * (1 + 1e-4)
    monkeypatch.setattr(NoisyShard, "_draws", lambda self, step, count, key: keys.bits(key, count))
    assert moved() > 0.015  # the broken twin
