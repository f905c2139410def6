"""Prototypes: the paper's loss by hand and by finite differences, nearest class means by numpy, and the episodes they
are learned from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sordino import keys, tree
from sordino.errors import DataError
from sordino.privacy.noise.sources import Counter, SystemNoise
from sordino.privacy.readers.episodes import OpenEpisode, draw
from sordino.privacy.readers.open import Open
from sordino.tasks.personalise import NearestMean, Shared, distances, episode_loss, finetune, plain, proto
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Grant, LocalWork, Params, Shard

FEATURES, CLASSES = 5, 4
DRAWS = keys.bits(keys.root(1), 64)
# the one goes its own way back, the other one is left to autograd
NETS: dict[str, Callable[[], nn.Sequential]] = {
    "chain": lambda: nn.Sequential(nn.Linear(FEATURES, 7), nn.ReLU(), nn.Linear(7, CLASSES)),
    "any": lambda: nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, CLASSES)),
}


class Identity:
    """Features are the input."""

    classes, labels, metrics = 2, 2, ("accuracy", "loss")

    def features(self, params: Params, x: Tensor, keys: Tensor | None) -> Tensor:
        return x @ params["w"]


PLANE: Any = Identity()
EYE = {"w": torch.eye(2, dtype=torch.float64)}


def numbers(seed: int, *shape: int) -> Tensor:
    return keys.normal(keys.root(seed), torch.Size(shape).numel()).reshape(shape)


def net(kind: str) -> tuple[Classification, Params]:
    task = Classification(
        NETS[kind](), name=kind, shape=(FEATURES,), mean=(0.0,) * FEATURES, std=(1.0,) * FEATURES, image=False
    )
    return task, {name: p.double() for name, p in task.init(keys.root(3)).items()}


def some(seed: int, labels: list[int]) -> Examples:
    return Examples(numbers(seed, len(labels), FEATURES).float(), torch.tensor(labels))


SUPPORT, QUERY = some(1, [0, 0, 2, 3, 3, 2]), some(2, [0, 2, 2, 3])


def gradient(loss: Callable[..., Tensor], params: Params, support: Examples, query: Examples) -> Params:
    return OpenEpisode(support, query, DRAWS[: len(support.y) + len(query.y)]).grad(loss, params)


def opened(examples: Examples, client: int = 0, task: Any = PLANE) -> Shard:
    return Open().open(examples, Grant(client, len(examples.y), len(examples.y), Counter(0)), task)


# the loss -------------------------------------------------------------------------------------------------------------


def test_the_worked_example() -> None:
    support = Examples(torch.tensor([[0.0, 0], [2, 0], [0, 4]], dtype=torch.float64), torch.tensor([0, 0, 1]))
    query = Examples(torch.tensor([[1.0, 1], [0, 3]], dtype=torch.float64), torch.tensor([0, 1]))
    means = torch.tensor([[1.0, 0], [0, 4]], dtype=torch.float64)
    assert distances(query.x, means).tolist() == [[-1, -10], [-10, -1]]
    assert float(episode_loss(PLANE, EYE, support, query, DRAWS[:5])) == pytest.approx(1.2340e-4, abs=5e-9)


@pytest.mark.parametrize("kind", NETS)
def test_no_name_of_a_class_matters(kind: str) -> None:
    """Loss and gradient of the body stay under every relabelling, as do the personal model's answers."""
    task, params = net(kind)
    loss, here = partial(episode_loss, task), gradient(partial(episode_loss, task), params, SUPPORT, QUERY)
    for names in ([1, 2, 3, 0], [3, 0, 1, 2], [0, 1, 3, 2]):
        new = torch.tensor(names)
        support, query = SUPPORT._replace(y=new[SUPPORT.y]), QUERY._replace(y=new[QUERY.y])
        assert float(loss(params, support, query, DRAWS[:10])) == pytest.approx(
            float(loss(params, SUPPORT, QUERY, DRAWS[:10])), rel=1e-12
        )
        there = gradient(loss, params, support, query)
        assert all(torch.allclose(here[k], there[k], rtol=1e-10, atol=1e-12) for k in here)
        ours, theirs = (proto(task, params, opened(s)).score(q) for s, q in ((SUPPORT, QUERY), (support, query)))
        assert torch.allclose(ours["loss"], theirs["loss"], rtol=1e-10)
    mixed = SUPPORT._replace(y=torch.tensor([0, 2, 2, 3, 0, 3]))  # control: another partition is another loss
    assert float(loss(params, mixed, QUERY, DRAWS[:10])) != pytest.approx(
        float(loss(params, SUPPORT, QUERY, DRAWS[:10])), rel=1e-3
    )


def without_support(task: Classification, params: Params, support: Examples, query: Examples, draws: Tensor) -> Tensor:
    """Broken twin: prototypes are taken as they come, so that no gradient flows through the support."""
    held = task.features(params, support.x, draws[: len(support.y)]).detach()
    labels, which = torch.unique(support.y, return_inverse=True)
    mine = F.one_hot(which, len(labels)).to(held.dtype)
    logits = distances(task.features(params, query.x, draws[len(support.y) :]), mine.T @ held / mine.sum(0)[:, None])
    return F.cross_entropy(logits, torch.searchsorted(labels, query.y))


def slope_error(found: Params, loss: Callable[[Params], Tensor], params: Params) -> float:
    """The largest gap between a gradient and central differences, over coordinates; step 1e-5, so about 1e-10 is
    rounding.
    """
    worst, step = 0.0, 1e-5
    for name, value in params.items():
        for i in range(value.numel()):
            move = torch.zeros_like(value).reshape(-1)
            move[i] = step
            move = move.view_as(value)
            ahead, behind = (float(loss(params | {name: value + sign * move})) for sign in (1, -1))
            worst = max(worst, abs((ahead - behind) / (2 * step) - float(found[name].reshape(-1)[i])))
    return worst


@pytest.mark.parametrize("kind", NETS)
def test_the_gradient_by_finite_differences_through_query_and_support(kind: str) -> None:
    task, params = net(kind)

    def loss(p: Params) -> Tensor:
        with torch.no_grad():
            return episode_loss(task, p, SUPPORT, QUERY, DRAWS[:10])

    found = gradient(partial(episode_loss, task), params, SUPPORT, QUERY)
    assert slope_error(found, loss, params) < 1e-7
    assert not found["2.weight"].any()  # the head has no say
    assert not found["2.bias"].any()
    twin = gradient(partial(without_support, task), params, SUPPORT, QUERY)
    assert float(without_support(task, params, SUPPORT, QUERY, DRAWS[:10])) == pytest.approx(float(loss(params)))
    assert slope_error(twin, loss, params) > 1e-2


@pytest.mark.parametrize("kind", NETS)
def test_a_query_whose_class_the_support_lacks_has_no_say(kind: str) -> None:
    task, params = net(kind)
    loss = partial(episode_loss, task)
    strangers = some(5, [1, 1])  # below a class that is there
    more = Examples(torch.cat([QUERY.x, strangers.x]), torch.cat([QUERY.y, strangers.y]))
    higher = SUPPORT._replace(y=SUPPORT.y.clamp_max(2))  # and above all that are
    for support, query in ((SUPPORT, more), (higher, QUERY)):
        known = torch.isin(query.y, support.y)
        assert not bool(known.all())
        alone = Examples(query.x[known], query.y[known])
        a, b = gradient(loss, params, support, query), gradient(loss, params, support, alone)
        assert float(loss(params, support, query, DRAWS[: len(support.y) + len(query.y)])) == pytest.approx(
            float(loss(params, support, alone, DRAWS[: len(support.y) + len(alone.y)])), rel=1e-12
        )
        assert all(torch.allclose(a[k], b[k], rtol=1e-10, atol=1e-12) for k in a)
    nobody = gradient(loss, params, SUPPORT, strangers)
    assert float(loss(params, SUPPORT, strangers, DRAWS[:8])) == 0
    assert not any(bool(g.any()) for g in nobody.values())


# what a client makes of it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NETS)
def test_the_personal_model_is_the_nearest_class_mean(kind: str) -> None:
    task, params = net(kind)
    train, test = some(7, [3, 0, 3, 3, 2, 0, 2, 2, 0, 0, 3] * 13), some(8, [0, 1, 2, 3] * 40)  # more than one piece
    model = proto(task, params, opened(train))
    assert isinstance(model, NearestMean)
    with torch.no_grad():
        a, b = (task.features(params, part.x, None).numpy() for part in (train, test))
    classes = np.unique(train.y.numpy())
    assert model.labels.tolist() == classes.tolist() == [0, 2, 3]
    means = np.stack([a[train.y.numpy() == k].mean(0) for k in classes])
    squared = ((b[:, None, :] - means[None]) ** 2).sum(2)
    found = model.score(test)
    assert found["accuracy"].numpy().tolist() == (classes[squared.argmin(1)] == test.y.numpy()).astype(float).tolist()
    own = np.array([np.flatnonzero(classes == y)[0] if y in classes else -1 for y in test.y.numpy()])
    losses = np.log(np.exp(-squared).sum(1)) + squared[np.arange(len(own)), own]
    assert np.allclose(found["loss"].numpy()[own >= 0], losses[own >= 0], rtol=1e-9)
    least = np.log(np.exp(-squared).sum(1)) + squared.max(1)  # a class it never saw: as the least likely one
    assert np.allclose(found["loss"].numpy()[own < 0], least[own < 0], rtol=1e-9)
    assert not found["accuracy"].numpy()[own < 0].any()


@pytest.mark.parametrize("kind", NETS)
def test_finetune_is_one_full_step_of_a_tenth(kind: str) -> None:
    task, params = net(kind)
    data = some(9, [0, 1, 2, 3] * 20)
    before = {name: value.clone() for name, value in params.items()}
    made, kept = (way(task, params, opened(data, task=task)) for way in (finetune, plain))
    assert isinstance(made, Shared)
    assert isinstance(kept, Shared)
    leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
    mean = task.losses(leaves, data.x, data.y, DRAWS.new_zeros(len(data.y))).mean()
    slopes = dict(zip(leaves, torch.autograd.grad(mean, list(leaves.values())), strict=True))
    for name in params:
        assert torch.allclose(made.params[name], params[name] - 0.1 * slopes[name], rtol=1e-9, atol=1e-12)
        assert torch.equal(params[name], before[name])  # the shared model stays
        assert torch.equal(kept.params[name], before[name])
    assert float(tree.norm(tree.sub(made.params, params))) > 1e-4


# episodes -------------------------------------------------------------------------------------------------------------


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(6, 60), st.integers(2, 4), st.integers(1, 40), st.integers(0, 99))
def test_an_episode_asks_for_what_it_explains(n: int, classes: int, each: int, seed: int) -> None:
    labels = torch.arange(n) % classes
    support, query = draw(labels, each, keys.root(seed))
    assert len(support) == len(query) == min(each, n // 2)
    assert len(set(support.tolist()) | set(query.tolist())) == 2 * min(each, n // 2)
    if min(each, n // 2) >= classes:  # the tries do not suffice for less than one in 10,000 of such draws
        assert set(labels[query].tolist()) <= set(labels[support].tolist())


def test_an_episode_is_drawn_again_until_its_classes_are_there() -> None:
    """Of two batches of 3 with 3 classes at most a few draws in ten fit at once; of all labels different none does."""
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    key = keys.root(4)
    first = [keys.permutation(keys.fold(keys.fold(key, i), 0), 6) for i in range(50)]
    fits = [bool(torch.isin(labels[order[3:]], labels[order[:3]]).all()) for order in first]
    assert 0 < sum(fits) < 40  # control: the first draw alone would not do
    for i in range(50):
        support, query = draw(labels, 3, keys.fold(key, i))
        assert set(labels[query].tolist()) <= set(labels[support].tolist())
    support, query = draw(torch.arange(6), 3, key)
    assert sorted([*support.tolist(), *query.tolist()]) == list(range(6))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.integers(0, 7), min_size=2, max_size=30), st.integers(1, 15), st.integers(0, 99))
def test_many_draws_at_once_are_those_of_one_after_the_other(labels: list[int], each: int, seed: int) -> None:
    what, half = torch.tensor(labels), min(each, len(labels) // 2)
    for attempt in range(100):
        order = keys.permutation(keys.fold(keys.root(seed), attempt), len(labels))
        support, query = order[:half], order[half : 2 * half]
        if bool(torch.isin(what[query], what[support]).all()):
            break
    found = draw(what, each, keys.root(seed))
    assert torch.equal(found[0], support)
    assert torch.equal(found[1], query)


def parts_of(episode: Any) -> tuple[Examples, Examples]:
    assert isinstance(episode, OpenEpisode)
    return episode._support, episode._query


@pytest.mark.parametrize(("n", "batch", "each"), [(40, 8, 8), (16, 8, 8), (15, 8, 7), (21, 50, 10), (2, 50, 1)])
def test_two_batches_a_step_and_half_of_the_rows_where_there_are_fewer(n: int, batch: int, each: int) -> None:
    data = Examples(torch.arange(n).double()[:, None], torch.arange(n) % 2)
    seen = [parts_of(e) for e in opened(data).episodes(LocalWork(None, 5, batch), keys.root(1))]
    assert len(seen) == 5
    for support, query in seen:
        assert len(support.y) == len(query.y) == each
        rows = torch.cat([support.x, query.x]).flatten().long()
        assert len(set(rows.tolist())) == 2 * each
        assert torch.equal(data.y[rows], torch.cat([support.y, query.y]))
    if n > 15:
        assert len({tuple(support.x.flatten().tolist()) for support, _ in seen}) > 1  # drawn afresh at every step
    again = [parts_of(e) for e in opened(data).episodes(LocalWork(None, 5, batch), keys.root(1))]
    assert all(
        torch.equal(a.x, b.x) for one, two in zip(seen, again, strict=True) for a, b in zip(one, two, strict=True)
    )


@pytest.mark.parametrize("labels", [[], [1], [1, 1, 1, 1]])
def test_who_has_one_class_or_one_example_has_no_episode(labels: list[int]) -> None:
    data = Examples(torch.zeros(len(labels), 2), torch.tensor(labels, dtype=torch.int64))
    with pytest.raises(DataError) as refusal:
        next(iter(opened(data, client=7).episodes(LocalWork(None, 1, 2), keys.root(1))))
    assert refusal.value.code == "no-episode"
    assert "client 7" in refusal.value.what


@pytest.mark.parametrize("labels", [[1, 1, 1, 1], [0]])
def test_a_client_without_an_episode_is_refused_aloud_only_where_nothing_is_private(labels: list[int]) -> None:
    """An abort would tell of a client in a hidden cohort what no noise covers: under noise it sends what it was sent."""
    own, loud = Examples(torch.zeros(len(labels), 2), torch.tensor(labels)), Grant(0, 4, 4, Counter(1))
    task = net("any")[0]
    with pytest.raises(DataError) as refusal:
        next(iter(Open().open(own, loud, task).episodes(LocalWork(None, 2, 1), keys.root(1))))
    assert refusal.value.code == "no-episode"
    for noised in (
        replace(loud, multiplier=1.0),
        replace(loud, source=SystemNoise()),
    ):  # noise as published has no price
        assert list(Open().open(own, noised, task).episodes(LocalWork(None, 2, 1), keys.root(1))) == []
