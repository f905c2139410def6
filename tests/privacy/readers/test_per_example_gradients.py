"""Sums of clipped per-example gradients: the layer rules, torch.func, and a loop that takes one example at a time must
agree.

The loop is the definition: backward for each example alone, its norm over all parameters, the clip, the sum. It shares
nothing with the package but the slack by which a clip stays below its bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sordino import keys
from sordino.privacy.readers.layer_gradients import Positions
from sordino.privacy.readers.per_example_gradients import covered, fast_sum, slow_sum
from sordino.privacy.uplink.stages import SLACK
from sordino.tasks.nets import Dropout
from sordino.tasks.quadratic import Quadratic
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Params

CLASSES = 3
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
SHAPE = (2, 6, 6)
quick = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def task_of(net: nn.Module, shape: tuple[int, ...] = SHAPE) -> Classification:
    return Classification(net, name="net", shape=shape, mean=(0.0,), std=(1.0,), image=False)


def rows(n: int, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> Examples:
    key = keys.root(seed)
    x = keys.normal(keys.fold(key, "x"), n * torch.Size(shape).numel()).reshape(n, *shape)
    return Examples(x, keys.integers(keys.fold(key, "y"), n, CLASSES))


def weights(task: Classification, dtype: torch.dtype, seed: int = 0) -> Params:
    return {name: value.to(dtype) for name, value in task.init(keys.fold(keys.root(seed), "weights")).items()}


def one_by_one(task: Any, params: Params, batch: Examples, draws: Tensor, clip: float, order: int) -> Params:
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    for i in range(len(batch.y)):
        leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
        loss = task.losses(leaves, batch.x[i : i + 1], batch.y[i : i + 1], draws[i : i + 1]).sum()
        grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        flat = torch.cat([g.double().reshape(-1) for g in grads if g is not None])
        norm = float(flat.abs().sum() if order == 1 else flat.square().sum().sqrt())
        if not norm < float("inf"):
            continue
        factor = min(1.0, clip / (norm * SLACK)) if norm else 1.0
        for name, g in zip(leaves, grads, strict=True):
            if g is not None:
                total[name] += factor * g
    return total


def close(a: Params, b: Params, tolerance: float) -> bool:
    scale = max(1.0, max(float(value.abs().max()) for value in b.values()))
    return all(torch.allclose(a[name], b[name], rtol=0, atol=tolerance * scale) for name in b)


def agree(task: Any, params: Params, batch: Examples, clip: float, order: int) -> None:
    draws = keys.bits(keys.root(9), len(batch.y))
    tolerance = TOLERANCE[next(iter(params.values())).dtype]
    expected = one_by_one(task, params, batch, draws, clip, order)
    slow = slow_sum(task.losses, params, batch, draws, clip, order)
    assert close(slow, expected, tolerance)
    fast = fast_sum(task._recorder, task.losses, params, batch, draws, clip, order)
    assert fast is not None
    assert list(fast) == list(params)
    assert close(fast, expected, tolerance)
    assert close(task.clipped_sum(task.losses, params, batch, draws, clip, order), expected, tolerance)


# random architectures -------------------------------------------------------------------------------------------------


@st.composite
def nets(draw: Callable[..., Any]) -> nn.Module:
    """Convolutions with strides, paddings, dilations; GroupNorm, pooling, dropout; then linear layers."""
    layers: list[nn.Module] = []
    channels, side = SHAPE[0], SHAPE[1]
    for _ in range(draw(st.integers(0, 2))):
        out, kernel = draw(st.sampled_from([2, 4])), draw(st.integers(1, 3))
        stride, padding, dilation = draw(st.integers(1, 2)), draw(st.integers(0, 2)), draw(st.integers(1, 2))
        side = (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        assume(side >= 1)
        layers.append(nn.Conv2d(channels, out, kernel, stride, padding, dilation, bias=draw(st.booleans())))
        channels = out
        if draw(st.booleans()):
            layers.append(nn.GroupNorm(draw(st.sampled_from([1, 2])), channels))
        layers.append(nn.ReLU(inplace=draw(st.booleans())))
        if side >= 2 and draw(st.booleans()):
            layers.append(nn.MaxPool2d(2))
            side //= 2
        if draw(st.booleans()):
            layers.append(Dropout(0.4, whole_channels=draw(st.booleans())))
    layers.append(nn.Flatten())
    width = channels * side * side
    for _ in range(draw(st.integers(0, 1))):
        layers += [nn.Linear(width, 5, bias=draw(st.booleans())), nn.ReLU(), Dropout(0.3)]
        width = 5
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


@settings(quick, max_examples=20)
@given(
    nets(),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from([1, 2]),
    st.sampled_from([1e-3, 0.3, 2.0, 1e6]),
    st.integers(0, 5),
)
def test_all_ways_agree(net: nn.Module, dtype: torch.dtype, order: int, clip: float, seed: int) -> None:
    task = task_of(net)
    agree(task, weights(task, dtype, seed), rows(3, seed=seed), clip, order)


@pytest.mark.parametrize("order", [1, 2])
def test_a_linear_layer_at_many_positions(order: int) -> None:
    """Linear on [n, t, features], few and many positions: both ways of forming the gradient."""
    for t, few in ((2, True), (12, False)):
        assert (Positions(torch.ones(1, 12, t), torch.ones(1, 9, t), torch.Size((9, 12)), True).each is None) == few
        task = task_of(nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Flatten(), nn.Linear(9 * t, CLASSES)), (t, 12))
        agree(task, weights(task, torch.float64), rows(4, (t, 12)), 0.5, order)


class Words(nn.Module):
    """Looks up the signs and sizes of numbers as if they were words, the same one several times in an example."""

    def __init__(self, padding: int | None) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(4, 6, padding_idx=padding), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        index = ((x.flatten(1) > 0).long() + 2 * (x.flatten(1).abs() > 1).long()).detach()
        return self.mix(torch.tanh(self.words(index)).mean(1))  # type: ignore[no-any-return]


@pytest.mark.one_fast
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("clip", [1e-3, 0.05, 10.0])
def test_a_table_of_words(order: int, padding: int | None, clip: float) -> None:
    shape = (7,)
    task = task_of(Words(padding), shape)
    assert task._recorder.supported
    for dtype in TOLERANCE:
        agree(task, weights(task, dtype), rows(5, shape), clip, order)


def test_tables_that_change_themselves_are_not_covered() -> None:
    for options in ({"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}):
        assert not covered(nn.Embedding(4, 6, **options))
    assert covered(nn.Embedding(4, 6))


def test_a_wide_convolution_forms_no_gradient_per_example() -> None:
    """It would be larger than inputs and outputs: the norm comes from two Gram matrices instead."""
    net = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES))
    task = task_of(net, (8, 4, 4))
    for order in (1, 2):
        agree(task, weights(task, torch.float64), rows(4, (8, 4, 4)), 0.5, order)


# what the rules do not cover ------------------------------------------------------------------------------------------


class Twice(nn.Module):
    """One layer used at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(torch.tanh(self.inner(x)))))  # type: ignore[no-any-return]


class Tied(nn.Module):
    """Two layers, one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.outer = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.second(torch.tanh(self.first(x)))))  # type: ignore[no-any-return]


class Loose(nn.Module):
    """A parameter that no layer owns."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.outer = nn.Parameter(torch.full((4,), 0.7)), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.scale * x)  # type: ignore[no-any-return]


class Borrowed(nn.Module):
    """A layer whose weight is also read past the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(x)) @ self.inner.weight)  # type: ignore[no-any-return]


class InPlace(nn.Module):
    """An operation that overwrites a layer's output: the rules move it first, so what they remember stays."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.nn.functional.elu_(self.inner(x)))  # type: ignore[no-any-return]


class Frozen(nn.Module):
    """A layer of which one parameter is not trained: it must not count in the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, CLASSES)
        self.inner.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(x)))  # type: ignore[no-any-return]


class Skipped(nn.Module):
    """A layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.outer = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("net", [Twice, Tied, Loose, Borrowed, Frozen, Skipped])
def test_what_the_rules_do_not_cover_takes_the_slow_path(net: type[nn.Module], order: int) -> None:
    task = task_of(net().double(), (4,))
    params, batch = weights(task, torch.float64), rows(5, (4,))
    draws = keys.bits(keys.root(9), 5)
    assert not (task._recorder.supported and task._rules_hold(task.losses, params))
    expected = one_by_one(task, params, batch, draws, 0.05, order)
    assert close(task.clipped_sum(task.losses, params, batch, draws, 0.05, order), expected, 1e-9)


def test_the_rules_hold_for_what_they_cover() -> None:
    """Negative control of the test above: the trial is passed where it should be."""
    for net in (nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, CLASSES)), InPlace()):
        task = task_of(net, (4,))
        assert task._rules_hold(task.losses, weights(task, torch.float32))
        agree(task, weights(task, torch.float64), rows(5, (4,)), 0.05, 2)


def test_grouped_and_padded_otherwise_convolutions_are_not_covered() -> None:
    for conv in (
        nn.Conv2d(2, 4, 3, groups=2),
        nn.Conv2d(2, 4, 3, padding="same"),
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"),
    ):
        net = nn.Sequential(conv, nn.Flatten(), nn.LazyLinear(CLASSES))
        _ = net(torch.zeros(1, *SHAPE))
        task = task_of(net)
        assert not task._recorder.supported
        params, batch, draws = weights(task, torch.float64), rows(3), keys.bits(keys.root(9), 3)
        expected = one_by_one(task, params, batch, draws, 0.3, 2)
        assert close(task.clipped_sum(task.losses, params, batch, draws, 0.3, 2), expected, 1e-9)


# extreme examples -----------------------------------------------------------------------------------------------------

small: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(72, CLASSES)), SHAPE),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES)),
        SHAPE,
    ),
    "wide": (lambda: nn.Sequential(nn.Conv2d(2, 16, 6), nn.Flatten(), nn.Linear(16, CLASSES)), SHAPE),
    "slow": (Twice, (4,)),
}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30])
@pytest.mark.parametrize("name", small)
def test_a_bad_example_contributes_zero_and_touches_nobody(name: str, bad: float, order: int) -> None:
    """The sum over the others, to the rounding of one more term; a row of 1e30 may count, but never above the clip."""
    make, shape = small[name]
    task = task_of(make(), shape)
    params, batch = weights(task, torch.float32), rows(4, shape)
    draws = keys.bits(keys.root(9), 4)

    def total(*which: int) -> Params:
        chosen = list(which)
        return task.clipped_sum(
            task.losses, params, Examples(batch.x[chosen], batch.y[chosen]), draws[chosen], 0.3, order
        )

    alone = total(0, 1, 3)
    batch.x[2].reshape(-1)[1] = bad
    beside = total(0, 1, 2, 3)
    assert all(torch.isfinite(value).all() for value in beside.values())
    difference = torch.cat([(beside[k].double() - alone[k].double()).reshape(-1) for k in alone])
    gap = float(torch.linalg.vector_norm(difference, order))
    assert gap <= (0.3 if abs(bad) < float("inf") else 0.0) + 2e-6


def test_examples_without_gradient_are_legal() -> None:
    """Saturated logits: the softmax is exactly one-hot, every gradient exactly 0, and 0 is not divided by 0."""
    task = task_of(nn.Sequential(nn.Linear(4, CLASSES)), (4,))
    params = {"0.weight": torch.zeros(CLASSES, 4), "0.bias": torch.tensor([1e6, 0.0, 0.0])}
    x = torch.ones(2, 4)
    for order in (1, 2):
        for both in (task.clipped_sum, lambda *a: slow_sum(*a)):
            zero = both(task.losses, params, Examples(x, torch.zeros(2).long()), keys.bits(1, 2), 1.0, order)
            assert all(torch.equal(value, torch.zeros_like(value)) for value in zero.values())


def test_no_clipped_gradient_is_longer_than_the_clip() -> None:
    task = task_of(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, CLASSES)), (4,))
    params = weights(task, torch.float32)
    batch = rows(64, (4,))
    batch = Examples(batch.x * torch.logspace(-3, 6, 64)[:, None], batch.y)
    for order in (1, 2):
        for clip in (1e-6, 0.3, 50.0):
            reached = 0.0
            for i in range(64):
                one = Examples(batch.x[i : i + 1], batch.y[i : i + 1])
                found = task.clipped_sum(task.losses, params, one, keys.bits(1, 1), clip, order)
                flat = torch.cat([value.double().reshape(-1) for value in found.values()])
                reached = max(reached, float(torch.linalg.vector_norm(flat, order)))
            assert clip * (1 - 1e-5) < reached <= clip


# tightness ------------------------------------------------------------------------------------------------------------

N, CLIP, DIM = 10, 0.7, 5
TASK = Quadratic(DIM)
Sum = Callable[[Examples, int], Tensor]


def clip_each(batch: Examples, order: int) -> Tensor:
    params = {"w": torch.zeros(DIM, dtype=torch.float64)}
    return TASK.clipped_sum(TASK.losses, params, batch, keys.bits(1, len(batch.y)), CLIP, order)["w"]


def clip_the_mean(batch: Examples, order: int) -> Tensor:
    """Broken twin: the mean gradient is clipped, not each one."""
    a, b = batch.x.double().chunk(2, dim=1)
    mean = (-a * b).mean(0)
    return N * mean * min(1.0, CLIP / float(torch.linalg.vector_norm(mean, order)))


def distances(total: Sum, order: int) -> list[float]:
    """|sum(D) - sum(D')| for the worst pair and for random pairs that differ in one row."""
    rows = torch.zeros(N, 2 * DIM)
    rows[:, :DIM] = 1.0
    there, back = rows.clone(), rows.clone()
    there[0, DIM], back[0, DIM] = 1e3, -1e3  # gradients far beyond the clip, opposite
    pairs = [(there, back)]
    for seed in range(30):
        key = keys.root(seed)
        base = rows.clone()
        base[:, DIM:] = 10 * keys.normal(keys.fold(key, "all"), N * DIM).reshape(N, DIM)
        other = base.clone()
        other[seed % N, DIM:] = 100 * keys.normal(keys.fold(key, "one"), DIM)
        pairs.append((base, other))
    y = torch.zeros(N).long()
    return [
        float(torch.linalg.vector_norm(total(Examples(p, y), order) - total(Examples(q, y), order), order))
        for p, q in pairs
    ]


@pytest.mark.parametrize("order", [1, 2])
def test_replacing_one_row_moves_the_sum_by_twice_the_clip_at_most_and_really(order: int) -> None:
    found = distances(clip_each, order)
    assert found[0] == pytest.approx(2 * CLIP, rel=1e-5)  # tight
    assert max(found) <= 2 * CLIP
    assert max(distances(clip_the_mean, order)) > 2 * CLIP * 1.5  # and the twin is caught
