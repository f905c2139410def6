"""Noise-free neighbours never move a release by more than its noise was sized for; and some move it by exactly that.

The yardstick is black-box: the noise scale that the release really uses, shown by a source that adds one scale instead
of noise, divided by the noise multiplier. Every broken twin goes through the same checker and must fail it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from sordino import keys, tree
from sordino.fast.row_sums import wide
from sordino.privacy.noise import GaussianNoise, LaplaceNoise, NoiseLaw
from sordino.privacy.readers.layer_gradients import CACHED, RULES, norm_of
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.privacy.readers.per_example_gradients import slow_sum
from sordino.privacy.uplink.stages import clip_factor
from sordino.tasks.quadratic import Quadratic
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Grant, LocalWork, Losses, NoiseSource, Params, Task
from tests.privacy.doubles import Still, linear
from tests.privacy.neighbours import (
    DIM,
    DOUBLE,
    SIZES,
    Pair,
    Z,
    examples_of,
    labelled_pairs,
    largest_move,
    row,
    slow,
    sound,
    tiers,
    tight,
)

PARAMS = {"a": torch.zeros(3, dtype=DOUBLE), "b": torch.zeros(2, 2, dtype=DOUBLE)}


# ---------------------------------------------------------------- examples behind a reader
WHOLE = LocalWork(1, None, None)


class Gate(NamedTuple):
    """A reader in a setting: what is public about one client, and how its examples are read."""

    reader: NoisyGradient
    task: Task = Quadratic(DIM)
    params: Params = PARAMS
    losses: Losses = linear
    work: LocalWork = WHOLE

    def __call__(self, rows: Examples, source: NoiseSource = Still(), *, size: int) -> Tensor:  # noqa: B008
        """All reads of one round, as one vector. `size` is the number of examples the engine knows of."""
        shard = self.reader.open(rows, Grant(0, size, size, source, Z), self.task)
        grads = [batch.grad(self.losses, self.params) for batch in shard.batches(self.work, keys.root(5))]
        return torch.cat([tree.flat(grad) for grad in grads])

    def scale(self, size: int) -> float:
        """Of the noise in one coordinate, as it is really added."""
        nobody = Examples(torch.zeros(size, DIM, dtype=DOUBLE), torch.zeros(size, dtype=torch.int64))
        gate = self._replace(task=Quadratic(DIM), params=PARAMS, losses=linear)
        noise = gate(nobody, Still(1.0), size=size) - gate(nobody, size=size)
        assert float(noise.max()) == pytest.approx(float(noise.min()), rel=1e-12)
        return float(noise.max())


def neighbours(relation: str, count: int, seed: int, make: Callable[[random.Random], Tensor] = row) -> Iterator[Pair]:
    """Pairs of data sets of 1 to 8 examples; the last one is replaced, or counts for nothing: it is zero, or not there
    (it keeps no other example's coin).
    """
    rng = random.Random(seed)
    for _ in range(count):
        n = rng.choice(SIZES)
        a = [make(rng) for _ in range(n)]
        gone = [torch.zeros(DIM, dtype=DOUBLE)] * rng.randrange(2) if relation == "zero_out" else []
        last = {"replace": [make(rng)], "zero_out": gone}[relation]
        if relation == "replace" and rng.random() < 0.5:
            last = [-a[-1]]
        yield Pair(examples(a), examples(a[:-1] + last))


def examples(rows: Sequence[Tensor]) -> Examples:
    x = torch.stack(list(rows)) if rows else torch.zeros(0, DIM, dtype=DOUBLE)
    return Examples(x, torch.zeros(len(rows), dtype=torch.int64))


def reader_ratio(gate: Gate, pairs: Iterator[Pair], own_size: bool = False) -> float:
    """The checker. `own_size` is a twin: the engine believes what each data set says about its own size."""
    worst, scales = 0.0, {size: gate.scale(size) for size in SIZES}
    for pair in pairs:
        size = len(pair.a.y)

        def release(rows: Examples, size: int = size) -> Tensor:
            return gate(rows, size=max(1, len(rows.y)) if own_size else size)

        worst = max(worst, largest_move(release, iter([pair]), scales[size] / Z, gate.reader.mechanism.order))
    return worst


def reader_gate(sampling: Any, law: NoiseLaw, relation: Any) -> Gate:
    rate, work = {"poisson": 0.7}.get(sampling, 1.0), {"fixed_batches": LocalWork(1, None, 2)}.get(sampling, WHOLE)
    return Gate(NoisyGradient(0.8, law, sampling=sampling, neighbours=relation, rate=rate), work=work)


READERS: dict[str, tuple[Gate, str]] = {
    f"{sampling}-{law.order}-{relation}": (reader_gate(sampling, law, relation), relation)
    for sampling, relations in (
        ("full", ("replace", "zero_out")),
        ("poisson", ("zero_out",)),
        ("fixed_batches", ("replace", "zero_out")),
    )
    for law in (GaussianNoise(), LaplaceNoise())
    for relation in relations
}


# every sampling, every relation and every law once; the other combinations in the slow tier
FIRST_READERS = {
    "full-2-replace", "full-1-zero_out",
    "poisson-2-zero_out", "fixed_batches-1-replace", "fixed_batches-2-zero_out",
}  # fmt: skip


@pytest.mark.one_fast
@pytest.mark.parametrize(("name", "count"), tiers(READERS, FIRST_READERS, 60, 150))
def test_a_reader_moves_by_its_sensitivity_and_never_further(name: str, count: int) -> None:
    gate, relation = READERS[name]
    assert tight(reader_ratio(gate, neighbours(relation, count, seed=1)))


@pytest.mark.slow
def test_an_l1_clip_before_gaussian_noise_is_sound() -> None:
    gate = Gate(NoisyGradient(0.8, GaussianNoise(), clip_order=1))
    assert tight(reader_ratio(gate, neighbours("replace", 150, seed=2)))


def test_the_noise_scale_is_the_same_for_neighbours_of_different_size() -> None:
    gate, _ = READERS["full-2-zero_out"]
    three, two = examples([torch.ones(DIM, dtype=DOUBLE)] * 3), examples([torch.ones(DIM, dtype=DOUBLE)] * 2)
    scales = [gate(rows, Still(1.0), size=3) - gate(rows, size=3) for rows in (three, two)]
    torch.testing.assert_close(*scales, rtol=1e-12, atol=0)


# twins of a reader: what a task could do wrong with the clip, and a reader with its noise
class Twin(Quadratic):
    """A task whose clipped sum, made by `how` from one gradient per row, is broken in one way."""

    def __init__(self, how: Callable[[Tensor, float], Tensor]) -> None:
        super().__init__(DIM)
        self.how = how

    def clipped_sum(
        self, losses: Losses, params: Params, batch: Examples, keys: Tensor, clip: float, order: int, solo: bool = False
    ) -> Params:
        return tree.unflat(self.how(batch.x, clip), params)


def careless(rows: Tensor, clip: float) -> Tensor:
    norms = [float(torch.linalg.vector_norm(r)) for r in rows]
    return torch.stack([r * min(1.0, clip / (n or 1.0)) for r, n in zip(rows, norms, strict=True)]).sum(0)


def per_layer(rows: Tensor, clip: float) -> Tensor:
    layers = [
        slow_sum(linear, {"w": torch.zeros(part.shape[1], dtype=DOUBLE)}, examples_of(part), no_keys(part), clip, 2)[
            "w"
        ]
        for part in (rows[:, :3], rows[:, 3:])
    ]
    return torch.cat(layers)


def clip_of_mean(rows: Tensor, clip: float) -> Tensor:
    mean = torch.nan_to_num(rows, posinf=0, neginf=0).mean(0, keepdim=True)
    return len(rows) * careless(mean, clip)


def by_realised_count(rows: Tensor, clip: float, expected: float) -> Tensor:
    total = slow_sum(linear, {"w": torch.zeros(DIM, dtype=DOUBLE)}, examples_of(rows), no_keys(rows), clip, 2)["w"]
    return total / len(rows) * expected


def no_keys(rows: Tensor) -> Tensor:
    return torch.zeros(len(rows), dtype=torch.int64)


@pytest.mark.one_fast
@pytest.mark.parametrize(
    ("how", "name"),
    [
        (careless, "full-2-replace"),
        (per_layer, "full-2-replace"),
        (clip_of_mean, "full-2-replace"),
        (partial(by_realised_count, expected=0.7 * 3), "poisson-2-zero_out"),
    ],
    ids=["nan passes min(1, C/n)", "clip per layer", "clip of the mean", "divided by the realised count"],
)
def test_a_broken_clip_is_caught(how: Callable[[Tensor, float], Tensor], name: str) -> None:
    gate, relation = READERS[name]
    assert not sound(reader_ratio(gate._replace(task=Twin(how)), neighbours(relation, 50, seed=1)))


@pytest.mark.slow
def test_noise_without_the_factor_two_is_caught() -> None:
    gate, _ = READERS["full-2-zero_out"]
    assert reader_ratio(gate, neighbours("replace", 150, seed=1)) == pytest.approx(2, rel=1e-2)


@pytest.mark.slow
def test_a_denominator_that_follows_the_own_size_is_caught() -> None:
    gate, relation = READERS["full-2-zero_out"]
    assert not sound(reader_ratio(gate, neighbours(relation, 50, seed=1), own_size=True))


# the layer rules that spare one gradient per example
def network(*layers: nn.Module, shape: tuple[int, ...]) -> Classification:
    return Classification(nn.Sequential(*layers), name="probe", shape=shape, mean=(0.0,), std=(1.0,), image=False)


NETS: dict[str, tuple[Classification, tuple[int, ...]]] = {
    "linear": (network(nn.Linear(4, 3), shape=(4,)), (4,)),
    "convolution, few positions": (
        network(nn.Conv2d(6, 16, 2, stride=2), nn.Flatten(), nn.Linear(64, 3), shape=(6, 4, 4)),
        (6, 4, 4),
    ),
    "convolution, many positions": (
        network(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3), shape=(1, 6, 6)),
        (1, 6, 6),
    ),
    "norm": (
        network(nn.Conv2d(2, 4, 1), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3), shape=(2, 2, 2)),
        (2, 2, 2),
    ),
}


@pytest.mark.one_fast
@pytest.mark.parametrize("order", [pytest.param(1, marks=slow), 2])
@pytest.mark.parametrize("name", NETS)
def test_layer_rules_keep_the_bound(name: str, order: int) -> None:
    task, shape = NETS[name]
    law = LaplaceNoise() if order == 1 else GaussianNoise()
    params = {k: v.double() for k, v in task.init(3).items()}
    gate = Gate(NoisyGradient(0.01, law), task, params, task.losses)
    ratio = reader_ratio(gate, labelled_pairs(shape, 60, DOUBLE))
    assert sound(ratio)
    assert ratio > 0.8  # random networks cannot reach every direction; `linear` above reaches 0.99


@pytest.mark.one_fast
@pytest.mark.parametrize("name", NETS)
def test_layer_rules_keep_the_bound_in_single_precision(name: str) -> None:
    # sums of float32 are exact up to rounding, so one example's clipped gradient is measured alone, to a few units of
    # 2^-24
    task, shape = NETS[name]
    params = task.init(3)
    for pair in labelled_pairs(shape, 100, torch.float32):
        one = Examples(pair.a.x[:1], pair.a.y[:1])
        total = task.clipped_sum(task.losses, params, one, no_keys(one.y), 0.01, 2)
        assert float(tree.norm(total)) <= 0.01 * (1 + 1e-6)


def test_tiny_factors_of_huge_factors_are_measured() -> None:
    # the squares of 1e-25 underflow in float32: a norm taken as |a| |g| there would be 0, and the gradient would pass
    # unclipped
    task = network(nn.Linear(1, 3), shape=(1,))
    params = {"0.weight": torch.zeros(3, 1), "0.bias": torch.tensor([60.0, 0.0, 0.0])}
    faint = Examples(torch.tensor([[1e27]]), torch.tensor([0]))
    total = task.clipped_sum(task.losses, params, faint, no_keys(faint.y), 1e-3, 2)
    assert 0.99e-3 <= float(tree.norm(total)) <= 1e-3


def test_rows_wider_than_the_cache_have_their_norms_each() -> None:
    """Rows are widened a few at a time: one at a time where one alone is wider."""
    for many, width in ((3, CACHED + 1), (7, CACHED // 3)):
        x = torch.arange(many * width, dtype=torch.float32).sin().reshape(many, width)
        for order in (1, 2):
            assert torch.allclose(norm_of(x, order, 1), (x.double().abs() ** order).sum(1) ** (1 / order), rtol=1e-12)


class Apart(nn.Module):
    """The difference between two positions of one layer, times a factor: their gradients have opposite signs."""

    def __init__(self, layer: nn.Module, factor: float = 1.0) -> None:
        super().__init__()
        self.layer, self.factor = layer, factor

    def forward(self, x: Tensor) -> Tensor:
        z = self.layer(x.long() if isinstance(self.layer, nn.Embedding) else x).flatten(2)
        first, second = z.unbind(2 if isinstance(self.layer, nn.Conv2d) else 1)
        return self.factor * (first - second)


def test_positions_that_cancel_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    # in float32 a sum of 1024 products of these numbers is cut by almost half a step at each of them: the norm of a
    # gradient that nearly cancels came out 2.7 times too small
    task = network(Apart(nn.Conv2d(1024, 16, 1, bias=False)), shape=(1024, 1, 2))
    x = (1 + torch.tensor([0.49, 251.49], dtype=DOUBLE) * 2.0**-14).sqrt().float().expand(1, 1024, 1, 2)
    one, params = Examples(x.contiguous(), torch.tensor([0])), {"0.layer.weight": torch.zeros(16, 1024, 1, 1)}
    assert task._ruled(task.losses, params)
    products, bmm = list[Tensor](), torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: products.append(bmm(a, b)) or products[-1])
    total = task.clipped_sum(task.losses, params, one, no_keys(one.y), 1e-3, 2)
    assert 0.9e-3 <= float(tree.norm(total)) <= 1e-3 * (1 + 1e-6)
    # where a processor adds in many lanes the sum in float32 would do by luck
    assert [product.dtype for product in products if product.shape[1:] == (2, 2)] == [DOUBLE] * 2


CANCELLING = [(nn.Embedding(8, 3), 2), (nn.Linear(8, 40), 1), (nn.Linear(8, 40), 2)]


@pytest.mark.parametrize(("layer", "order"), CANCELLING, ids=["words", "positions, L1", "positions, L2"])
def test_large_gradients_that_cancel_move_nothing_else(layer: nn.Module, order: int) -> None:
    # each position moves the same numbers, by 1e12 and by -1e12: in a sum of positions these would round away all that
    # the examples before have added
    words = isinstance(layer, nn.Embedding)
    task = network(Apart(layer, 1e12), shape=(2,) if words else (2, 8))
    params = {name: value * 0 for name, value in task.init(1).items()}
    x = torch.tensor([[5.0, 1.0]] * 50 + [[5.0, 5.0]])
    x = x if words else x[:, :, None].expand(-1, 2, 8).contiguous()
    y = torch.zeros(len(x), dtype=torch.int64)
    assert task._ruled(task.losses, params)
    without, with_ = (
        task.clipped_sum(task.losses, params, Examples(x[:n], y[:n]), no_keys(y[:n]), 0.1, order) for n in (50, 51)
    )
    assert float(tree.norm(without, order)) > 1
    assert float(tree.norm(tree.sub(with_, without), order)) <= 0.1


@pytest.mark.parametrize("shape", [(1, 16), (1, 2, 16)], ids=["vectors", "positions"])
def test_small_gradients_of_large_inputs_are_not_rounded_up(shape: tuple[int, ...]) -> None:
    """Beside inputs of 1e37, which a server can bring about, a clipped gradient at the output is subnormal: rounded up,
    as the twin shows, it makes 1.002 clips and more."""
    clip, module, longest, twin = 1e-3, nn.Linear(16, 4096, bias=False), 0.0, 0.0
    for size in torch.linspace(2e37, 8e37, 50).tolist():
        a, g = torch.full(shape, size), torch.full((*shape[:-1], 4096), 1e-8)
        side = RULES[nn.Linear](module, a, g)
        weights = clip_factor(side.norms(2)["weight"], clip, torch.float32)
        found = wide(side.weighted({"weight": weights}, None, slice(None))["weight"])
        longest = max(longest, float(found.norm()))
        twin = max(twin, float((g * weights).double().sum(tuple(range(1, g.dim() - 1))).norm() * 4 * size))
    assert longest <= clip < twin / 1.002


def test_many_small_gradients_of_words_in_half_precision_are_not_rounded_up() -> None:
    """Each is the smallest number of float16: half of it and a little is, rounded, all of it, as the twin shows."""
    smallest = torch.full((1, 1, 4096), 2.0**-24, dtype=torch.float16)
    side = RULES[nn.Embedding](nn.Embedding(1, 4096), torch.zeros(1, 1, dtype=torch.int64), smallest)
    clip = 0.6 * float(smallest.double().norm())
    weights = clip_factor(side.norms(2)["weight"], clip, torch.float16)
    found = wide(side.weighted({"weight": weights}, None, slice(None))["weight"])
    assert 0.99 * clip < float(found.norm()) <= clip < float((smallest * weights).double().norm()) / 1.6


def test_losses_that_mix_examples_are_clipped_one_by_one() -> None:
    # an algorithm's own losses: contrasted against the batch mean, every example reaches into every other's loss
    task, _ = NETS["linear"]

    def contrasted(params: Params, x: Tensor, y: Tensor, keys: Tensor) -> Tensor:
        return task.losses(params, x - 50 * x.mean(0), y, keys)

    params = {k: v.double() for k, v in task.init(3).items()}
    gate = Gate(NoisyGradient(0.01), task, params, contrasted)
    rng = torch.Generator().manual_seed(1)
    a = torch.randn(40, 4, generator=rng, dtype=DOUBLE)
    b = a.clone()
    b[-1] *= -100
    y = torch.arange(40) % 3
    gate._replace(losses=task.losses)(Examples(a, y), size=40)  # whose rules hold, which says nothing of other losses
    moved = gate(Examples(a, y), size=40) - gate(Examples(b, y), size=40)
    assert sound(float(tree.norm(moved)) * Z / gate.scale(40))
