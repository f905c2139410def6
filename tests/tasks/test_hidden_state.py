"""What a network may keep under a private reader: nothing, wherever it would put it.

Each network here keeps the largest that it has seen and adds it to what comes after: with the guard away, one row moves a sum
by far more than the noise is sized for. The twin is the guard as it was: by how often a buffer was written to, and how
long an attribute is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sized
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sordino import keys, tree
from sordino.errors import ConfigError, UnsoundGuarantee
from sordino.privacy.readers.class_sums import ClassSums
from sordino.privacy.readers.episodes import CellGradient
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.tasks import hidden_state as memory
from sordino.tasks.losses import Loss
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Grant, LocalWork
from tests.privacy.doubles import Still

CLASSES, DIM, WIDTH, N, CLIP = 3, 4, 8, 24, 1.0


class Keeping(nn.Module):
    """It adds to a row the largest that it has seen before."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.first, self.last = nn.Linear(DIM, WIDTH), nn.Linear(WIDTH, CLASSES)

    def kept(self) -> Tensor:
        return torch.zeros(WIDTH)

    def keep(self, h: Tensor) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        out = self.last(torch.relu(h + self.kept().to(h.dtype)))
        self.keep(torch.maximum(self.kept(), h.detach().abs().mean(0)))
        return out  # type: ignore[no-any-return]


class InBuffer(Keeping):
    low: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.zeros(WIDTH))

    def kept(self) -> Tensor:
        return self.low

    def keep(self, h: Tensor) -> None:
        self.low.data.copy_(h)


class InFrozenParameter(InBuffer):
    def __init__(self) -> None:
        Keeping.__init__(self)
        self.low = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)


class InArray(Keeping):
    def __init__(self) -> None:
        super().__init__()
        self.low = np.zeros(WIDTH, np.float32)

    def kept(self) -> Tensor:
        return torch.from_numpy(self.low.copy())

    def keep(self, h: Tensor) -> None:
        self.low[:] = h.numpy()


class InDictionary(Keeping):
    def __init__(self) -> None:
        super().__init__()
        self.seen = {"low": [0.0] * WIDTH}

    def kept(self) -> Tensor:
        return torch.tensor(self.seen["low"])

    def keep(self, h: Tensor) -> None:
        self.seen["low"] = h.tolist()


class Helper:
    __slots__ = ("low",)

    def __init__(self) -> None:
        self.low = [0.0] * WIDTH


class InHelper(Keeping):
    def __init__(self) -> None:
        super().__init__()
        self.helper = Helper()

    def kept(self) -> Tensor:
        return torch.tensor(self.helper.low)

    def keep(self, h: Tensor) -> None:
        self.helper.low = h.tolist()


class InParameter(Keeping):
    """The shift of a layer that is trained, overwritten past autograd."""

    def kept(self) -> Tensor:
        return torch.zeros(WIDTH)

    def keep(self, h: Tensor) -> None:
        self.first.bias.data.copy_(torch.maximum(self.first.bias.data, h.to(self.first.bias.dtype)))


class InQueue(Keeping):
    def __init__(self) -> None:
        super().__init__()
        self.seen = deque([[0.0] * WIDTH], maxlen=1)

    def kept(self) -> Tensor:
        return torch.tensor(self.seen[-1])

    def keep(self, h: Tensor) -> None:
        self.seen.append(h.tolist())


class InClass(Keeping):
    seen: dict[str, list[float]] = {"low": [0.0] * WIDTH}  # noqa: RUF012

    kept, keep = InDictionary.kept, InDictionary.keep  # type: ignore[assignment]


def in_hook() -> nn.Module:
    net, seen = Keeping(), {"low": [0.0] * WIDTH}

    def hook(module: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> Tensor:
        before = torch.tensor(seen["low"]).to(made.dtype)
        seen["low"] = torch.maximum(before, made.detach().abs().mean(0)).tolist()
        return made + before

    net.first.register_forward_hook(hook)
    return net


KEEPING: dict[str, Callable[[], nn.Module]] = {
    "a buffer, through .data": InBuffer,
    "a frozen parameter": InFrozenParameter,
    "a trained parameter, through .data": InParameter,
    "an array, in place": InArray,
    "the value of a dictionary": InDictionary,
    "a helper": InHelper,
    "a queue of one length": InQueue,
    "its class": InClass,
    "a hook": in_hook,
}


def task_of(net: nn.Module, loss: Any = None) -> Classification:
    more = {} if loss is None else {"loss": loss}
    return Classification(net, name="own:Net", shape=(DIM,), mean=(0.0,), std=(1.0,), image=False, **more)


def rows(first: float) -> Examples:
    x = keys.normal(keys.root(2), N * DIM).reshape(N, DIM).float()
    x[0] = first
    return Examples(x, torch.arange(N) % CLASSES)


def total(task: Classification, held: Examples, losses: Any = None) -> Tensor:
    shard = NoisyGradient(CLIP).open(held, Grant(0, N, N, Still(), 1.0), task)
    (batch,) = shard.batches(LocalWork(1, None, None), keys.root(5))
    return tree.flat(batch.grad(losses or task.losses, task.init(keys.root(3)))) * N


def moves(make: Callable[[], nn.Module]) -> float:
    """In clips; what the noise is sized for is 2."""
    return float((total(task_of(make()), rows(0.1)) - total(task_of(make()), rows(40.0))).norm()) / CLIP


def as_it_was(net: nn.Module) -> dict[str, tuple[object, int]]:
    found: dict[str, tuple[object, int]] = {}
    for path, module in net.named_modules():
        own = {
            name: value for name, value in vars(module).items() if name not in ("training", "_parameters", "_modules")
        }
        for name, value in (own | module._buffers).items():
            size = value._version if isinstance(value, Tensor) else len(value) if isinstance(value, Sized) else 0
            found[f"{path}.{name}"] = value, size
    return found


@pytest.mark.parametrize("place", KEEPING)
def test_what_is_kept_is_noticed_before_the_start_and_at_a_read(place: str) -> None:
    assert task_of(KEEPING[place]()).remembers
    with pytest.raises(UnsoundGuarantee) as refusal:
        total(task_of(KEEPING[place]()), rows(0.1))
    assert refusal.value.code == "model-remembers"


@pytest.mark.one_fast
@pytest.mark.parametrize("place", KEEPING)
def test_the_guard_as_it_was_lets_a_row_through(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = KEEPING[place]()
    task = task_of(net)
    monkeypatch.setattr(memory, "held", as_it_was)
    monkeypatch.setattr(memory, "moved", lambda net, frozen: "")
    monkeypatch.setattr(memory, "overwritten", lambda params, before: "")
    assert task.remembers == ""
    assert moves(KEEPING[place]) > 4  # in clips


def test_an_episode_writes_to_no_parameter() -> None:
    task = task_of(InParameter())
    params, unit = task.init(keys.root(3)), CellGradient(CLIP, cells=1, rate=1.0, multiplier=1.0)

    def loss(params: Any, support: Examples, query: Examples, draws: Tensor) -> Tensor:
        return task.losses(params, support.x, support.y, draws[: len(support.y)]).mean()

    shard = unit.open(rows(0.1), Grant(0, N, N, Still(), 1.0), task)
    (episode,) = shard.episodes(LocalWork(None, 1, None), keys.root(5))
    with pytest.raises(UnsoundGuarantee, match=r"first\.bias"):
        episode.grad(loss, params)


@pytest.mark.parametrize("make", [Keeping, lambda: nn.Sequential(nn.Linear(DIM, WIDTH), nn.Linear(WIDTH, CLASSES))])
def test_who_keeps_nothing_is_left_alone(make: Callable[[], nn.Module]) -> None:
    net = make()
    assert task_of(net).remembers == ""
    assert float((total(task_of(net), rows(0.1)) - total(task_of(net), rows(40.0))).norm()) <= 2 * CLIP * (1 + 1e-6)


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_table_that_rescales_itself_is_refused(kind: type[nn.Module]) -> None:
    """It would tell which words a row has, and clients of one process would train each other's tables."""
    with pytest.raises(ConfigError) as refusal:
        task_of(nn.Sequential(nn.Linear(DIM, CLASSES), kind(4, WIDTH, max_norm=1e9)))  # type: ignore[call-arg]
    assert refusal.value.code == "model-rescales-itself"
    assert refusal.value.fix


def test_a_table_within_max_norm_is_written_to() -> None:
    """Negative control: so torch does, in a pass without any step."""
    table = nn.Embedding(2, WIDTH, max_norm=0.1)
    before = table.weight.detach().clone()
    table(torch.tensor([1]))
    assert [torch.equal(*pair) for pair in zip(before, table.weight, strict=True)] == [True, False]


# what is asked, beside the network ------------------------------------------------------------------------------------
class Adding(Loss):
    """A loss that adds what it has last seen."""

    before = 0.0

    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        found = nn.functional.cross_entropy(output * (1 + abs(self.before)), label, reduction="none")
        self.before = float(output.detach().abs().max())
        return found


def test_a_loss_that_keeps_something_is_noticed() -> None:
    assert task_of(Keeping(), Adding()).remembers == "Adding"
    with pytest.raises(UnsoundGuarantee, match="Adding"):
        total(task_of(Keeping(), Adding()), rows(0.1))
    with pytest.raises(UnsoundGuarantee, match="Adding"):  # over layers that are known, too
        total(task_of(nn.Sequential(nn.Linear(DIM, CLASSES)), Adding()), rows(0.1))


def test_a_function_that_keeps_something_is_noticed() -> None:
    task, seen = task_of(Keeping()), [0.0]

    def losses(params: Any, x: Tensor, y: Tensor, draws: Tensor) -> Tensor:
        found = task.losses(params, x + seen[0], y, draws)
        seen[0] = float(x.max())
        return found

    with pytest.raises(UnsoundGuarantee, match="losses"):
        total(task, rows(0.1), losses)


def test_a_statistic_that_keeps_something_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands beside every network: one row moves the sums by as many clips as there are others."""
    held: list[Tensor] = []

    def told(first: float) -> Tensor:
        seen = {"sign": 1.0}

        def of(x: Tensor) -> Tensor:
            out = x * seen["sign"]
            seen["sign"] = 1.0 if float(x.sum()) < 30 and seen["sign"] > 0 else -1.0
            return out

        shard = ClassSums(CLIP, multiplier=1.0).open(rows(first), Grant(0, N, N, Still()), task_of(Keeping()))
        return shard.by_class(of, CLASSES)[0]

    with pytest.raises(UnsoundGuarantee, match="of changes"):
        told(40.0)
    monkeypatch.setattr(Classification, "still", lambda *asked: nullcontext())
    held += [told(0.1), told(40.0)]
    assert float((held[0] - held[1]).norm()) > 4 * CLIP


def test_a_model_that_has_diverged_is_not_taken_for_one_that_is_written_to() -> None:
    task = task_of(Keeping())
    params = {name: torch.full_like(value, torch.nan) for name, value in task.init(keys.root(3)).items()}
    (batch,) = (
        NoisyGradient(CLIP)
        .open(rows(0.1), Grant(0, N, N, Still(), 1.0), task)
        .batches(LocalWork(1, None, None), keys.root(5))
    )
    assert not any(bool(g.any()) for g in batch.grad(task.losses, params).values())


def test_no_checksum_is_taken_of_what_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with a copy, where it lies, it costs a small part of one gradient."""
    read: list[int] = []
    whole = memory._checksum
    monkeypatch.setattr(memory, "_checksum", lambda value: (read.append(value.numel()), whole(value))[1])
    net = InBuffer()
    memory.held(net)
    assert read == [WIDTH]
    assert memory.of_calls([task_of(net).losses, torch.relu]) == {}
