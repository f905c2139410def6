"""What is asked of an example depends on that example alone, whatever somebody's network, losses or statistic would do
with several.

Every case couples examples: under equal labels, in groups, from a batch size or a value on. Through a reader none of it
may reach another example. Its broken twin
sends all examples through together, as one batch, and the same checker must catch it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from sordino import keys, tree
from sordino.errors import SordinoError, UnsoundGuarantee
from sordino.privacy.readers import class_sums, per_example_gradients
from sordino.privacy.readers.class_sums import ClassSums
from sordino.privacy.readers.episodes import CellGradient
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.uplink.stages import SLACK
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Grant, LocalWork, Losses, Params
from tests.privacy.doubles import Still

CLASSES, DIM, N, CLIP, Z = 3, 4, 64, 1.0, 1.7


class Net(nn.Module):
    """Somebody's own network: two layers, and something that looks at the batch."""

    def __init__(self, look: Callable[[Tensor], Tensor] = lambda h: h) -> None:
        super().__init__()
        self.first, self.last, self.look = nn.Linear(DIM, 8), nn.Linear(8, CLASSES), look

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.look(self.first(x))))  # type: ignore[no-any-return]


class Loose(Net):
    """With a parameter that no layer owns: the rules of layers do not cover it."""

    def __init__(self, look: Callable[[Tensor], Tensor]) -> None:
        super().__init__(look)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.look(self.first(x)) * self.scale))  # type: ignore[no-any-return]


def in_groups(h: Tensor) -> Tensor:
    """Normalised in groups of 64, where there are as many."""
    if len(h) % 64:
        return h
    groups = h.reshape(-1, 64, h.shape[1])
    return ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-3)).reshape(h.shape)


def from_a_size_on(h: Tensor) -> Tensor:
    return h - 50 * h.mean(0) if len(h) > 3 else h


def from_a_value_on(h: Tensor) -> Tensor:
    """Nothing where all numbers are ordinary, so that no trial on ordinary rows sees it."""
    loud = torch.relu(h.abs() - 20).sum(1)
    return h + loud.sum() - loud[:, None]


def task_of(net: nn.Module) -> Classification:
    return Classification(net, name="own:Net", shape=(DIM,), mean=(0.0,), std=(1.0,), image=False)


def of_its_class(task: Classification) -> Losses:
    """Each loss divided by its class's mean: nothing where no label comes twice."""

    def losses(params: Params, x: Tensor, y: Tensor, draws: Tensor) -> Tensor:
        found = task.losses(params, x, y, draws)
        same = (y[:, None] == y[None]).to(found.dtype)
        return found / ((same @ found) / same.sum(1))

    return losses


def against_the_mean(task: Classification) -> Losses:
    return lambda params, x, y, draws: task.losses(params, x - 50 * x.mean(0), y, draws)


def plain(task: Classification) -> Losses:
    return task.losses


class Case(NamedTuple):
    net: Callable[[], nn.Module]
    losses: Callable[[Classification], Losses] = plain


def sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(DIM, 8), nn.ReLU(), nn.Linear(8, CLASSES))


CASES = {
    "groups of 64": Case(lambda: Net(in_groups)),
    "above a batch size": Case(lambda: Net(from_a_size_on)),
    "at large values": Case(lambda: Net(from_a_value_on)),
    "without layer rules": Case(lambda: Loose(from_a_size_on)),
    "losses of a class": Case(Net, of_its_class),
    "losses against the mean": Case(Net, against_the_mean),
    "losses of a class over a chain": Case(sequential, of_its_class),
    "losses against the mean over a chain": Case(sequential, against_the_mean),
}


def pairs() -> list[tuple[Examples, Examples]]:
    """Data sets that differ in their last row, which is ordinary in one and far away in the other; labels come many
    times."""
    x = keys.normal(keys.root(2), N * DIM).reshape(N, DIM).double()
    y = torch.arange(N) % CLASSES
    found = []
    for value in (30.0, 1e4):
        other = x.clone()
        other[-1] = value * x[-1]
        found.append((Examples(x, y), Examples(other, y)))
    return found


def moves(case: Case) -> float:
    """By how much the released sum of clipped gradients moves, in clips; the noise is sized for two."""
    task = task_of(case.net())
    params = {name: value.double() for name, value in task.init(3).items()}
    losses, reader = case.losses(task), NoisyGradient(CLIP)

    def total(rows: Examples) -> Tensor:
        shard = reader.open(rows, Grant(0, N, N, Still(), Z), task)
        (batch,) = shard.batches(LocalWork(1, None, None), keys.root(5))
        return tree.flat(batch.grad(losses, params)) * N

    return max(float((total(a) - total(b)).norm()) for a, b in pairs()) / CLIP


def all_together(
    losses: Losses, params: Params, batch: Examples, draws: Tensor, clip: float, order: int, solo: bool = False
) -> Params:
    """The broken twin: one pass for all examples, and a clip of each one's loss."""
    leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
    found = losses(leaves, batch.x, batch.y, draws)
    each = torch.eye(len(found), dtype=found.dtype)
    rows = torch.autograd.grad(found, list(leaves.values()), each, is_grads_batched=True)
    norms = torch.cat([row.flatten(1) for row in rows], 1).norm(order, dim=1) * SLACK
    weights = (clip / norms.clamp_min(1e-30)).clamp_max(1.0)
    return {name: torch.tensordot(weights, row, dims=1) for name, row in zip(leaves, rows, strict=True)}


@pytest.mark.one_fast
@pytest.mark.parametrize("name", CASES)
def test_an_example_moves_the_sum_by_two_clips_at_most(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    assert moves(case) <= 2 * (1 + 1e-9)
    monkeypatch.setattr(Classification, "clipped_sum", lambda self, *asked: all_together(*asked))
    assert moves(case) > 2.5


@pytest.mark.parametrize("losses", [plain, lambda task: lambda *asked: 2 * task.losses(*asked)], ids=["own", "doubled"])
def test_the_layer_rules_still_serve_somebodys_own_network(losses: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control of cost and of correctness: no gradient per example is formed, and the sum is that of a loop."""
    task = task_of(Net())
    rows, params, draws = pairs()[0][0], task.init(3), keys.bits(keys.root(9), N)
    wanted = per_example_gradients.one_by_one(losses(task), params, rows, draws, 0.1, 2)
    monkeypatch.setattr(per_example_gradients, "gradients", lambda *asked: pytest.fail("the slow way was taken"))
    found = task.clipped_sum(losses(task), params, rows, draws, 0.1, 2)
    assert all(torch.allclose(found[name], wanted[name], atol=1e-5) for name in wanted)


class Branching(Net):
    """A branch on a value, and a mask from torch's own generator: vmap can do neither."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.nn.functional.dropout(self.first(x), 0.5, self.training)
        return self.last(h if float(x.sum()) > 0 else -h)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_what_vmap_cannot_do_is_done_in_a_loop_and_the_same_every_time() -> None:
    task = task_of(Branching())
    rows, params, draws = pairs()[0][0], task.init(3), keys.bits(keys.root(9), N)
    first, second = (task.clipped_sum(task.losses, params, rows, draws, 0.1, 2) for _ in range(2))
    state = torch.random.get_rng_state()
    other = task.clipped_sum(task.losses, params, rows, draws + 1, 0.1, 2)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.allclose(first[name], other[name]) for name in first)
    assert moves(Case(Branching)) <= 2 * (1 + 1e-9)


# sums per class -------------------------------------------------------------------------------------------------------

STATISTICS: dict[str, Callable[[Tensor], Tensor]] = {
    "of the block": lambda x: x + x.mean(0),
    "of the largest": lambda x: x * (x.norm(dim=1).amax() > 20),
    "of how many": lambda x: x if len(x) % 2 else -x,
    "with a branch": lambda x: x if float(x.sum()) > 0 else -x - 100 * (len(x) > 1),
}


def moved(of: Callable[[Tensor], Tensor]) -> float:
    task, reader = task_of(Net()), ClassSums(CLIP, multiplier=Z)

    def told(rows: Examples) -> Tensor:
        return reader.open(rows, Grant(0, N, N, Still()), task).by_class(of, CLASSES)[0]

    return max(
        float((told(rows) - told(Examples(rows.x[:-1], rows.y[:-1]))).norm()) for pair in pairs() for rows in pair
    )


@pytest.mark.parametrize("name", STATISTICS)
def test_a_statistic_is_shown_one_example_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of = STATISTICS[name]
    assert moved(of) <= CLIP * (1 + 1e-9)
    monkeypatch.setattr(class_sums, "alone", lambda of, rows, solo: of(rows))
    assert moved(of) > 1.5 * CLIP


def test_features_of_a_network_are_shown_one_example_at_a_time() -> None:
    """The same numbers as of a block, of a chain and of a network that couples nothing; and the bound for one that
    couples."""
    rows = pairs()[0][0]

    def features(net: nn.Module) -> Callable[[Tensor], Tensor]:
        task = task_of(net)
        params = task.init(3)
        return lambda x: task.features(params, x, None).detach()

    for of in (features(sequential()), features(Net())):
        assert torch.allclose(class_sums.alone(of, rows.x), of(rows.x), atol=1e-6)
    assert moved(features(Net(in_groups))) <= CLIP * (1 + 1e-9)


# networks that remember
# -----------------------------------------------------------------------------------------------------------------


class Buffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        out = self.last(torch.relu(h + self.seen))
        self.seen.copy_(h.detach().mean(0))  # type: ignore[operator]
        return out  # type: ignore[no-any-return]


class Counter(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1  # type: ignore[operator]
        return super().forward(x)


class Attribute(Net):
    before: Any = 0.0

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x) + self.before
        self.before = h.detach().mean(0)
        return self.last(torch.relu(h))  # type: ignore[no-any-return]


class List(Net):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.rows.append(x)
        return super().forward(x)


class Late(Net):
    """Begins to remember when no trial looks any more: in training, from the third pass on."""

    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.passes > 10:
            self.before = x
        Late.passes += 1
        return super().forward(x)


class Table(Net):
    """Remembers what follows from no example: made once."""

    table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(8.0)
        return self.last(torch.relu(self.first(x) + self.table))  # type: ignore[no-any-return]


READERS = {
    "gradients": NoisyGradient(CLIP, multiplier=Z),
    "sums": ClassSums(CLIP, multiplier=Z),
    "cells": CellGradient(CLIP, multiplier=Z),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("net", [Buffer, Counter, Attribute, List])
def test_a_network_that_remembers_is_refused_under_a_private_reader(net: type[nn.Module], reader: str) -> None:
    with pytest.raises(UnsoundGuarantee) as refusal:
        READERS[reader].check(LocalWork(None, 1, None), task_of(net()))
    assert refusal.value.code == "model-remembers"
    assert refusal.value.fix


def asked(reader: str, task: Classification) -> None:
    """Once, without the check before the start."""
    rows, params = pairs()[0][0], task.init(3)
    shard = READERS[reader].open(Examples(rows.x.float(), rows.y), Grant(0, N, N, Still()), task)
    if reader == "gradients":
        next(iter(shard.batches(LocalWork(None, 1, None), 1))).grad(task.losses, params)
    elif reader == "sums":
        shard.by_class(lambda x: task.predict(params, x), CLASSES)
    else:

        def loss(p: Params, support: Examples, query: Examples, draws: Tensor) -> Tensor:
            return task.losses(p, query.x, query.y, draws).mean()

        next(iter(shard.episodes(LocalWork(None, 1, None), 1))).grad(loss, params)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("net", [Buffer, Counter, Attribute, List, Late])
def test_and_what_begins_to_remember_later_is_refused_at_the_read(net: type[nn.Module], reader: str) -> None:
    Late.passes = 11
    with pytest.raises(UnsoundGuarantee) as refusal:
        asked(reader, task_of(net()))
    assert refusal.value.code == "model-remembers"


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("net", [Net, Table, Branching, sequential])
def test_a_network_that_forgets_is_not_refused(net: Callable[[], nn.Module], reader: str) -> None:
    task = task_of(net())
    READERS[reader].check(LocalWork(None, 1, None), task)
    try:
        asked(reader, task)
    except SordinoError as error:  # pragma: no cover
        pytest.fail(str(error))
