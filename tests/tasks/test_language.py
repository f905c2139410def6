"""Language models: a text's loss and gradient are its own, whatever stands beside and behind it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sordino import config, keys
from sordino.errors import SordinoError
from sordino.privacy.readers.per_example_gradients import one_by_one
from sordino.tasks import PROBLEMS
from sordino.tasks.language import LanguageModel, NextTokenLoss
from sordino.tasks.network import InputSettings
from sordino.tasks.transformer import AttentionBlock, transformer
from sordino.types import Examples, Params

LENGTH, VOCABULARY = 8, 5
SIZES = {"width": 8, "layers": 2, "heads": 2}
# three texts, of 8, 4 and 1 tokens, and an empty one
TEXTS = torch.tensor([[1, 2, 3, 4, 5, 1, 3, 2], [2, 5, 5, 3, 0, 0, 0, 0], [4] + [0] * 7, [0] * 8]).float()
NO_LABELS = torch.zeros(4, dtype=torch.int64)


def model(net: nn.Module | None = None, table: dict[str, Any] | None = None, classes: int = 2) -> Any:
    problem = config.build(table or {"name": "next_token", "vocabulary": VOCABULARY}, dict(PROBLEMS), "task")
    inputs = InputSettings("mine", (LENGTH,), (0.0,) * LENGTH, (1.0,) * LENGTH, keeps=True)
    torch.manual_seed(3)
    made = transformer((LENGTH,), VOCABULARY, **SIZES) if net is None else net
    return problem.built(made.double(), inputs, None, [str(k) for k in range(classes)])


def close(one: Params, other: Params) -> bool:
    return all(torch.allclose(one[name], other[name], atol=1e-12) for name in one)


# the law of padding ---------------------------------------------------------------------------------------------------


class Both(AttentionBlock):
    """Broken twin: attention looks ahead, at padding as well."""

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        asked, known, told = self.attention(self.norm(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = (asked @ known.mT).softmax(-1) @ told
        return x + self.joined(seen.transpose(1, 2).reshape(n, length, width))


class OverBatch(NextTokenLoss):
    """Broken twin: the mean over the tokens of all texts that stand together."""

    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        many = (label[:, 1:] > 0).sum(1)
        return super().__call__(output, label) * many / many.sum().clamp_min(1)


def moved_by_padding(net: nn.Module) -> bool:
    """True if a text of four tokens has another loss, or another gradient, with more padding behind it."""
    found = []
    for texts in (TEXTS[1:2, :5], TEXTS[1:2]):
        loss = NextTokenLoss()(net(texts), texts).sum()
        found.append((loss, *torch.autograd.grad(loss, list(net.parameters()), materialize_grads=True)))
    return not all(torch.allclose(a, b, atol=1e-12) for a, b in zip(*found, strict=True))


def test_padding_moves_neither_loss_nor_gradient() -> None:
    torch.manual_seed(3)
    net = transformer((LENGTH,), VOCABULARY, **SIZES).double()
    assert not moved_by_padding(net)
    torch.manual_seed(3)
    net.blocks = nn.Sequential(Both(8, 2)).double()  # type: ignore[assignment]
    assert moved_by_padding(net)


def test_what_a_class_is_predicted_from_is_the_last_token_and_not_padding() -> None:
    torch.manual_seed(3)
    net = transformer((LENGTH,), 2, tokens=VOCABULARY + 1, **SIZES).double()
    assert torch.allclose(net(TEXTS[1:2, :4]), net(TEXTS[1:2]), atol=1e-12)
    assert not torch.allclose(net(TEXTS[1:2, :3]), net(TEXTS[1:2]), atol=1e-4)


def moved_by_neighbours(loss: Callable[[Tensor, Tensor], Tensor]) -> bool:
    net = transformer((LENGTH,), VOCABULARY, **SIZES).double()
    together = loss(net(TEXTS), TEXTS)
    alone = torch.cat([loss(net(TEXTS[[i]]), TEXTS[[i]]) for i in range(len(TEXTS))])
    return not torch.allclose(together, alone, atol=1e-12)


def test_no_neighbour_moves_a_loss() -> None:
    assert not moved_by_neighbours(NextTokenLoss())
    assert moved_by_neighbours(OverBatch())


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, 2])
def test_each_text_is_clipped_by_itself_without_a_gradient_of_each(order: int) -> None:
    task = model()
    params, batch, draws = task.init(0), Examples(TEXTS, NO_LABELS), keys.bits(keys.root(9), 4)
    assert task._recorder.supported
    assert task._rules_hold(task.losses, params)
    sums = [
        task.clipped_sum(task.losses, params, Examples(*some), draws[: len(some[1])], 0.05, order)
        for some in ((TEXTS, NO_LABELS), *((TEXTS[[i]], NO_LABELS[[i]]) for i in range(4)))
    ]
    assert close(sums[0], {name: sum(one[name] for one in sums[1:]) for name in params})  # type: ignore[misc]
    assert close(sums[0], one_by_one(task.losses, params, batch, draws, 0.05, order))


def test_the_rules_are_tried_on_texts_that_have_a_loss() -> None:
    """Texts of padding alone have no gradient, so that every rule would pass."""
    task = model()
    params = task.init(0)
    assert bool((task.losses(params, task._sample, NO_LABELS[:3], keys.bits(keys.root(1), 3)) > 0.1).all())
    assert set(task._sample.unique().tolist()) <= set(range(1, VOCABULARY + 1))


class RealTokens(nn.Module):
    """Broken twin: it takes the weight of a layer past that layer, where a text has a token."""

    def __init__(self, through: bool) -> None:
        super().__init__()
        self.words, self.head, self.through = nn.Embedding(VOCABULARY + 1, 4), nn.Linear(4, 2), through

    def forward(self, x: Tensor) -> Tensor:
        z = self.words(x.long()).mean(1)
        past = 0 if self.through else (x >= 1).any(1, keepdim=True) * (z @ self.head.weight.T)
        return self.head(z) + past  # type: ignore[no-any-return]


@pytest.mark.parametrize("through", [True, False])
def test_the_rules_of_a_text_classifier_are_tried_on_tokens(through: bool) -> None:
    """Texts of padding alone do not show that a layer breaks where there are tokens."""
    task = model(RealTokens(through), {"name": "classification"})
    params, batch, draws = task.init(0), Examples(TEXTS, NO_LABELS), keys.bits(keys.root(9), 4)
    assert task.largest_token == VOCABULARY
    assert (task._texts(VOCABULARY) == 0).sum() == LENGTH // 2
    assert task._recorder.supported
    assert task._ruled(task.losses, params) == through
    right = one_by_one(task.losses, params, batch, draws, 0.05, 2)
    assert close(task.clipped_sum(task.losses, params, batch, draws, 0.05, 2), right)


def test_tokens_that_a_network_cannot_look_up_are_not_tried() -> None:
    class Buckets(nn.Module):
        """Numbers below 1, as places in a table."""

        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(20, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.table((x * 20).long()).mean(1))  # type: ignore[no-any-return]

    task = model(Buckets(), {"name": "classification"})
    assert task.largest_token == 0
    assert task._rules_hold(task.losses, task.init(0))


# loss and scores ------------------------------------------------------------------------------------------------------


def test_the_loss_is_the_mean_surprise_at_the_tokens_after_the_first() -> None:
    torch.manual_seed(5)
    outputs = torch.randn(4, LENGTH, VOCABULARY, dtype=torch.float64)
    found = NextTokenLoss()(outputs, TEXTS)
    for i, tokens in enumerate([[1, 2, 3, 4, 5, 1, 3, 2], [2, 5, 5, 3], [4], []]):
        chances = outputs[i].softmax(1)
        each = [-math.log(chances[at, after - 1]) for at, after in enumerate(tokens[1:])]
        assert float(found[i]) == pytest.approx(sum(each) / len(each) if each else 0.0)


def test_scores_and_the_best_constant_answer() -> None:
    class Next(nn.Module):
        """Always says that token 5 follows."""

        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.tensor([0.0, 0, 0, 0, 9]))

        def forward(self, x: Tensor) -> Tensor:
            return self.bias.expand(*x.shape, VOCABULARY)

    task = model(Next())
    found = task.score(task.init(0), Examples(TEXTS, NO_LABELS))
    assert found["accuracy"].tolist() == pytest.approx([1 / 7, 2 / 3, 0, 0])
    # 3 and 5 follow three times each, 2 twice: torch's argmax says the first
    assert task.constant(Examples(TEXTS, NO_LABELS)) == pytest.approx((2 / 7 + 1 / 3) / 4)


# refusals -------------------------------------------------------------------------------------------------------------


def refused(make: Callable[[], object]) -> str:
    with pytest.raises(SordinoError) as found:
        make()
    return found.value.code


def test_outputs_for_another_task_are_refused() -> None:
    classifier = transformer((LENGTH,), VOCABULARY, tokens=VOCABULARY + 1, **SIZES)
    assert refused(lambda: model(classifier)) == "model-outputs"
    assert refused(lambda: model(table={"name": "classification"}, classes=VOCABULARY)) == "model-outputs"
    assert model(classifier, {"name": "classification"}, classes=VOCABULARY).classes == VOCABULARY


def test_sizes_that_do_not_fit_are_refused() -> None:
    assert refused(lambda: transformer((3, 8, 8), 5)) == "model-does-not-fit"
    assert refused(lambda: transformer((8,), 5, width=6, heads=4)) == "model-does-not-fit"
    assert refused(lambda: transformer((8,), 5, layers=0)) == "text-model-size"
    assert refused(lambda: model(table={"name": "next_token", "vocabulary": 1})) == "out-of-range"


@pytest.mark.parametrize(("mean", "std"), [(1.0, 1.0), (0.0, 2.0)])
def test_tokens_are_not_scaled(mean: float, std: float) -> None:
    inputs = InputSettings("mine", (LENGTH,), (mean,) * LENGTH, (std,) * LENGTH)
    net = transformer((LENGTH,), VOCABULARY, **SIZES)
    assert refused(lambda: LanguageModel(net, inputs, NextTokenLoss(), VOCABULARY)) == "no-such-scaling"


class Adapter(nn.Module):
    """A pair of low rank, which may be switched off or frozen, as `peft` has it."""

    adapter_layer_names = ("pairs",)
    active_adapters = ("mine",)

    def __init__(self, on: bool, trained: bool) -> None:
        super().__init__()
        self.base = nn.Linear(LENGTH, 4).requires_grad_(False)
        pairs = {"mine": nn.Linear(LENGTH, 4), "other": nn.Linear(LENGTH, 4).requires_grad_(False)}
        self.pairs, self.out, self.on = nn.ModuleDict(pairs), nn.Linear(4, 2), on
        self.pairs["mine"].requires_grad_(trained)

    def forward(self, x: Tensor) -> Tensor:
        z = self.base(x) + (self.pairs["mine"](x) if self.on else 0)
        return self.out(torch.tanh(z))  # type: ignore[no-any-return]


class Constant(nn.Module):
    """An output that no parameter enters."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :2]


def test_an_adapter_that_would_learn_nothing_is_refused_before_training() -> None:
    plain = {"name": "classification"}
    model(Adapter(on=True, trained=True), plain).check_used()
    assert refused(model(Adapter(on=False, trained=True), plain).check_used) == "unused-parameter"
    assert refused(model(Constant(), plain).check_used) == "unused-parameter"
    assert refused(lambda: model(Adapter(on=True, trained=False), plain)) == "frozen-adapter"
