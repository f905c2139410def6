"""ResNet18 by groups, the wider small CNN and MOON's head."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sordino import keys
from sordino.errors import ConfigError, UnsoundGuarantee
from sordino.privacy.readers import check_apart
from sordino.privacy.readers.per_example_gradients import one_by_one
from sordino.tasks.architecture import build_net
from sordino.tasks.nets import NETS, Block, cnn_norm, logistic, mlp, projected, resnet18
from sordino.tasks.supervised import Classification
from sordino.types import Examples

X = (255 * keys.uniform(keys.root(1), 4 * 16 * 16 * 3)).reshape(4, 16, 16, 3).to(torch.uint8)
Y = torch.tensor([0, 1, 2, 4])
DRAWS = keys.bits(keys.root(2), 4)


def task(net: nn.Module) -> Classification:
    return Classification(net, name="resnet18", shape=(16, 16, 3), mean=(0.5,) * 3, std=(0.25,) * 3, image=True)


def tiny() -> nn.Sequential:
    return resnet18((3, 16, 16), 5, groups=4, width=8)


@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("classes", "size"), [(10, 11_173_962), (20, 11_179_092), (100, 11_220_132), (200, 11_271_432)]
)
def test_published_sizes(classes: int, size: int) -> None:
    with torch.device("meta"):
        net = NETS["resnet18"]((3, 32, 32), classes)
    assert sum(p.numel() for p in net.parameters()) == size
    features = nn.Sequential(*list(net.children())[:-1])(torch.zeros(2, 3, 32, 32, device="meta"))
    assert features.shape == (2, 512)


def test_strides_and_norms() -> None:
    with torch.device("meta"):
        net = resnet18((3, 32, 32), 10)
        x = torch.zeros(1, 3, 32, 32, device="meta")
    sides = []
    for module in net:
        x = module(x)
        sides += [tuple(x.shape[1:3])] if isinstance(module, Block) else []
    assert sides == [(64, 32)] * 2 + [(128, 16)] * 2 + [(256, 8)] * 2 + [(512, 4)] * 2
    assert {m.num_groups for m in net.modules() if isinstance(m, nn.GroupNorm)} == {32}
    assert not any(isinstance(m, nn.GroupNorm) for m in resnet18((1, 16, 16), 3, norm="none", width=4).modules())


def test_the_task_trains_it() -> None:
    learned = task(tiny())
    params = learned.init(keys.root(3))
    ready = learned.ready(X, Y)
    found = learned.gradient(params, *ready, lambda: DRAWS)
    leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
    wanted = torch.autograd.grad(learned.losses(leaves, X, Y, DRAWS).mean(), list(leaves.values()))
    for (name, g), w in zip(found.items(), wanted, strict=True):
        assert torch.allclose(g, w, rtol=1e-3, atol=1e-6), name
        assert float(g.abs().max()) > 0, name  # every layer is reached
    before = float(learned.losses(params, X, Y, DRAWS).mean().detach())
    for _ in range(5):
        step = learned.gradient(params, *ready, lambda: DRAWS)
        params = {name: p - 0.05 * step[name] for name, p in params.items()}
    assert float(learned.losses(params, X, Y, DRAWS).mean().detach()) < before
    z = learned.features(params, X)
    assert z.shape == (4, 64)
    assert torch.allclose(learned.head(params, z), learned.predict(params, X), atol=1e-6)


@pytest.mark.slow
def test_examples_do_not_mix() -> None:
    learned = task(tiny())
    params = learned.init(keys.root(3))
    alone = torch.cat([learned.predict(params, X[i : i + 1]) for i in range(4)])
    assert torch.allclose(learned.predict(params, X), alone, atol=1e-5)
    batch = Examples(X, Y)
    clipped = learned.clipped_sum(learned.losses, params, batch, DRAWS, 0.5, 2)
    slow = one_by_one(learned.losses, params, batch, DRAWS, 0.5, 2)
    assert all(torch.allclose(clipped[k], slow[k], rtol=1e-3, atol=1e-5) for k in slow)


def test_batch_norm_is_an_option_with_statistics_in_the_model() -> None:
    net = build_net("resnet18", (3, 32, 32), 10, {"norm": "batch", "width": 4})
    learned = task(net)
    assert learned.mixes_examples == "BatchNorm2d"
    assert len(learned.statistics) == 2 * 20  # of as many layers as with groups
    with pytest.raises(UnsoundGuarantee) as refused:
        check_apart(learned)
    assert refused.value.code == "batch-norm"
    with pytest.raises(ConfigError) as other:
        build_net("resnet18", (3, 32, 32), 10, {"norm": "layer"})
    assert other.value.code == "resnet-norm"


def test_width_of_the_small_cnn() -> None:
    shapes = [tuple(p.shape) for p in cnn_norm((3, 32, 32), 10).parameters() if p.dim() == 4]
    assert shapes == [(16, 3, 3, 3), (32, 16, 3, 3), (64, 32, 3, 3)]  # as it was before it had a width
    shapes = [tuple(p.shape) for p in cnn_norm((3, 32, 32), 10, width=32).parameters() if p.dim() != 1]
    assert shapes == [(32, 3, 3, 3), (64, 32, 3, 3), (128, 64, 3, 3), (10, 128)]


def test_projection_head() -> None:
    net = tiny()
    more = projected(net, 7)
    assert list(more)[: len(net) - 1] == list(net)[:-1]
    assert [tuple(m.weight.shape) for m in list(more)[-4:] if isinstance(m, nn.Linear)] == [(64, 64), (7, 64), (5, 7)]
    learned = task(more)
    params = learned.init(keys.root(3))
    assert learned.features(params, X).shape == (4, 7)  # what MOON contrasts
    with torch.device("meta"):
        full = resnet18((3, 32, 32), 10)
        sizes = [sum(p.numel() for p in n.parameters()) for n in (full, projected(full))]
    assert sizes[1] - sizes[0] == 512 * 512 + 512 + 512 * 256 + 256 + 256 * 10 - 512 * 10


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp((4,), 2)


@pytest.mark.parametrize("net", [nn.Sequential(), nn.Sequential(nn.Linear(3, 2), nn.ReLU()), Wrapped()])
def test_no_place_for_a_projection(net: nn.Sequential) -> None:
    with pytest.raises(ConfigError) as refused:
        projected(net)
    assert refused.value.code == "no-place-for-projection"
    assert len(projected(logistic((4,), 2))) == 5
