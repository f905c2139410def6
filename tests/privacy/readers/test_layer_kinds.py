"""Every kind of layer that Opacus has a rule for (its tests/grad_samples, v1.6.0), in a network of a user's own: the
clipped sum equals that of the gradients taken one by one, or the network is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sordino import keys
from sordino.errors import ConfigError, UnsoundGuarantee
from sordino.privacy.readers import check_apart
from sordino.privacy.readers.per_example_gradients import covered, fast_sum
from sordino.types import Examples, Params
from tests.privacy.readers.test_per_example_gradients import CLASSES, close, one_by_one, rows, task_of, weights

WIDTH, LENGTH = 4, 5
pytestmark = pytest.mark.filterwarnings(
    "ignore:There is a performance drop", "ignore:Using padding", "ignore:.*weight_norm"
)
ORDERS = [pytest.param(1, marks=pytest.mark.slow), 2]


class Words(nn.Module):
    """Numbers read as words, which a table or a bag of them looks up."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table, self.out = table, nn.LazyLinear(CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        index = ((x > 0).long() + 2 * (x.abs() > 1).long()).detach()
        return self.out(torch.tanh(self.table(index)).flatten(1))  # type: ignore[no-any-return]


class Bag(nn.Module):
    """A bag of words whose ends are told by offsets, as in Opacus' cases."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(4, WIDTH, mode="sum"), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        index = ((x > 0).long() + 2 * (x.abs() > 1).long()).detach()
        ends = torch.arange(len(x)) * x.shape[1]
        return self.out(torch.tanh(self.bag(index.flatten(), ends)))  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.inner, self.out = nn.MultiheadAttention(WIDTH, 2, batch_first=True, **options), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inner(x, x, x)[0].mean(1))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """The mean over the states of a recurrent layer; examples come first or, in torch's default, second."""

    def __init__(self, kind: type[nn.RNNBase], first: bool = True, **options: Any) -> None:
        super().__init__()
        self.inner = kind(WIDTH, 3, batch_first=first, **options)  # type: ignore[call-arg]
        self.first, self.out = first, nn.LazyLinear(CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        said = self.inner(x if self.first else x.transpose(0, 1))[0]
        return self.out(said.mean(1 if self.first else 0))  # type: ignore[no-any-return]


def behind(*layers: nn.Module) -> nn.Module:
    """The layers, and a linear one behind them."""
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.LazyLinear(CLASSES))


SERIES, LINE, IMAGE, BODY = (LENGTH, WIDTH), (WIDTH, 6), (WIDTH, 5, 4), (2, 4, 3, 5)
KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear": (lambda: behind(nn.Linear(WIDTH, 3)), SERIES),
    "Linear without bias": (lambda: behind(nn.Linear(WIDTH, 3, bias=False)), (WIDTH,)),
    "Linear, with a scale": (lambda: behind(Scaled()), (WIDTH,)),
    "Linear, given by name": (lambda: behind(ByName()), (WIDTH,)),
    "Bilinear": (lambda: behind(Paired()), (WIDTH,)),
    "Conv1d": (lambda: behind(nn.Conv1d(WIDTH, 3, 3, 2, 1)), LINE),
    "Conv1d in groups": (lambda: behind(nn.Conv1d(WIDTH, 8, 2, groups=4, dilation=2)), LINE),
    "Conv2d": (lambda: behind(nn.Conv2d(WIDTH, 3, (2, 3), padding="same")), IMAGE),
    "Conv2d in groups": (lambda: behind(nn.Conv2d(WIDTH, 4, 2, groups=2, padding=1, padding_mode="circular")), IMAGE),
    "Conv3d": (lambda: behind(nn.Conv3d(2, 3, (2, 1, 3), (1, 2, 1), 1)), BODY),
    "Conv3d in groups": (lambda: behind(nn.Conv3d(2, 4, 2, groups=2, bias=False)), BODY),
    "ConvTranspose2d": (lambda: behind(nn.ConvTranspose2d(WIDTH, 2, 2, 2)), IMAGE),
    "Embedding": (lambda: Words(nn.Embedding(4, WIDTH, padding_idx=0)), (LENGTH,)),
    "Embedding, divided by counts": (lambda: Words(nn.Embedding(4, WIDTH, scale_grad_by_freq=True)), (LENGTH,)),
    "Embedding, sparse": (lambda: Words(nn.Embedding(4, WIDTH, sparse=True)), (LENGTH,)),
    "EmbeddingBag, sparse": (lambda: Words(nn.EmbeddingBag(4, WIDTH, sparse=True)), (LENGTH,)),
    "EmbeddingBag, mean": (lambda: Words(nn.EmbeddingBag(4, WIDTH, mode="mean")), (LENGTH,)),
    "EmbeddingBag, sum": (lambda: Words(nn.EmbeddingBag(4, WIDTH, mode="sum", padding_idx=1)), (LENGTH,)),
    "EmbeddingBag, max": (lambda: Words(nn.EmbeddingBag(4, WIDTH, mode="max")), (LENGTH,)),
    "EmbeddingBag, offsets": (Bag, (LENGTH,)),
    "GroupNorm": (lambda: behind(nn.GroupNorm(2, WIDTH)), IMAGE),
    "GroupNorm over channels": (lambda: behind(nn.GroupNorm(4, WIDTH)), (WIDTH, 2)),
    "LayerNorm": (lambda: behind(nn.LayerNorm(WIDTH)), SERIES),
    "LayerNorm over two dimensions": (lambda: behind(nn.LayerNorm([LENGTH, WIDTH])), SERIES),
    "RMSNorm": (lambda: behind(nn.RMSNorm(WIDTH)), SERIES),
    "RMSNorm over two dimensions": (lambda: behind(nn.RMSNorm([LENGTH, WIDTH])), SERIES),
    "InstanceNorm1d": (lambda: behind(nn.InstanceNorm1d(WIDTH, affine=True)), LINE),
    "InstanceNorm2d": (lambda: behind(nn.InstanceNorm2d(WIDTH, affine=True)), IMAGE),
    "InstanceNorm3d": (lambda: behind(nn.InstanceNorm3d(2, affine=True)), BODY),
    "PReLU": (lambda: behind(nn.PReLU(WIDTH)), IMAGE),
    "MultiheadAttention": (Attention, SERIES),
    "MultiheadAttention with bias_k and zeros": (lambda: Attention(add_bias_kv=True, add_zero_attn=True), SERIES),
    "TransformerEncoderLayer": (
        lambda: behind(nn.TransformerEncoderLayer(WIDTH, 2, 6, dropout=0.0, batch_first=True)),
        SERIES,
    ),
    **{
        f"{kind.__name__}{name}": (lambda kind=kind, o=options: Recurrent(kind, **o), SERIES)
        for kind in (nn.RNN, nn.LSTM, nn.GRU)
        for name, options in (("", {}), (", two ways and deep", {"num_layers": 2, "bidirectional": True}))
    },
    "LSTM, examples second": (lambda: Recurrent(nn.LSTM, first=False), SERIES),
}


class ByName(nn.Module):
    """A layer that is given its input by name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(input=x)  # type: ignore[no-any-return]


class Scaled(ByName):
    """A layer that was given one parameter more."""

    def __init__(self) -> None:
        super().__init__()
        self.inner.register_parameter("scale", nn.Parameter(torch.ones(3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.inner.scale  # type: ignore[operator]


class Paired(nn.Module):
    """A layer of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Bilinear(WIDTH, WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, torch.tanh(x))  # type: ignore[no-any-return]


def made(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> nn.Module:
    """A network in double precision, with its lazy layers sized."""
    net = make().double()
    net(torch.zeros(2, *shape, dtype=torch.float64))
    return net


@pytest.mark.one_fast
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", KINDS)
def test_the_clipped_sum_is_that_of_gradients_taken_one_by_one(name: str, order: int) -> None:
    make, shape = KINDS[name]
    task, draws = task_of(made(make, shape), shape), keys.bits(keys.root(9), 4)
    check_apart(task)
    params, batch = weights(task, torch.float64), rows(4, shape)
    each = [
        one_by_one(task, params, Examples(batch.x[[i]], batch.y[[i]]), draws[[i]], 1e9, order)
        for i in range(len(draws))
    ]
    norms = sorted(
        float(torch.linalg.vector_norm(torch.cat([g.flatten() for g in one.values()]), order)) for one in each
    )
    clip = (norms[1] + norms[2]) / 2  # two are cut, and two are not
    expected = one_by_one(task, params, batch, draws, clip, order)
    assert close(task.clipped_sum(task.losses, params, batch, draws, clip, order), expected, 1e-9)
    assert not close(together(task, params, batch, draws, clip, order), expected, 1e-3)  # the broken twin
    assert all(bool(value.any()) for value in expected.values())  # so every parameter was looked at


class Adapted(nn.Module):
    """A frozen layer with two trained ones of low rank beside it, as LoRA has them."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(WIDTH, 6), nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, 6)
        self.base.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))  # type: ignore[no-any-return]


@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: behind(nn.LayerNorm(WIDTH)), SERIES),
        (lambda: behind(nn.LayerNorm(WIDTH, bias=False)), (WIDTH,)),
        (lambda: behind(nn.LayerNorm([LENGTH, WIDTH])), SERIES),
        (lambda: behind(nn.RMSNorm(WIDTH)), SERIES),
        (lambda: behind(Adapted()), SERIES),
    ],
    ids=["LayerNorm", "LayerNorm without bias", "LayerNorm over all", "RMSNorm", "an adapter on a frozen layer"],
)
def test_no_gradient_of_one_example_is_formed(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """These layers have a rule, so that their sum needs one pass; that the sum is right is the test above."""
    task = task_of(made(make, shape), shape)
    params, batch, draws = weights(task, torch.float64), rows(4, shape), keys.bits(keys.root(9), 4)
    assert not any(name.startswith("0.base") for name in params)
    for order in (1, 2):
        fast = fast_sum(task._recorder, task.losses, params, batch, draws, 0.05, order)
        assert fast is not None
        assert close(fast, one_by_one(task, params, batch, draws, 0.05, order), 1e-9)
    assert task._recorder.supported
    assert task._rules_hold(task.losses, params)


def test_a_layer_that_is_trained_in_part_has_no_rule() -> None:
    layer = nn.Linear(WIDTH, 3)
    assert covered(layer)
    layer.bias.requires_grad_(False)
    assert not covered(layer)


def together(task: Any, params: Params, batch: Examples, draws: Tensor, clip: float, order: int) -> Params:
    """Broken twin: the sum of all gradients is clipped, to what so many gradients may have."""
    whole = one_by_one(task, params, batch, draws, 1e9, order)
    norm = float(torch.linalg.vector_norm(torch.cat([g.flatten() for g in whole.values()]), order))
    return {name: min(1.0, len(draws) * clip / norm) * g for name, g in whole.items()}


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.BatchNorm1d(WIDTH), LINE),
        (nn.BatchNorm2d(WIDTH), IMAGE),
        (nn.BatchNorm3d(2), BODY),
        (nn.InstanceNorm1d(WIDTH, track_running_stats=True), LINE),
        (nn.InstanceNorm2d(WIDTH, track_running_stats=True), IMAGE),
        (nn.BatchNorm2d(WIDTH, track_running_stats=False), IMAGE),
        (nn.SyncBatchNorm(WIDTH), IMAGE),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, nn.Module) else "",
)
def test_a_layer_that_mixes_examples_is_refused(layer: nn.Module, shape: tuple[int, ...]) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), CLASSES))
    net.insert(0, layer)
    with pytest.raises(UnsoundGuarantee) as refusal:
        check_apart(task_of(net, shape))
    assert refusal.value.code == "batch-norm"


class Waves(nn.Module):
    """A layer of complex numbers, as for Fourier transforms; `apart`: as two of real ones."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.real, self.out = nn.Parameter(torch.ones(WIDTH, 3)), nn.Linear(3, CLASSES)
        self.other = nn.Parameter(torch.ones(WIDTH, 3, dtype=torch.float32 if apart else torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        both = torch.complex(self.real, self.other) if not self.other.is_complex() else self.real + self.other
        return self.out((x.to(torch.complex64) @ both).abs())  # type: ignore[no-any-return]


def test_complex_numbers_are_trained_as_two_real_ones() -> None:
    with pytest.raises(ConfigError) as refusal:
        task_of(Waves(apart=False), (WIDTH,))
    assert refusal.value.code == "complex-parameters"
    task, draws = task_of(Waves(apart=True), (WIDTH,)), keys.bits(keys.root(9), 4)
    params, batch = weights(task, torch.float32), rows(4, (WIDTH,))
    expected = one_by_one(task, params, batch, draws, 0.05, 2)
    assert close(task.clipped_sum(task.losses, params, batch, draws, 0.05, 2), expected, 1e-5)
