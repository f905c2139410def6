"""Losses: their slopes against automatic differentiation, their optima against scikit-learn, and one example's part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sordino import config, keys, tree
from sordino.algorithms import all_algorithms
from sordino.algorithms.optional import OwnLoss
from sordino.errors import ConfigError, UnsoundGuarantee
from sordino.planning.methods import Methods
from sordino.tasks import PROBLEMS, Problem
from sordino.tasks.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    Huber,
    PoissonLoss,
    Squared,
    WeightedCrossEntropy,
    WrittenLoss,
)
from sordino.tasks.nets import NETS
from sordino.tasks.network import InputSettings
from sordino.tasks.supervised import Supervised
from sordino.types import Examples

KEY = keys.root(3)
CLASSES = ("a", "b", "c")
ROWS, WIDE = 40, 4


def _uniform(*shape: int, seed: int = 1) -> Tensor:
    return keys.uniform(keys.root(seed), int(np.prod(shape))).reshape(shape).double() * 2 - 1


def _classes() -> Tensor:
    return (_uniform(ROWS, seed=5) * 1.5 + 1.5).long().clamp(0, 2)


def _counts() -> Tensor:
    return (_uniform(ROWS, seed=7) * 3 + 3).round()


def _marks() -> Tensor:
    return (_uniform(ROWS, seed=8) * 4 + 4).long().clamp(0, 7)


LOSSES: dict[str, tuple[WrittenLoss, Tensor, int]] = {  # the loss, labels, outputs
    "cross_entropy": (CrossEntropy(), _classes(), 3),
    "weighted": (WeightedCrossEntropy((5.0, 0.5, 1.0)), _classes(), 3),
    "squared": (Squared(-2.0, 6.0), _uniform(ROWS, seed=6) * 4 + 2, 1),
    "huber": (Huber(-2.0, 6.0, 0.3), _uniform(ROWS, seed=6) * 4 + 2, 1),
    "poisson": (PoissonLoss(6), _counts(), 1),
    "binary": (BinaryCrossEntropy(), _marks(), 3),
}
TASKS: dict[str, tuple[dict[str, Any], Tensor]] = {
    "weighted": ({"name": "classification", "class_weights": (5.0, 0.5, 1.0)}, _classes()),
    "regression": ({"name": "regression", "range": (-2.0, 6.0)}, _uniform(ROWS, seed=6) * 4 + 2),
    "huber": ({"name": "regression", "range": (-2.0, 6.0), "loss": "huber", "bend": 1.0}, _uniform(ROWS, seed=6) * 4),
    "counts": ({"name": "counts", "most": 6}, _counts()),
    "multi_label": ({"name": "multi_label", "labels": ("flu", "cold", "cough")}, _marks()),
}


def problem_of(table: dict[str, Any]) -> Problem:
    return config.build(table, dict(PROBLEMS), "task")


def task_of(table: dict[str, Any], net: str = "logistic") -> Supervised:
    problem, middle = problem_of(table), (0.0,) * WIDE
    made = NETS[net]((WIDE,), problem.outputs(len(CLASSES)))
    return problem.built(made, InputSettings(net, (WIDE,), middle, (1.0,) * WIDE), None, CLASSES)


@pytest.mark.parametrize("name", LOSSES)
def test_a_slope_is_the_gradient_of_its_loss(name: str) -> None:
    loss, y, outputs = LOSSES[name]
    z = (3 * _uniform(ROWS, outputs)).requires_grad_()
    (wanted,) = torch.autograd.grad(loss(z, y).sum(), z)
    found = loss.slope(z.detach(), loss.target(y, outputs, torch.float64))
    assert torch.allclose(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("net", ["logistic", "mlp"])
def test_all_ways_to_a_gradient_lead_to_the_same(name: str, net: str) -> None:
    table, y = TASKS[name]
    task, x = task_of(table, net), _uniform(ROWS, WIDE)
    params = {k: v.double() for k, v in task.init(KEY).items()}
    leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
    draws = keys.bits(KEY, ROWS)
    wanted = torch.autograd.grad(task.losses(leaves, x, y, draws).mean(), list(leaves.values()))
    written = tree.formed(task.gradient(params, x.double(), task._target(y, torch.float64), lambda: draws))
    whole = task.clipped_sum(task.losses, params, Examples(x, y), draws, 1e6, 2)
    pooled = task.pooled(params, x, y, 1e6, 2).sum(params)
    for (k, g), right in zip(written.items(), wanted, strict=True):
        for found in (g, whole[k] / ROWS, pooled[k] / ROWS):
            assert torch.allclose(found, right, rtol=1e-6, atol=1e-9), k


@pytest.mark.parametrize("name", TASKS)
def test_one_example_moves_a_sum_by_its_clip_and_no_further(name: str) -> None:
    table, y = TASKS[name]
    task, x = task_of(table), 20 * _uniform(ROWS, WIDE)
    params = {k: v.double() for k, v in task.init(KEY).items()}

    def summed(clip: float, rows: slice) -> Tensor:
        part = Examples(x[rows], y[rows])
        found = task.clipped_sum(task.losses, params, part, keys.bits(KEY, len(part.y)), clip, 2)
        return torch.cat([leaf.flatten() for leaf in found.values()])

    clip = 0.1
    moved = torch.linalg.vector_norm(summed(clip, slice(0, ROWS)) - summed(clip, slice(1, ROWS)))
    assert moved <= clip * (1 + 1e-6)
    # the broken twin weighs, or scales, after the clip: the same sum cut before the loss is what it is breaks the bound
    free = torch.linalg.vector_norm(summed(1e9, slice(0, ROWS)) - summed(1e9, slice(1, ROWS)))
    assert free > clip


def _trained(task: Supervised, x: Tensor, y: Tensor, penalty: float) -> Tensor:
    """The optimum of the mean loss and penalty / 2 |w|^2, with a bias that costs nothing."""
    params = {k: torch.zeros_like(v).double().requires_grad_() for k, v in task.init(KEY).items()}
    solver = torch.optim.LBFGS(params.values(), max_iter=200, tolerance_grad=1e-10, line_search_fn="strong_wolfe")
    weight = next(k for k in params if k.endswith("weight"))

    def closure() -> Tensor:
        solver.zero_grad()
        value = task.losses(params, x, y, keys.bits(KEY, len(y))).mean() + penalty / 2 * (params[weight] ** 2).sum()
        value.backward()
        return value

    solver.step(closure)  # type: ignore[no-untyped-call,arg-type]
    return params[weight].detach()


def _weighted(x: Tensor, y: Tensor, penalty: float) -> Tensor:
    from sklearn.linear_model import LogisticRegression

    weights = {0: 5.0, 1: 0.5, 2: 1.0}
    found = LogisticRegression(C=1 / (penalty * len(y)), class_weight=weights, tol=1e-10, max_iter=2000).fit(x, y)
    return torch.from_numpy(found.coef_)


def _ridge(x: Tensor, y: Tensor, penalty: float) -> Tensor:
    from sklearn.linear_model import Ridge

    return torch.from_numpy(Ridge(alpha=penalty * len(y)).fit(x, (y - 2) / 4).coef_)[None]


def _rates(x: Tensor, y: Tensor, penalty: float) -> Tensor:
    from sklearn.linear_model import PoissonRegressor

    return torch.from_numpy(PoissonRegressor(alpha=penalty, tol=1e-10, max_iter=1000).fit(x, y).coef_)[None]


def _each_label(x: Tensor, y: Tensor, penalty: float) -> Tensor:
    from sklearn.linear_model import LogisticRegression

    # the mean over three labels weighs each of them a third
    solver = LogisticRegression(C=1 / (3 * penalty * len(y)), tol=1e-10, max_iter=2000)
    return torch.cat([torch.from_numpy(solver.fit(x, (y >> bit) & 1).coef_) for bit in range(3)])


ELSEWHERE: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "weighted": _weighted,
    "regression": _ridge,
    "counts": _rates,
    "multi_label": _each_label,
}


def test_a_count_beyond_any_bound_gives_a_finite_slope() -> None:
    loss, far = PoissonLoss(6), torch.tensor([[1e4]])
    assert loss.slope(far, loss.target(torch.tensor([2.0]), 1, torch.float32)).item() == pytest.approx(4)
    assert torch.isfinite(loss(far, torch.tensor([2.0]))).all()
    twin = torch.exp(far)  # the plain likelihood: its gradient is no number that a clip could shorten
    assert not torch.isfinite(twin).all()


@pytest.mark.slow  # scikit-learn takes seconds to import
@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_optimum_is_that_of_scikit_learn(name: str) -> None:
    table, y = TASKS[name]
    x = _uniform(ROWS, WIDE)
    found = _trained(task_of(table), x, y, 0.1)
    assert torch.allclose(found, ELSEWHERE[name](x, y, 0.1), atol=2e-4)


# what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "code"),
    [("balanced", "weights-from-rows"), ((1.0, -1.0, 1.0), "bad-class-weight"), ((1.0, 2.0), "weights-do-not-fit")],
)
def test_weights_are_declared_numbers_one_for_each_class(weights: Any, code: str) -> None:
    with pytest.raises(ConfigError) as refused:
        task_of({"name": "classification", "class_weights": weights})
    assert refused.value.code == code


def test_weights_by_name_are_in_the_order_of_the_classes() -> None:
    named = task_of({"name": "classification", "class_weights": {"c": 1.0, "a": 5.0, "b": 0.5}})
    listed, (x, y) = task_of(TASKS["weighted"][0]), (_uniform(ROWS, WIDE), _classes())
    params, draws = named.init(KEY), keys.bits(KEY, ROWS)
    assert torch.equal(named.losses(params, x, y, draws), listed.losses(params, x, y, draws))


def test_a_bound_for_plain_cross_entropy_is_not_used_for_a_weighted_one() -> None:
    from sordino.privacy.readers.convex_stable import ConvexStable
    from sordino.types import LocalWork

    problem = problem_of(TASKS["weighted"][0])
    inputs = InputSettings("logistic", (WIDE,), (0.0,) * WIDE, (1.0,) * WIDE)
    weighted = problem.built(NETS["logistic"]((WIDE,), 3, radius=2.0), inputs, None, CLASSES)
    plain = problem_of({"name": "classification"}).built(
        NETS["logistic"]((WIDE,), 3, radius=2.0), inputs, None, CLASSES
    )
    reader = ConvexStable(radius=2.0, lr=0.1)
    reader.check(LocalWork(1, None, None), plain)
    with pytest.raises(UnsoundGuarantee) as refused:
        reader.check(LocalWork(1, None, None), weighted)
    assert refused.value.code == "convex-needs-bounded-logistic"


@pytest.mark.parametrize(
    ("table", "code"),
    [
        ({"name": "regression", "range": (3.0, 3.0)}, "bad-label-range"),
        ({"name": "regression", "range": (0.0, 1.0), "bend": 1.0}, "bad-huber-bend"),
        ({"name": "counts", "most": 0}, "out-of-range"),
        ({"name": "multi_label", "labels": ("flu", "flu")}, "bad-labels"),
    ],
)
def test_what_cannot_be_a_task_is_refused(table: dict[str, Any], code: str) -> None:
    with pytest.raises(ConfigError) as refused:
        problem_of(table)
    assert refused.value.code == code


@pytest.mark.slow
def test_methods_with_losses_of_their_own_say_so() -> None:
    """Whoever computes cross-entropy in its own file declares it: a weight would otherwise be ignored in silence."""
    import inspect

    for name, made in all_algorithms().items():
        phases = Methods(config.load({"algorithm": {"name": name}})).phases
        for phase in phases[-1:]:
            source = "".join(
                inspect.getsource(k) for k in type(phase).__mro__ if k.__module__.startswith("sordino.alg")
            )
            computes = "cross_entropy(" in source or "episode_loss" in source
            assert isinstance(phase, OwnLoss) or not computes, (name, made)
