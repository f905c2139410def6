"""Partitions: disjoint, complete, exact where the papers are exact, refused before drawing, and always ending."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sordino.errors import PartitionError
from sordino.partition import (
    IID,
    SCHEMES,
    Active,
    Classes,
    Dirichlet,
    LongTail,
    Natural,
    PowerLaw,
    Quantity,
    Scheme,
    SortedShards,
    counts,
    match_test,
)
from sordino.partition.row_numbers import RowNumbers, checked, summary, table
from tests.partition.flaws import Array, any_settings, code_of, flaws, labels_of, rng, sizes_of_classes


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
    LongTail(7, rho=0.2, reading="own_order"),
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


def test_what_is_not_whole_is_no_row_and_no_client() -> None:
    """Row 3.5 was row 3, and a row of client 0.5 was one of client 0, without a word."""
    assert list(map(list, checked([np.arange(3), []], 4))) == [[0, 1, 2], []]
    for made in (
        lambda: checked([np.arange(3), np.array([3.5])], 4),
        lambda: checked([np.array([True, False])], 4),
        lambda: RowNumbers.by_owner(np.arange(4) / 2, 2),
    ):
        with pytest.raises(PartitionError) as refused:
            made()
        assert refused.value.code == "own-partition"


def test_clients_hold_back_a_part_of_their_own() -> None:
    parts = RowNumbers.of([np.arange(0, 50), np.arange(50, 53), np.arange(53, 54)])
    train, test = parts.held_back(0.1, rng(1))
    assert [len(p) for p in train] == [45, 2, 1]
    assert [len(p) for p in test] == [5, 1, 0]
    for k in range(3):
        assert sorted([*train[k], *test[k]]) == parts[k].tolist()
        assert (np.diff(train[k]) > 0).all()
    assert len({tuple(parts.held_back(0.1, rng(seed))[1][0]) for seed in range(20)}) > 10


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
