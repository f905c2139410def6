"""Trees of tensors: arithmetic is that of one long vector, structure and names are kept, mismatches are errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sordino import tree

quick = settings(deadline=None, derandomize=True, max_examples=60)


class Pair(NamedTuple):
    left: Any
    right: Any


def leaf(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


leaves = st.builds(leaf, st.sampled_from([(), (3,), (2, 2), (0,)]), st.integers(0, 99))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["a", "b.c", "d"]), inner, min_size=1, max_size=3),
        st.builds(Pair, inner, inner),
        st.lists(inner, min_size=1, max_size=2).map(tuple),
    ),
    max_leaves=5,
)


def vector(a: Any) -> Tensor:
    """All leaves as one vector, read by hand."""
    if isinstance(a, Tensor):
        return a.reshape(-1)
    return torch.cat([vector(part) for part in (a.values() if isinstance(a, dict) else a)])


@quick
@given(trees, st.integers(0, 9))
def test_arithmetic_is_that_of_one_vector(a: Any, seed: int) -> None:
    b = tree.map(lambda x: leaf(tuple(x.shape), seed), a)
    v, w, factor = vector(a), vector(b), torch.tensor(0.3, dtype=torch.float64)
    pairs = [
        (tree.add(a, b), v + w),
        (tree.sub(a, b), v - w),
        (tree.scale(-2.5, a), -2.5 * v),
        (tree.axpy(0.3, a, b), 0.3 * v + w),
        (tree.axpy(factor, a, b), 0.3 * v + w),
        (tree.zeros_like(a), 0 * v),
    ]
    for found, expected in pairs:
        assert torch.allclose(vector(found), expected, rtol=1e-15, atol=1e-15)
        assert [name for name, _ in tree.named(found)] == [name for name, _ in tree.named(a)]
    assert torch.equal(tree.flat(a), v)
    assert tree.size(a) == len(v)
    assert torch.equal(vector(tree.unflat(v, a)), v)
    assert torch.equal(vector(tree.like(a, tree.leaves(b))), w)
    for order in (1, 2):
        expected = v.abs().sum() if order == 1 else v.square().sum().sqrt()
        assert float(tree.norm(a, order)) == pytest.approx(float(expected), rel=1e-12, abs=1e-300)
    assert tree.finite(a)


def test_names_are_paths() -> None:
    one, two = torch.zeros(1), torch.zeros(2)
    assert [n for n, _ in tree.named(Pair({"w.weight": one, "b": two}, (one, two)))] == [
        "left/w.weight",
        "left/b",
        "right/0",
        "right/1",
    ]
    assert [n for n, _ in tree.named(one)] == ["value"]


def test_the_type_of_every_node_is_kept() -> None:
    built = tree.scale(2.0, Pair({"a": torch.ones(2)}, (torch.ones(1),)))
    assert isinstance(built, Pair)
    assert type(built.left) is dict
    assert type(built.right) is tuple


def test_dtypes_are_kept_where_arithmetic_keeps_them() -> None:
    mixed = {"x": torch.ones(2, dtype=torch.float32), "n": torch.tensor([3])}
    moved = tree.unflat(torch.tensor([1.5, 2.5, 7.0], dtype=torch.float64), mixed)
    assert (moved["x"].dtype, moved["n"].dtype) == (torch.float32, torch.int64)
    assert tree.norm({"x": torch.full((4,), 2.0)}).dtype == torch.float64


WRONG: list[tuple[Callable[[], object], type[Exception]]] = [
    (lambda: tree.add({"a": torch.ones(1)}, {"b": torch.ones(1)}), ValueError),
    (lambda: tree.add({"a": torch.ones(1), "b": torch.ones(1)}, {"b": torch.ones(1), "a": torch.ones(1)}), ValueError),
    (lambda: tree.add((torch.ones(1),), (torch.ones(1), torch.ones(1))), ValueError),
    (lambda: tree.like({"a": torch.ones(1)}, [torch.ones(1), torch.ones(1)]), ValueError),
    (lambda: tree.map(torch.neg, [torch.ones(1)]), TypeError),
    (lambda: list(tree.named({"a": 3.0})), TypeError),
    (lambda: tree.scale(2.0, {"a": None}), TypeError),
]


@pytest.mark.parametrize("case", range(len(WRONG)))
def test_trees_that_do_not_fit_are_errors(case: int) -> None:
    act, error = WRONG[case]
    with pytest.raises(error):
        act()


@pytest.mark.parametrize("order", [1, 2])
def test_the_norm_of_a_large_leaf_is_that_of_its_parts(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {"a": torch.arange(24.0).reshape(4, 6).T, "b": torch.tensor([-3.0])}
    expected = float(tree.norm(whole, order))
    monkeypatch.setattr(tree, "PART", 5)
    assert float(tree.norm(whole, order)) == pytest.approx(expected, rel=1e-14)


def test_a_norm_does_not_overflow_float32_and_sees_what_is_not_finite() -> None:
    assert float(tree.norm({"a": torch.full((4,), 1e30)})) == pytest.approx(2e30, rel=1e-6)
    assert float(tree.norm((torch.full((3,), 1e-30), torch.zeros(2)), 1)) == pytest.approx(3e-30, rel=1e-6, abs=0)
    for bad in (float("nan"), float("inf")):
        assert not tree.finite((torch.zeros(2), torch.tensor([0.0, bad])))
        assert not torch.isfinite(tree.norm(torch.tensor([1.0, bad])))


def test_inputs_are_left_alone() -> None:
    a, b = {"x": torch.ones(3)}, {"x": torch.full((3,), 2.0)}
    for made in (tree.add(a, b), tree.axpy(3.0, a, b), tree.scale(2.0, a)):
        made["x"].add_(100)
    assert a["x"].tolist() == [1.0] * 3
    assert b["x"].tolist() == [2.0] * 3
