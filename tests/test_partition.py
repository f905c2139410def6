"""Partitions: disjoint, complete, exact where the papers are exact, refused before drawing, and always ending."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, stats

from sordino.errors import PartitionError
from sordino.partition import SCHEMES, counts, match_test, summary, table
from sordino.partition.rows import RowNumbers
from sordino.partition.schemes import (
    IID,
    Active,
    Classes,
    Dirichlet,
    LongTail,
    Natural,
    PowerLaw,
    Quantity,
    Scheme,
    SortedShards,
)

Array = NDArray[Any]
MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # LeCun et al.
sizes_of_classes = st.lists(st.integers(1, 40), min_size=1, max_size=8)
any_settings = settings(deadline=None, max_examples=60)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels_of(sizes: list[int], seed: int | None = 0) -> Array:
    ordered = np.repeat(np.arange(len(sizes)), sizes)
    return ordered if seed is None else rng(seed).permutation(ordered)


def flaws(parts: list[Array], n: int, complete: bool = True) -> set[str]:
    """What keeps `parts` from being a partition of range(n)."""
    joined = np.concatenate(parts)
    found = {
        "overlap": len(np.unique(joined)) < len(joined),
        "incomplete": complete and len(np.unique(joined)) < n,
        "outside": bool(((joined < 0) | (joined >= n)).any()),
        "unsorted": any((np.diff(part) < 0).any() for part in parts),
        "dtype": any(part.dtype != np.int64 for part in parts),
    }
    return {flaw for flaw, present in found.items() if present}


def code_of(scheme: Scheme, labels: Array, group: Array | None = None) -> str:
    """The code of a refusal that must come before any draw: the generator given cannot draw."""
    with pytest.raises(PartitionError) as caught:
        scheme.assign(labels, group, object())  # type: ignore[arg-type]
    return str(caught.value.code)


@pytest.mark.parametrize(
    ("flaw", "parts"),
    [
        ("overlap", [[0, 1], [1, 2, 3]]),
        ("incomplete", [[0, 1], [3]]),
        ("outside", [[0, 1], [2, 3, 4]]),
        ("unsorted", [[1, 0], [2, 3]]),
    ],
)
def test_the_checker_catches_broken_partitions(flaw: str, parts: list[list[int]]) -> None:
    assert flaws([np.array(part, np.int64) for part in parts], 4) == {flaw}


def test_the_checker_catches_a_wrong_dtype_and_passes_a_partition() -> None:
    good = [np.array([0, 3]), np.array([1, 2])]
    assert flaws(good, 4) == set()
    assert flaws([part.astype(np.int32) for part in good], 4) == {"dtype"}


EVERY: list[Any] = [
    IID(7),
    Dirichlet(7, 0.5),
    Dirichlet(7, 0.1, balanced=True),
    SortedShards(7, 3),
    Classes(7, 3),
    Classes(7, 2, "random"),
    Active(7, 3),
    Active(7, 4, "random"),
    Quantity(7, 0.5, min_size=3),
    LongTail(7, 0.5, rho=0.2, min_size=2),
    LongTail(7, 0.5, rho=0.2, kind="step", min_size=2),
    LongTail(7, rho=0.2, reading="clients"),
    PowerLaw(10, least=3),
    Natural(),
]


@pytest.mark.parametrize("scheme", EVERY, ids=repr)
def test_every_scheme_partitions_and_repeats(scheme: Scheme) -> None:
    labels = labels_of([60, 50, 70, 40, 80])
    group = rng(5).integers(0, 7, len(labels))
    first, again, other = (scheme.assign(labels, group, rng(seed)) for seed in (1, 1, 2))
    assert len(first) == getattr(scheme, "clients", 7)
    assert flaws(first, len(labels), complete=not isinstance(scheme, LongTail | PowerLaw)) == set()
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    same = all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    assert same == isinstance(scheme, Natural)


def test_every_name_leads_to_a_scheme() -> None:
    assert {type(scheme) for scheme in EVERY} == set(SCHEMES.values())


@pytest.mark.parametrize("scheme", [s for s in EVERY if not isinstance(s, SortedShards | Natural)], ids=repr)
def test_the_table_does_not_depend_on_the_order_of_the_examples(scheme: Scheme) -> None:
    labels = labels_of([60, 50, 70, 40, 80], seed=None)
    shuffled = rng(9).permutation(labels)
    first, second = (table(y, scheme.assign(y, None, rng(3)), 5) for y in (labels, shuffled))
    if isinstance(scheme, IID | Quantity):  # these do not look at labels: only their sizes are settled
        first, second = first.sum(1), second.sum(1)
    assert np.array_equal(first, second)


# ---- power law


def test_power_law_deals_two_classes_a_least_and_a_heavy_tail() -> None:
    labels = labels_of([7000] * 10)
    parts = PowerLaw(1000).assign(labels, None, rng(3))
    counts = table(labels, parts, 10)
    for u in range(1000):
        assert set(np.flatnonzero(counts[u])) == {u % 10, (u + 1) % 10}
    assert counts[counts > 0].min() >= 5
    sizes = counts.sum(1)
    assert sizes.min() >= 10
    assert 68_000 < sizes.sum() <= 70_000  # of 70,000; the published draw has 69,035
    assert 80 < sizes.std() < 250  # heavy tail: 106 as published
    assert (counts.sum(0) <= 7000).all()


def test_a_power_law_that_cannot_be() -> None:
    for scheme, code in (
        (PowerLaw(1001), "clients-per-class"),
        (PowerLaw(1000, least=0), "least"),
        (PowerLaw(1000, sigma=0.0), "sigma"),
        (PowerLaw(100, least=500), "too-few-examples"),
    ):
        assert code_of(scheme, labels_of([700] * 10)) == code


def test_clients_hold_back_a_part_of_their_own() -> None:
    parts = RowNumbers.of([np.arange(0, 50), np.arange(50, 53), np.arange(53, 54)])
    train, test = parts.held_back(0.1, rng(1))
    assert [len(p) for p in train] == [45, 2, 1]
    assert [len(p) for p in test] == [5, 1, 0]
    for k in range(3):
        assert sorted([*train[k], *test[k]]) == parts[k].tolist()
        assert (np.diff(train[k]) > 0).all()
    assert len({tuple(parts.held_back(0.1, rng(seed))[1][0]) for seed in range(20)}) > 10
    for bad in (0.0, 1.0, math.nan):
        with pytest.raises(PartitionError) as refusal:
            parts.held_back(bad, rng(1))
        assert refusal.value.code == "bad-test-fraction"


# ---- iid, quantity, natural


@any_settings
@given(sizes_of_classes, st.integers(1, 60), st.integers(0, 99))
def test_iid_sizes_differ_by_at_most_one(sizes: list[int], clients: int, seed: int) -> None:
    labels = labels_of(sizes)
    if clients > len(labels):
        assert code_of(IID(clients), labels) == "clients"
        return
    parts = IID(clients).assign(labels, None, rng(seed))
    assert flaws(parts, len(labels)) == set()
    assert np.ptp([len(part) for part in parts]) <= 1


@any_settings
@given(sizes_of_classes, st.integers(1, 40), st.sampled_from([1e-300, 1e-3, 0.3, 1e6, 1e300]), st.integers(0, 5))
def test_quantity_keeps_the_minimum(sizes: list[int], clients: int, beta: float, min_size: int) -> None:
    labels = labels_of(sizes)
    scheme = Quantity(clients, beta, min_size)
    if clients > len(labels) or clients * min_size > len(labels):
        assert code_of(scheme, labels) in {"clients", "min-size"}
        return
    parts = scheme.assign(labels, None, rng())
    assert flaws(parts, len(labels)) == set()
    assert min(len(part) for part in parts) >= min_size


def test_quantity_leaves_labels_alike() -> None:
    # Chi-square over the 4 x 5 table of clients and labels, level 1e-4; the control deals sorted labels in one piece.
    labels = labels_of([2000] * 5)
    parts = Quantity(4, 5.0, min_size=100).assign(labels, None, rng(1))
    assert stats.chi2_contingency(table(labels, parts, 5)).pvalue > 1e-4
    assert stats.chi2_contingency(table(np.sort(labels), np.split(np.arange(10_000), 4), 5)).pvalue < 1e-4


def test_natural_clients_are_the_groups() -> None:
    group = np.array([4, 9, 4, 2, 9, 9])
    parts = Natural().assign(np.zeros(6, np.int64), group, rng())
    assert [part.tolist() for part in parts] == [[3], [0, 2], [1, 4, 5]]
    assert code_of(Natural(), np.zeros(6, np.int64)) == "no-group"


# ---- dirichlet


@any_settings
@given(
    sizes_of_classes,
    st.integers(1, 60),
    st.sampled_from([5e-324, 1e-300, 1e-3, 0.1, 1.0, 1e6, 1e300]),
    st.integers(0, 12),
    st.booleans(),
    st.integers(0, 99),
)
def test_dirichlet_ends_with_the_minimum_or_refuses(
    sizes: list[int], clients: int, alpha: float, min_size: int, balanced: bool, seed: int
) -> None:
    labels = labels_of(sizes)
    scheme = Dirichlet(clients, alpha, min_size, balanced)
    if clients > len(labels) or clients * min_size > len(labels):
        assert code_of(scheme, labels) in {"clients", "min-size"}
        return
    parts = scheme.assign(labels, None, rng(seed))
    assert flaws(parts, len(labels)) == set()
    assert min(len(part) for part in parts) >= min_size


@pytest.mark.parametrize("balanced", [False, True])
def test_dirichlet_ends_when_no_draw_can_do_and_nothing_is_left_over(balanced: bool) -> None:
    labels = labels_of([200] * 10)
    parts = Dirichlet(200, 1e-3, min_size=10, balanced=balanced).assign(labels, None, rng())
    assert [len(part) for part in parts] == [10] * 200  # 200 clients * 10 examples is all there is
    assert flaws(parts, 2000) == set()


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_a_concentration_must_be_a_positive_number(alpha: float) -> None:
    labels = labels_of([20, 20])
    for scheme in (Dirichlet(2, alpha), Quantity(2, alpha), LongTail(2, alpha, rho=1.0)):
        assert code_of(scheme, labels) == "concentration"


def test_a_refusal_names_the_bound_with_its_numbers() -> None:
    with pytest.raises(PartitionError, match="clients \\* min_size = 1200 > 1000 examples"):
        Dirichlet(120, 0.5).assign(labels_of([500, 500]), None, rng())


def test_dirichlet_proportions_follow_the_beta_marginal() -> None:
    # The share of client 0 is Beta(a, a (N - 1)). Kolmogorov-Smirnov at 1e-4 over 2,000 independent classes; the
    # control is the same sample against a concentration a third higher.
    total, clients, alpha = 1_000_000, 10, 0.5
    held = counts.dirichlet(np.full(2000, total), clients, "alpha", alpha, 0, rng(7))
    share = held[0] / total
    assert stats.kstest(share, stats.beta(alpha, alpha * (clients - 1)).cdf).pvalue > 1e-4
    wrong = alpha * 4 / 3
    assert stats.kstest(share, stats.beta(wrong, wrong * (clients - 1)).cdf).pvalue < 1e-4


def test_tiny_concentrations_agree_with_another_implementation() -> None:
    # Two-sample Kolmogorov-Smirnov at 1e-4 on the largest share against numpy's stick-breaking; control: 3 * alpha.
    alpha, clients, total = 1e-3, 200, 1_000_000
    ours = counts.dirichlet(np.full(2000, total), clients, "alpha", alpha, 0, rng(1)).max(0) / total
    numpys, control = (rng(2).dirichlet(np.full(clients, a), 2000).max(1) for a in (alpha, 3 * alpha))
    assert stats.ks_2samp(ours.round(5), numpys.round(5)).pvalue > 1e-4
    assert stats.ks_2samp(ours.round(5), control.round(5)).pvalue < 1e-4


def over_fair_share(held: Array) -> bool:
    """Has a client been given a class after it already held its fair share?"""
    before = held.cumsum(1) - held
    return bool(((held > 0) & (before >= held.sum() / len(held))).any())


@any_settings
@given(st.integers(0, 10_000), st.sampled_from([1e-300, 0.05, 0.3, 5.0]))
def test_the_balancing_rule_gives_no_more_to_who_has_enough(seed: int, alpha: float) -> None:
    totals = np.array([500] * 10)
    assert not over_fair_share(counts.dirichlet(totals, 20, "alpha", alpha, 0, rng(seed), balanced=True))


def test_the_balancing_check_catches_plain_dirichlet() -> None:
    assert over_fair_share(counts.dirichlet(np.array([500] * 10), 20, "alpha", 0.3, 0, rng()))


@any_settings
@given(st.integers(0, 10_000), st.lists(st.floats(0, 1e9), min_size=1, max_size=12).filter(lambda w: sum(w) > 1e-9))
def test_largest_remainders_round_every_share_up_or_down_by_size(total: int, weights: list[float]) -> None:
    share = np.array(weights) / sum(weights) * total
    given_out = counts.largest_remainder(total, np.array(weights))
    assert given_out.sum() == total
    assert (np.abs(given_out - share) < 1 + 1e-6).all()
    assert (given_out[np.array(weights) == 0] == 0).all()
    up, rest = given_out > share + 1e-6, share - np.floor(share)
    down = given_out < share - 1e-6
    if up.any() and down.any():
        assert rest[up].min() >= rest[down].max() - 1e-6


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
    with pytest.raises(PartitionError, match=r"nobody holds class 4, 5, 6, 7, 8, 9: clients \+ k - 1 = 4 < 10"):
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


def test_nobody_is_not_a_number_of_clients() -> None:
    for scheme in EVERY[:-1]:
        for clients in (0, -1):
            assert code_of(replace(scheme, clients=clients), labels_of([9, 9])) == "clients"


# ---- test examples


@any_settings
@given(
    st.lists(st.integers(0, 25), min_size=4, max_size=4).filter(lambda s: sum(s) > 6),
    st.lists(st.integers(0, 30), min_size=5, max_size=5).filter(lambda s: sum(s) > 0),
    st.integers(1, 6),
    st.integers(0, 99),
)
def test_test_examples_follow_the_training_examples_class_by_class(
    train: list[int], test: list[int], clients: int, seed: int
) -> None:
    labels, tests = labels_of(train), labels_of(test)
    parts = Dirichlet(clients, 0.5, min_size=0).assign(labels, None, rng(seed))
    matched = match_test(labels, parts, tests, rng(seed))
    assert flaws(matched, len(tests), complete=False) == set()
    held, given_out = table(labels, parts, 5), table(tests, matched, 5)
    for c in range(5):
        if not held[:, c].sum():
            assert not given_out[:, c].any()
            continue
        share = test[c] * held[:, c] / held[:, c].sum()
        assert given_out[:, c].sum() == test[c]
        assert (np.abs(given_out[:, c] - share) < 1 + 1e-9).all()
        assert not given_out[held[:, c] == 0, c].any()


# ---- description


def test_descriptions_of_equal_and_of_one_class_clients() -> None:
    labels = labels_of([40] * 4, seed=None)
    alike = [np.arange(start, 160, 4) for start in range(4)]
    apart = np.split(np.arange(160), 4)
    equal, single = summary(labels, alike, 4), summary(labels, apart, 4)
    assert (equal["total_variation"], equal["classes_per_client"]) == (0, 4)
    assert equal["effective_classes"] == pytest.approx(4)
    assert single["total_variation"] == pytest.approx(3 / 4)
    assert single["effective_classes"] == pytest.approx(1)
    assert single["classes_per_client"] == 1


def test_descriptions_count_empty_clients_in_sizes_only() -> None:
    labels = np.array([0, 0, 1, 1])
    told = summary(labels, [np.array([0, 1, 2]), np.array([3]), np.zeros(0, np.int64)], 2)
    assert [told[f"size_{which}"] for which in ("min", "median", "max")] == [0, 1, 3]
    assert (told["clients"], told["examples"], told["classes_per_client"]) == (3, 4, 1.5)
    assert told["total_variation"] == pytest.approx((1 / 6 + 1 / 2) / 2)
