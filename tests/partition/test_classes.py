"""Schemes that deal whole classes: shards, circulant and random classes, long tails."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from sordino.errors import PartitionError
from sordino.partition import (
    Classes,
    LongTail,
    SortedShards,
    counts,
    match_test,
)
from sordino.partition.row_numbers import table
from tests.partition.flaws import any_settings, code_of, flaws, labels_of, rng, sizes_of_classes

MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # LeCun et al.


# ---- shards
def test_shards_of_mnist_size() -> None:
    labels = labels_of([6000] * 10)
    parts = SortedShards(100, 2).assign(labels, None, rng())
    held = table(labels, parts, 10)
    assert flaws(parts, 60_000) == set()
    assert (held.sum(1) == 600).all()
    assert set(np.unique(held)) == {0, 300, 600}  # 200 shards of 300, each of one class
    # Two random shards of 200 are of one class with probability 29/199: 14.6 of 100 clients, sd < 3.6. Five sd on
    # either side, two-sided false alarm about 1e-6; dealing neighbours instead would give 100.
    same = int((held == 600).any(1).sum())
    assert 0 < same < 33
    sorted_deal = table(np.sort(labels), np.split(np.arange(60_000), 100), 10)
    assert (sorted_deal == 600).any(1).sum() == 100


@any_settings
@given(sizes_of_classes, st.integers(1, 30), st.integers(1, 5))
def test_shards_are_contiguous_pieces_of_the_sorted_labels(sizes: list[int], clients: int, each: int) -> None:
    labels = labels_of(sizes)
    n, shards = len(labels), clients * each
    if shards > n:
        assert code_of(SortedShards(clients, each), labels) in {"clients", "too-many-shards"}
        return
    parts = SortedShards(clients, each).assign(labels, None, rng())
    assert flaws(parts, n) == set()
    place = np.empty(n, np.int64)
    place[np.argsort(labels, kind="stable")] = np.arange(n)  # where each example stands in the sorted order
    for part in parts:
        runs = np.split(np.sort(place[part]), np.flatnonzero(np.diff(np.sort(place[part])) > 1) + 1)
        assert len(runs) <= each  # neighbouring shards may join
        assert each * (n // shards) <= len(part) <= each * (n // shards + 1)


# ---- classes
@pytest.mark.parametrize("k", [3, 5, 7])
@pytest.mark.parametrize(("classes", "per_class"), [(10, 5000), (100, 500)])
def test_circulant_classes_give_500_and_100_examples_to_each_of_100_clients(
    k: int, classes: int, per_class: int
) -> None:
    labels, tests = labels_of([per_class] * classes), labels_of([per_class // 5] * classes)
    parts = Classes(100, k).assign(labels, None, rng())
    held, tested = table(labels, parts, classes), table(tests, match_test(labels, parts, tests, rng(1)), classes)
    for n in range(100):
        assert set(np.flatnonzero(held[n])) == {(n + j) % classes for j in range(k)}
    assert ((held > 0) == (tested > 0)).all()
    assert (held.sum(1) == 500).all()
    assert (tested.sum(1) == 100).all()
    assert set(held[held > 0]) <= {500 // k, 500 // k + 1}


def can_hold(totals: list[int], clients: int, k: int) -> bool:
    """Linear programming as the oracle: the constraints are a network, so a real solution means an integer one."""
    classes = len(totals)
    rows = np.kron(np.eye(clients), np.ones(classes))
    columns = np.kron(np.ones(clients), np.eye(classes))
    found = optimize.linprog(
        np.zeros(clients * classes),
        A_eq=rows,
        b_eq=np.full(clients, k),
        A_ub=np.vstack([columns, -columns]),
        b_ub=np.concatenate([totals, -np.ones(classes)]),
        bounds=(0, 1),
    )
    return bool(found.status == 0)


@any_settings
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=7),
    st.integers(1, 8),
    st.integers(1, 7),
    st.integers(0, 99),
)
def test_random_classes_are_found_whenever_they_exist(totals: list[int], clients: int, k: int, seed: int) -> None:
    labels, scheme = labels_of(totals), Classes(clients, k, "random")
    if not can_hold(totals, clients, k):
        assert code_of(scheme, labels) in {"clients", "classes-per-client", "unheld-class", "thin-class"}
        return
    parts = scheme.assign(labels, None, rng(seed))
    held = table(labels, parts, len(totals))
    assert flaws(parts, len(labels)) == set()
    assert ((held > 0).sum(1) == k).all()
    for column in held.T:
        assert np.ptp(column[column > 0]) <= 1


@pytest.mark.parametrize("totals", [[4, 2, 2], [4, 4, 1, 1, 1, 1], [3, 3, 1, 1]])
def test_random_classes_are_found_where_every_place_counts(totals: list[int]) -> None:
    places = int(np.minimum(totals, 4).sum())
    for seed in range(50):
        held = counts.random(np.array(totals), 4, places // 4, rng(seed))
        assert held.sum(0).tolist() == totals
        assert (held.sum(1) == places // 4).all()


@any_settings
@given(st.lists(st.integers(0, 30), min_size=1, max_size=7).filter(lambda s: s[-1] > 0), st.integers(1, 20))
def test_circulant_classes_hold_k_or_name_the_class_that_fails(totals: list[int], clients: int) -> None:
    labels, classes, k = labels_of(totals), len(totals), min(3, len(totals))
    holders = np.zeros(classes, int)
    for n in range(clients):
        holders[[(n + j) % classes for j in range(k)]] += 1
    if clients > len(labels) or ((holders == 0) != (np.array(totals) == 0)).any() or (holders > totals).any():
        assert code_of(Classes(clients, k), labels) in {"clients", "unheld-class", "thin-class"}
        return
    parts = Classes(clients, k).assign(labels, None, rng())
    held = table(labels, parts, classes)
    assert flaws(parts, len(labels)) == set()
    assert ((held > 0).sum(0) == holders).all()
    assert ((held > 0).sum(1) == k).all()


def test_classes_refuse_with_the_class_and_the_bound() -> None:
    labels = labels_of([30] * 10)
    with pytest.raises(PartitionError, match=r"no client holds class 4, 5, 6, 7, 8, 9: clients \+ k - 1 = 4 < 10"):
        Classes(2, 3).assign(labels, None, rng())
    with pytest.raises(PartitionError, match="class 1 has 2 examples for 5 holders"):
        Classes(5, 2).assign(labels_of([30, 2]), None, rng())
    assert code_of(Classes(5, 11), labels) == code_of(Classes(5, 0), labels) == "classes-per-client"
    assert code_of(Classes(5, 2, "rotating"), labels) == "unknown-choice"  # type: ignore[arg-type]


def test_random_classes_are_all_equally_likely() -> None:
    # Each of 10 classes is among a client's 3 with probability 0.3: over 1,000 clients 300 each, sd 14.5. Bound five
    # sd, false alarm < 1e-5; the control, circulant lists of 7 clients, favours some classes.
    held = counts.random(np.full(10, 10_000), 1000, 3, rng(4)).sum(0)
    assert np.abs(held - 300).max() < 5 * 14.5
    assert np.ptp(counts.circulant(np.full(10, 10_000), 1007, 3, rng()).sum(0)) > 0


# ---- long tail
@pytest.mark.parametrize(
    ("sizes", "kept"),
    [
        (MNIST, [5421, 3249, 1948, 1167, 700, 419, 251, 150, 90, 54]),
        ([5000] * 10, [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]),
    ],
)
def test_long_tail_counts_of_mnist_and_cifar(sizes: list[int], kept: list[int]) -> None:
    labels = labels_of(sizes)
    parts = LongTail(100, 0.5).assign(labels, None, rng())
    held = table(labels, parts, 10)
    assert held.sum(0).tolist() == kept
    assert sum(kept) == {5421: 13_449, 5000: 12_406}[kept[0]]
    assert held.sum(1).min() >= 10
    assert flaws(parts, len(labels), complete=False) == set()


def test_a_step_tail_and_the_extremes_of_rho() -> None:
    labels = labels_of([100, 120, 130, 140, 150])
    tail = LongTail(3, 1.0, rho=0.29, kind="step")
    assert tail.class_counts(labels).tolist() == [100, 100, 29, 29, 29]  # 100 * 0.29 is 28.999... in floating point
    assert replace(tail, rho=1.0, kind="exp").class_counts(labels).tolist() == [100] * 5
    assert replace(tail, rho=0.1, kind="exp").class_counts(labels_of([100])).tolist() == [100]
    for rho in (0.0, -0.1, 1.1, float("nan"), 0.009):
        assert code_of(replace(tail, rho=rho), labels) == "rho"
    assert code_of(tail, labels[labels != 2]) == "missing-class"
    assert code_of(replace(tail, kind="linear"), labels) == "unknown-choice"  # type: ignore[arg-type]
    for reading in ("classes", "clients"):
        few = replace(tail, min_size=100, reading=reading)  # type: ignore[arg-type]
        assert code_of(few, labels) == "min-size"  # 300 > 287 kept, though 640 exist
    assert code_of(replace(tail, reading="both"), labels) == "unknown-choice"  # type: ignore[arg-type]


def test_in_the_third_reading_every_client_has_a_tail_in_an_order_of_its_own() -> None:
    labels = labels_of(MNIST)
    held = table(labels, LongTail(100, reading="own_order").assign(labels, None, rng()), 10)
    assert held.sum(0).tolist() == MNIST  # nothing is left over
    sorted_ = -np.sort(-held, axis=1)
    wanted = 0.01 ** (np.arange(10) / 9)
    # each class is divided by what all clients ask of it, so a client's own tail follows the law within a third
    assert np.allclose(sorted_.mean(0) / sorted_[:, 0].mean(), wanted, rtol=0.35)
    first = held.argmax(1)
    # 100 first places over 10 classes: 10 each, sd 3. Bound five sd
    assert np.bincount(first, minlength=10).max() <= 25
    assert len(np.unique(first)) == 10
    with pytest.raises(PartitionError, match="would hold"):
        LongTail(100, min_size=1000, reading="own_order").assign(labels, None, rng())
    # the second reading is no such thing
    alike = table(labels, LongTail(100, reading="clients").assign(labels, None, rng()), 10)
    assert len(np.unique(alike.argmax(1))) == 1


def test_a_long_tail_too_uneven_for_any_draw_is_repaired(caplog: pytest.LogCaptureFixture) -> None:
    labels = labels_of(MNIST)
    with caplog.at_level("INFO", logger="sordino.partition.counts"):
        held = table(labels, LongTail(100, 0.01).assign(labels, None, rng()), 10)
    assert "examples moved to reach min_size = 10" in caplog.text
    assert (held.sum(), held.sum(1).min()) == (13_449, 10)


def test_in_the_second_reading_every_client_has_the_same_tail() -> None:
    labels = labels_of(MNIST)
    tail = LongTail(100, reading="clients")
    held = table(labels, tail.assign(labels, None, rng()), 10)
    assert held.sum(0).tolist() == tail.class_counts(labels).tolist()
    assert np.ptp(held, axis=0).max() <= 1
    assert sorted({*held.sum(1).tolist()}) == [134, 135]  # 13,449 examples
    # the first reading is no such thing
    assert np.ptp(table(labels, LongTail(100).assign(labels, None, rng()), 10), axis=0).max() > 100
