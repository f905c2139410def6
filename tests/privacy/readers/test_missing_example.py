"""An example that is missing moves a noisy sum by its clip, whatever weights a server sends.

How many rows go through a network together decides how each is rounded. Weights that are orthogonal to all rows, and
large, make every logit a rounding error: there one row less changed the gradients of all others. So do weights at which
the gradients of the tokens of a text cancel: there the product over its tokens is a rounding error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from sordino import keys, tree
from sordino.device import CPU, here
from sordino.fast.row_sums import wide
from sordino.privacy.noise import GaussianNoise
from sordino.privacy.readers import alone, per_example_gradients
from sordino.privacy.readers.class_sums import ClassSums
from sordino.privacy.readers.layer_gradients import Side
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from sordino.tasks import nets
from sordino.tasks.language import LanguageModel, NextTokenLoss
from sordino.tasks.network import InputSettings
from sordino.tasks.supervised import Classification
from sordino.tasks.transformer import transformer
from sordino.types import Drawable, Examples, Grant, LocalWork, NoiseSource, Params
from tests.privacy.doubles import Coupled

WIDTH, ROWS, CLASSES = 784, 192, 10
READER = NoisyGradient(1.0, GaussianNoise(), neighbours="zero_out", multiplier=1.0)


@dataclass(frozen=True)
class Real(Coupled):
    """Named as real noise is, so that all is computed as beside real noise; it adds none, and no float64 is lost."""

    name: str = "system"

    def child(self, *parts: int | str) -> NoiseSource:
        return self

    def noisy(self, law: Drawable, values: Tensor, scale: float) -> Tensor:
        return wide(values)

    def words(self, count: int) -> Tensor:
        return keys.bits(keys.root(5), ROWS)[-count:]


class Bare(nn.Module):
    """A layer that no rule covers: its gradients are computed one for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight


HOSTILE: dict[str, Callable[[], nn.Module]] = {
    "chain": lambda: nets.mlp((WIDTH,), CLASSES),
    "bare": Bare,
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(8 * 12 * 12, CLASSES),
    ),
}  # fmt: skip


def hostile(name: str) -> tuple[Classification, Params, Examples]:
    """A network, the rows of a client, and large weights for which the logits of all of them are rounding errors."""
    task = Classification(HOSTILE[name](), name=name, shape=(WIDTH,), mean=(0.0,), std=(1.0,), image=False)
    generator = torch.Generator(CPU).manual_seed(3)
    x = here(torch.randn(ROWS, WIDTH, generator=generator, device=CPU))
    params = dict(task.init(0))
    last = [key for key, value in params.items() if value.dim() == 2][-1]
    seen = (x if name == "bare" else task.features(params, x, None)).double()
    space, _ = torch.linalg.qr(seen.T)
    large = here(torch.randn(CLASSES, seen.shape[1], dtype=torch.float64, generator=generator, device=CPU)) * 1e8
    large = (large - (large @ space) @ space.T).float()
    params[last] = large.T.contiguous() if name == "bare" else large
    return task, params, Examples(x, here(torch.randint(0, CLASSES, (ROWS,), generator=generator, device=CPU)))


def moved(name: str, source: NoiseSource) -> float:
    """The largest change of a sum of 2, 64, 128 or 192 rows, in clips, when the first one is missing."""
    task, params, rows = hostile(name)

    def total(some: slice, size: int) -> Tensor:
        shard = READER.open(Examples(rows.x[some], rows.y[some]), Grant(0, size, size, source, 1.0), task)
        (batch,) = shard.batches(LocalWork(None, 1, None), keys.root(1))
        return tree.flat(batch.grad(task.losses, params)).double() * size

    sizes = (2, ROWS // 3, 2 * ROWS // 3, ROWS)
    return max(float((total(slice(n), n) - total(slice(1, n), n)).norm()) for n in sizes)


class Ruled(nn.Module):
    """Layers that the rules cover, in a network that is no chain."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x.flatten(1))))  # type: ignore[no-any-return]


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "chain": lambda: nets.mlp((WIDTH,), CLASSES),
    "chain that drops": lambda: nn.Sequential(nn.Linear(WIDTH, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, CLASSES)),
    "ruled": Ruled,
    "bare": Bare,
}


@pytest.mark.one_fast
@pytest.mark.parametrize("name", NETWORKS)
def test_passes_of_one_example_each_give_the_same_sum(name: str) -> None:
    task = Classification(NETWORKS[name](), name=name, shape=(WIDTH,), mean=(0.0,), std=(1.0,), image=False)
    generator = torch.Generator().manual_seed(4)
    params = {key: torch.randn(value.shape, generator=generator) / 20 for key, value in task.init(0).items()}
    rows = Examples(torch.randn(7, WIDTH, generator=generator), torch.arange(7))
    draws = keys.bits(keys.root(2), 7)
    together, apart, fewer = (
        tree.flat({key: wide(value) for key, value in found.items()})
        for found in (
            task.clipped_sum(task.losses, params, rows, draws, 0.5, 2),
            task.clipped_sum(task.losses, params, rows, draws, 0.5, 2, True),
            task.clipped_sum(task.losses, params, Examples(rows.x[:6], rows.y[:6]), draws[:6], 0.5, 2, True),
        )
    )
    torch.testing.assert_close(apart, together, rtol=1e-4, atol=1e-6)
    assert float((fewer - together).norm()) == pytest.approx(0.5, rel=1e-3)  # the last example's, which is clipped


def test_sums_per_class_are_the_same_of_examples_in_calls_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    task, _, rows = hostile("chain")
    reader = ClassSums(1.0, multiplier=1.0)

    def sums(source: NoiseSource) -> Tensor:
        shard = reader.open(rows, Grant(0, ROWS, ROWS, source, 1.0), task)
        return shard.by_class(lambda x: x[:, :5], CLASSES)[0]

    seeded = sums(Real(name="counter"))
    monkeypatch.setattr(torch.func, "vmap", lambda of: pytest.fail("all examples in one call"))
    torch.testing.assert_close(sums(Real()), seeded, rtol=1e-12, atol=0)
    with pytest.raises(pytest.fail.Exception):
        sums(Real(name="counter"))


@pytest.mark.parametrize("name", ["chain", "bare"])
def test_another_example_in_its_place_moves_a_sum_by_two_clips(name: str) -> None:
    """A batch of a public size is rounded in one way, so all may go through together."""
    task, params, rows = hostile(name)
    reader = replace(READER, neighbours="replace")

    def total(x: Tensor) -> Tensor:
        shard = reader.open(Examples(x, rows.y), Grant(0, ROWS, ROWS, Real(), 1.0), task)
        (batch,) = shard.batches(LocalWork(None, 1, None), keys.root(1))
        return tree.flat(batch.grad(task.losses, params)).double() * ROWS

    others = rows.x.clone()
    others[0] = rows.x[1] - rows.x[2]  # orthogonal to the weights, too
    assert float((total(rows.x) - total(others)).norm()) <= 2 * (1 + 1e-4)


@pytest.mark.one_fast
@pytest.mark.parametrize("name", HOSTILE)
def test_one_example_less_moves_a_sum_by_its_clip(name: str) -> None:
    assert moved(name, Real()) <= 1 + 1e-4


def test_together_with_the_others_it_moves_the_sum_further() -> None:
    """The control: how a processor rounds is its own, so one network of three is enough."""
    assert max(moved(name, Real(name="counter")) for name in HOSTILE) > 1.1


TOKENS, LENGTH = 16, 200


def left_by_the_second(seed: int, solo: bool) -> tuple[float, float]:
    """The clipped norm of a text's gradient, and how far a second text beside it moves the sum, less its own gradient.

    At these weights the model knows how often each token stands in the first text: its gradient is zero, but for the
    rounding of a sum over its tokens, which the server makes large.
    """
    settings = InputSettings("texts", (LENGTH,), (0.0,) * LENGTH, (1.0,) * LENGTH)
    task = LanguageModel(transformer((LENGTH,), TOKENS, width=1, layers=1, heads=1), settings, NextTokenLoss(), TOKENS)
    generator = torch.Generator(CPU).manual_seed(seed)
    texts = here(torch.randint(1, TOKENS + 1, (2, LENGTH), generator=generator, device=CPU).float())
    often = torch.bincount(texts[0, 1:].long() - 1, minlength=TOKENS).double().clamp_min(1e-9)
    params = tree.zeros_like(task.init(0))
    params["norm.bias"] += 1e20
    params["head.bias"] += (often / often.sum()).log().float()

    def total(some: slice) -> Tensor:
        rows = Examples(texts[some], torch.zeros(len(texts[some]), dtype=torch.int64))
        found = task.clipped_sum(task.losses, params, rows, keys.bits(keys.root(2), 2)[some], 1.0, 2, solo)
        return tree.flat({key: wide(value).double() for key, value in found.items()})

    first, second = total(slice(1)), total(slice(1, 2))
    return float(first.norm()), float((total(slice(2)) - first - second).norm())


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of each call for a layer with tokens: how many texts go through it together."""
    rule, found = per_example_gradients.RULES[nn.Linear], list[int]()

    def heard(module: nn.Module, given: Tensor, back: Tensor) -> Side:
        if given.dim() > 2:
            found.append(len(given))
        return rule(module, given, back)

    monkeypatch.setitem(per_example_gradients.RULES, nn.Linear, heard)
    return found


def test_a_product_over_the_tokens_of_a_text_is_rounded_as_if_there_were_no_other_text(products: list[int]) -> None:
    for seed in range(3):
        norm, moved_by = left_by_the_second(seed, solo=True)
        assert norm == pytest.approx(1.0, abs=1e-4)  # a rounding error fills the whole clip
        assert moved_by <= 1e-9
    assert {1, 2}.intersection(products) == {1}


def test_beside_another_text_it_is_rounded_in_another_way(products: list[int]) -> None:
    """The control: texts that go through together change each other by a good part of a clip."""
    moved_by = max(left_by_the_second(seed, solo=False)[1] for seed in range(3))
    assert 2 in products
    if moved_by <= 1e-9:
        pytest.skip("this processor rounds the product of two texts as that of one")
    assert moved_by > 0.2


def test_a_row_on_its_own_begins_where_any_other_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """How a library rounds may depend on where a row lies in memory, and that on the rows before it."""
    rows, places = here(torch.randn(9, 7)), []

    def place(row: Tensor) -> Tensor:
        places.append(row.data_ptr() % 64)
        return row

    def gradients(losses: object, params: Params, batch: Examples, keys: Tensor) -> Params:
        return {"w": place(batch.x)}

    alone(place, rows, solo=True)
    for (row,) in per_example_gradients.passes(True, rows):
        place(row)
    monkeypatch.setattr(per_example_gradients, "gradients", gradients)
    labels = here(torch.zeros(9, dtype=torch.long))
    per_example_gradients.slow_sum(min, {"w": rows[0]}, Examples(rows, labels), labels, 1.0, 2, solo=True)
    assert places == [0] * 27
    assert {row.data_ptr() % 64 for row in rows.split(1)} != {0}  # control: views of the whole table
