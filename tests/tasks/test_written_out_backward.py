"""The written-out backward pass: what autograd finds, for any chain of the layers it knows, and nothing for the others."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sordino import keys, tree
from sordino.fast.factored import Product
from sordino.privacy.readers.per_example_gradients import slow_sum
from sordino.tasks import written_out_backward
from sordino.tasks.nets import Dropout, MeanPool
from sordino.tasks.supervised import Classification
from sordino.tasks.written_out_backward import Chain, Linear, MaxPool
from sordino.types import Examples, Params

CLASSES, SIDE = 4, 12


def images(draw: st.DrawFn) -> tuple[nn.Sequential, int]:
    """Convolutions, norms, poolings and dropouts in any order that fits, then linear layers."""
    layers: list[nn.Module] = []
    given_channels = channels = draw(st.sampled_from([1, 3]))
    side = SIDE
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["conv", "norm", "relu", "pool", "drop"]))
        if kind == "conv" and side >= 4:
            wide, kernel, pad = draw(st.sampled_from([2, 4])), draw(st.sampled_from([1, 3])), draw(st.integers(0, 1))
            stride = draw(st.integers(1, 2))
            layers.append(nn.Conv2d(channels, wide, kernel, stride, pad, bias=draw(st.booleans())))
            channels, side = wide, (side + 2 * pad - kernel) // stride + 1
        elif kind == "norm":
            layers.append(nn.GroupNorm(1, channels))
        elif kind == "relu":
            layers.append(nn.ReLU(inplace=draw(st.booleans())))
        elif kind == "pool" and side >= 4:
            layers.append(nn.MaxPool2d(2))
            side //= 2
        elif kind == "drop":
            layers.append(Dropout(0.4, whole_channels=draw(st.booleans())))
    if draw(st.booleans()):
        layers.append(MeanPool())
        features = channels
    else:
        layers.append(nn.Flatten())
        features = channels * side * side
    for _ in range(draw(st.integers(0, 2))):
        layers += [nn.Linear(features, 5, bias=draw(st.booleans())), nn.ReLU()]
        features = 5
    return nn.Sequential(*layers, nn.Linear(features, CLASSES)), given_channels


nets = st.composite(images)()


def task_of(net: nn.Module, channels: int, precision: torch.dtype = torch.float32) -> Classification:
    return Classification(
        net, name="drawn", shape=(SIDE, SIDE, channels), mean=(0.4,) * channels, std=(0.3,) * channels, image=True, precision=precision
    )  # fmt: skip


def batch_of(task: Classification, n: int, channels: int, seed: int = 3) -> tuple[Params, Tensor, Tensor, Tensor]:
    pixels = (256 * keys.uniform(keys.root(seed), n * SIDE * SIDE * channels)).to(torch.uint8)
    params = {name: value.double() for name, value in task.init(keys.root(5)).items()}
    return (
        params,
        pixels.reshape(n, SIDE, SIDE, channels),
        keys.integers(keys.root(seed + 1), n, CLASSES),
        keys.bits(keys.root(9), n),
    )


def ready(task: Classification, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """In float64, where the two ways may differ by rounding alone."""
    if task._chain is None:
        return task._scaled(x, torch.float64), y
    return task._scaled(x, torch.float64), task._target(y, torch.float64)


def by_autograd(task: Classification, params: Params, x: Tensor, y: Tensor, draws: Tensor) -> Params:
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    return dict(
        zip(leaves, torch.autograd.grad(task.losses(leaves, x, y, draws).mean(), list(leaves.values())), strict=True)
    )


def close(a: Params, b: Params, tolerance: float) -> bool:
    size = float(tree.norm(b))
    return all(float((a[k] - b[k]).norm()) <= tolerance * (size + 1e-12) for k in b)


def test_a_linear_layer_at_many_positions() -> None:
    net = nn.Sequential(
        nn.Linear(SIDE, 3), nn.ReLU(), nn.Linear(3, 2, bias=False), nn.Flatten(), nn.Linear(2 * SIDE, CLASSES)
    )
    task = task_of(net, 1)
    assert task._chain is not None
    params, x, y, draws = batch_of(task, 4, 1)
    found = task.gradient(params, *ready(task, x, y), lambda: draws)
    assert close(
        {k: g.dense() if isinstance(g, Product) else g for k, g in found.items()},
        by_autograd(task, params, x, y, draws),
        1e-9,
    )


def pooled(x: Tensor, g: Tensor) -> tuple[bool, Tensor, Tensor]:
    """Was it done by halves; what comes out, and the gradient at the input."""
    link = MaxPool("pool", nn.MaxPool2d(2))
    out, kept = link.forward({}, x, None)
    return link._by_halves(x), out, link.backward({}, kept, g, True)


@pytest.mark.parametrize("shape", [(3, 4, 6, 8), (1, 1, 2, 2), (5, 16, 12, 12)])
def test_a_pooling_by_halves_is_the_kernel_s_to_the_bit(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x = torch.randint(-2, 3, shape).bfloat16().contiguous(memory_format=torch.channels_last)  # many are equal
    g = torch.randn(*shape[:2], shape[2] // 2, shape[3] // 2).bfloat16()
    mine = pooled(x, g)
    monkeypatch.setattr(MaxPool, "_by_halves", lambda *_: False)
    theirs = pooled(x, g)
    assert mine[0]
    assert not theirs[0]
    assert torch.equal(mine[1], theirs[1])
    assert torch.equal(mine[2], theirs[2])


def test_a_pooling_that_gives_to_the_second_of_two_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def swapped(g: Tensor, a: Tensor, b: Tensor, at_a: Tensor, at_b: Tensor) -> None:
        whole(g, b, a, at_b, at_a)

    whole = written_out_backward._to_the_larger
    monkeypatch.setattr(written_out_backward, "_to_the_larger", swapped)
    with pytest.raises(AssertionError):
        test_a_pooling_by_halves_is_the_kernel_s_to_the_bit((3, 4, 6, 8), monkeypatch)


@pytest.mark.parametrize(("shape", "kernel"), [((2, 3, 5, 6), 2), ((2, 3, 6, 6), 3)])
def test_a_pooling_with_a_rest_or_of_another_size_goes_to_the_kernel(shape: tuple[int, ...], kernel: int) -> None:
    x = torch.zeros(shape).bfloat16().contiguous(memory_format=torch.channels_last)
    assert not MaxPool("pool", nn.MaxPool2d(kernel))._by_halves(x)


@settings(deadline=None, derandomize=True, max_examples=15)
@given(nets, st.integers(1, 5))
def test_it_finds_what_autograd_finds(drawn: tuple[nn.Sequential, int], n: int) -> None:
    net, channels = drawn
    task = task_of(net, channels)
    assert task._chain is not None
    params, x, y, draws = batch_of(task, n, channels)
    found = task.gradient(params, *ready(task, x, y), lambda: draws)
    assert list(found) == list(params)
    wanted = by_autograd(task, params, x, y, draws)
    assert close({k: g.dense() if isinstance(g, Product) else g for k, g in found.items()}, wanted, 1e-9)
    # and the clipped sums come from the same two sides of every layer
    batch = Examples(x, y)
    for order in (1, 2):
        assert close(
            task.clipped_sum(task.losses, params, batch, draws, 0.3, order),
            slow_sum(task.losses, params, batch, draws, 0.3, order),
            1e-5,
        )


def test_a_wrong_link_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken twin: a linear layer that forgets its bias gradient's last row."""
    whole = Linear.weights

    def lazy(self: Linear, p: Params, kept: Tensor, g: Tensor, deeper: bool) -> tuple[Tensor, dict[str, Tensor]]:
        back, found = whole(self, p, kept, g, deeper)
        return back, found | ({self.bias: g[:-1].sum(0)} if self.bias else {})

    task = task_of(nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, CLASSES)), 1)
    params, x, y, draws = batch_of(task, 4, 1)
    wanted = by_autograd(task, params, x, y, draws)
    assert close(task.gradient(params, *ready(task, x, y), lambda: draws), wanted, 1e-9)
    monkeypatch.setattr(Linear, "weights", lazy)
    assert not close(task.gradient(params, *ready(task, x, y), lambda: draws), wanted, 1e-9)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(SIDE * SIDE, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x.flatten(1)).tanh()
        return out


def hooked() -> nn.Module:
    """A layer whose output somebody doubles on its way."""
    layer = nn.Linear(SIDE * SIDE, CLASSES)
    layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), nn.Linear(CLASSES, CLASSES))


tied = nn.Linear(CLASSES, CLASSES)
OTHERS: dict[str, nn.Module] = {
    "not a chain": Residual(),
    "an unknown layer": nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, CLASSES), nn.Tanh()),
    "a shared layer": nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, CLASSES), tied, nn.ReLU(), tied),
    "logits of a pooling": nn.Sequential(nn.Conv2d(1, CLASSES, 3), MeanPool()),
    "a hook": hooked(),
    "groups": nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3, groups=2), MeanPool(), nn.Linear(2, CLASSES)),
    "padding that reflects": nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), MeanPool(), nn.Linear(2, CLASSES)
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_take_the_general_way_to_the_same_gradient(name: str) -> None:
    net = OTHERS[name]
    assert Chain.of(net, (SIDE, SIDE, 1)) is None
    task = task_of(net, 1)
    params, x, y, draws = batch_of(task, 3, 1)
    assert close(
        task.gradient(params, *ready(task, x, y), lambda: draws),
        by_autograd(task, params, x, y, draws),
        1e-9,
    )


def test_bf16_is_rounding_and_stays_out_of_what_is_private() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 25, CLASSES))
    low, full = (task_of(copy.deepcopy(net), 3, precision) for precision in (torch.bfloat16, torch.float32))
    assert (low.precision, full.precision) == (torch.bfloat16, torch.float32)
    params, x, y, draws = batch_of(full, 40, 3)
    params = {k: v.float() for k, v in params.items()}
    rough, fine = (t.gradient(params, *t.ready(x, y), lambda: draws) for t in (low, full))
    dense = {k: g.dense() if isinstance(g, Product) else g for k, g in fine.items()}
    assert all(g.dtype == torch.float32 for g in rough.values())
    assert close(rough, dense, 5e-2)
    assert not close(rough, dense, 1e-5)  # control: it was bf16 that computed it
    clipped = (t.clipped_sum(t.losses, params, Examples(x, y), draws, 0.3, 2) for t in (low, full))
    assert all(torch.equal(a, b) for a, b in zip(*(tree.leaves(c) for c in clipped), strict=True))


def test_relu_and_pooling_trade_places() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2 * 25, CLASSES))
    chain = Chain.of(net, (SIDE, SIDE, 1))
    assert chain is not None
    assert [type(link).__name__ for link in chain.links] == ["Conv", "MaxPool", "Relu", "Flatten", "Linear"]
    x = torch.randn(3, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    params = dict(net.named_parameters())
    with torch.no_grad():
        logits, _ = chain.forward({k: v.detach() for k, v in params.items()}, x, None)
    assert torch.equal(logits, net(x).detach())
    assert float(F.cross_entropy(logits, torch.tensor([0, 1, 2]))) > 0


def test_a_network_whose_links_may_meet_other_examples_is_no_chain() -> None:
    """A convolution takes planes [n, h, w] for the n channels of one image; and a layer's own forward can be
    anything."""

    def net() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Flatten(), nn.Linear(16, CLASSES))

    planes = torch.zeros(2, 4, 4)
    other = planes.clone()
    other[1] = 1.0
    assert not torch.equal(net()(planes)[0], net()(other)[0])  # it does couple them
    assert Chain.of(net(), (4, 4, 2)) is not None
    assert Chain.of(net(), (4, 4)) is None
    own = net()
    own[1].forward = lambda x: x.flatten(1) - x.flatten(1).mean(0)  # type: ignore[method-assign]
    assert Chain.of(own, (4, 4, 2)) is None
