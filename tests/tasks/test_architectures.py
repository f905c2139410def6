"""Networks of the field: each is trained by the gradients that autograd gives, plainly and example by example, whatever
it draws; what cannot be private, or is no network, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import sordino
from sordino import keys
from sordino.errors import SordinoError
from sordino.privacy.readers import check_apart
from sordino.tasks.architecture import fits
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Params

KEY = keys.root(8)


class Encoder(nn.Module):
    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.first = batch_first
        self.encoder = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=batch_first)
        self.out = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(len(x), 8, 8)
        made = self.encoder(x) if self.first else self.encoder(x.transpose(0, 1)).transpose(0, 1)
        return self.out(made.mean(1))  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(len(x), 8, 8)
        return self.out(self.attention(x, x, x, need_weights=False)[0].mean(1))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM | nn.GRU] = nn.LSTM, dropout: float = 0.0) -> None:
        super().__init__()
        self.cells = kind(8, 6, 2 if dropout else 1, batch_first=True, dropout=dropout)
        self.out = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cells(x.view(len(x), 8, 8))[0][:, -1])  # type: ignore[no-any-return]


class Words(nn.Module):
    """Pixels stand for words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(9, 4), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.words(x.flatten(1).long().clamp(0, 8)).mean(1))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.out = nn.Conv2d(1, 8, 4, 4), nn.Linear(8, 10)
        self.first, self.places = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(torch.zeros(1, 5, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, x: Tensor) -> Tensor:
        z = self.patches(x).flatten(2).mT
        z = torch.cat([self.first.expand(len(z), -1, -1), z], 1) + self.places
        return self.out(self.encoder(z)[:, 0])  # type: ignore[no-any-return]


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        z = functional.dropout(torch.relu(self.body(x.flatten(1))), 0.3, self.training)
        return self.out(z)  # type: ignore[no-any-return]


class Residual(nn.Module):
    """As in torchvision: the kind of normalisation is a parameter."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norms, self.out = nn.ModuleList([norm(4), norm(4)]), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu(self.norms[0](self.first(x)))
        return self.out((z + self.norms[1](self.second(z))).mean((2, 3)))  # type: ignore[no-any-return]


class Talkative(Functional):
    """As in transformers: the answer is an object."""

    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(logits=super().forward(x))


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Talkative()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).logits  # type: ignore[no-any-return]


TRAINED: Mapping[str, Callable[[], nn.Module]] = {
    "encoder": Encoder,
    "encoder, positions first": lambda: Encoder(batch_first=False),
    "attention": Attention,
    "lstm": Recurrent,
    "lstm, dropout": lambda: Recurrent(nn.LSTM, 0.2),
    "gru": lambda: Recurrent(nn.GRU),
    "words": Words,
    "vision transformer": VisionTransformer,
    "functional dropout": Functional,
    "residual, groups": lambda: Residual(lambda width: nn.GroupNorm(2, width)),
    "wrapped": Wrapped,
}
REFUSED: Mapping[str, tuple[Callable[[], nn.Module], str]] = {
    "residual, batches": (lambda: Residual(lambda width: nn.BatchNorm2d(width, momentum=None)), "batch-norm"),
    "talkative": (Talkative, "model-outputs"),
}


def task_of(net: nn.Module) -> Classification:
    fits(net, "net", (1, 8, 8), 10)
    return Classification(net, name="net", shape=(8, 8, 1), mean=(0.5,), std=(0.3,), image=True)


def alone(task: Classification, params: Params, batch: Examples, draws: Tensor, i: int) -> Params:
    """By autograd, of one example."""
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    value = task.losses(leaves, batch.x[i : i + 1], batch.y[i : i + 1], draws[i : i + 1]).sum()
    back = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, back, strict=True))


@pytest.mark.one_fast
@pytest.mark.parametrize("name", TRAINED)
def test_each_is_trained_by_the_gradients_of_autograd(name: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        task = task_of(TRAINED[name]())
    check_apart(task)
    assert task.flops > 0  # what no mode of the network and no key may disturb
    params, draws = task.init(KEY), keys.bits(KEY, 3)
    batch = Examples((255 * keys.uniform(KEY, 192)).to(torch.uint8).view(3, 8, 8, 1), torch.arange(3))
    each = [alone(task, params, batch, draws, i) for i in range(3)]
    norms = [torch.sqrt(torch.stack([(g**2).sum() for g in one.values()]).sum()) for one in each]
    clip = float(torch.stack(norms).median())  # cuts some, and leaves others
    found = task.clipped_sum(task.losses, params, batch, draws, clip, 2)
    for leaf, value in found.items():
        wanted = torch.stack([one[leaf] * min(1.0, clip / float(n)) for one, n in zip(each, norms, strict=True)])
        assert torch.allclose(value, wanted.sum(0), rtol=1e-3, atol=1e-5), leaf
    ready = task.ready(batch.x, batch.y)
    first = task.gradient(params, *ready, lambda: draws)
    torch.rand(1)  # somebody else draws in between
    again = task.gradient(params, *ready, lambda: draws)
    assert all(torch.equal(value, again[leaf]) for leaf, value in first.items())
    one = task.gradient(params, *task.ready(batch.x[:1], batch.y[:1]), lambda: draws[:1])
    assert all(torch.allclose(value, each[0][leaf], rtol=1e-3, atol=1e-5) for leaf, value in one.items())


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_refused_with_the_reason(name: str) -> None:
    make, code = REFUSED[name]
    with pytest.raises(SordinoError) as refusal:
        task_of(make())
    assert (refusal.value.code, bool(refusal.value.why)) == (code, True)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("algorithm", ["fedavg", "gaussian_gdp"])
def test_each_goes_through_a_round(name: str, algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "chosen", TRAINED[name])  # a function makes the model
    private = {"clip": 1.0} if algorithm == "gaussian_gdp" else {}
    experiment = {
        "rounds": 1,
        "data": {"source": "digits", "train": 60, "test": 20},
        "partition": {"scheme": "iid", "clients": 2},
        "model": {"name": f"{__name__}:chosen"},
        "algorithm": {"name": algorithm, "lr": 0.1, **private},
        "privacy": {"epsilon": 8.0, "delta": 1e-3} if private else {},
    }
    result = sordino.run(experiment, out=tmp_path / "run")
    assert result.accuracy is not None
