"""Active-class partitions: k classes and equally many examples for everybody, and names of classes that are each
client's own.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize

import sordino
import sordino.partition
from sordino import config, tree
from sordino.data.dataset import Split
from sordino.errors import PartitionError
from sordino.partition import IID, Active, Classes, match_test
from sordino.partition.counts import can_be_even, fill
from sordino.partition.row_numbers import RowNumbers, table
from sordino.runs.population import Population
from sordino.runs.simulation import simulated
from sordino.types import Examples

Array = NDArray[Any]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def split_of(sizes: list[int], seed: int = 0) -> Split:
    labels = rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return Split(labels, labels)


def dealt(scheme: Active, train: Split, test: Split, seed: int = 3) -> tuple[RowNumbers, RowNumbers]:
    draw = rng(seed)
    rows = scheme.assign(train.y, None, draw)
    return rows, scheme.match(train, rows, test, draw)


def dealt_or_refused(scheme: Active, train: Split, test: Split) -> tuple[tuple[RowNumbers, RowNumbers] | None, str]:
    try:
        return dealt(scheme, train, test), ""
    except PartitionError as refused:
        return None, str(refused.code)


# as published: 50,000 and 10,000 images, 100 clients ------------------------------------------------------------------


@pytest.mark.one_fast
@pytest.mark.parametrize("k", [3, 5, 7])
@pytest.mark.parametrize(("classes", "per_class"), [(10, 5000), (100, 500)])
def test_circulant_lists_give_everybody_500_and_100_images_of_k_classes(k: int, classes: int, per_class: int) -> None:
    train, test = split_of([per_class] * classes), split_of([per_class // 5] * classes, 1)
    rows, tests = dealt(Active(100, k), train, test)
    for given_out, y, each, cells in (
        (rows, train.y, 500, {3: {166, 167}, 5: {100}, 7: {71, 72}}),
        (tests, test.y, 100, {3: {33, 34}, 5: {20}, 7: {14, 15}}),
    ):
        held = table(y, given_out, classes)
        assert np.array_equal(np.sort(given_out.numbers), np.arange(len(y)))  # every image once
        assert (held.sum(1) == each).all()
        assert set(held[held > 0].tolist()) == cells[k]
        for n in range(100):
            assert set(np.flatnonzero(held[n])) == {(n + j) % classes for j in range(k)}


@pytest.mark.one_fast
@pytest.mark.parametrize("k", [3, 5, 7])
def test_random_lists_give_the_same_sizes(k: int) -> None:
    train, test = split_of([5000] * 10), split_of([1000] * 10, 1)
    rows, tests = dealt(Active(100, k, "random"), train, test)
    held, tested = table(train.y, rows, 10), table(test.y, tests, 10)
    assert (held.sum(1) == 500).all()
    assert (tested.sum(1) == 100).all()
    assert ((held > 0).sum(1) == k).all()
    assert np.array_equal(held > 0, tested > 0)
    assert len({tuple(row) for row in held > 0}) > 10  # control: circulant lists are ten at most


# any numbers ----------------------------------------------------------------------------------------------------------


def even(held: Array, totals: Array, holds: Array) -> bool:
    everything = (held.sum(0) == totals).all() and (held[~holds] == 0).all() and (held[holds] > 0).all()
    return bool(everything and np.ptp(held.sum(1)) <= 1)


def possible(totals: Array, holds: Array) -> bool:
    """Linear programming as the oracle: the constraints are a network, so a real solution means an integer one."""
    clients, classes = holds.shape
    sizes, columns = np.kron(np.eye(clients), np.ones(classes)), np.kron(np.ones(clients), np.eye(classes))
    low, high = totals.sum() // clients, -(-totals.sum() // clients)
    found = optimize.linprog(
        np.zeros(holds.size),
        A_eq=columns,
        b_eq=totals,
        A_ub=np.vstack([sizes, -sizes]),
        b_ub=np.concatenate([np.full(clients, high), np.full(clients, -low)]),
        bounds=[(1, None) if held else (0, 0) for held in holds.ravel()],
    )
    return bool(found.status == 0)


cases = st.tuples(
    st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(1, 6), st.integers(1, 5), st.integers(0, 99)
)


@settings(deadline=None, max_examples=80, derandomize=True)
@given(cases)
def test_the_filling_is_even_exactly_where_that_is_possible(drawn: tuple[list[int], int, int, int]) -> None:
    sizes, clients, k, seed = drawn
    totals, draw = np.array(sizes), rng(seed)
    holds = np.zeros((clients, len(sizes)), bool)
    for row in holds:
        row[draw.choice(len(sizes), min(k, len(sizes)), replace=False)] = True
    held = fill(totals, holds, draw)
    assert even(held, totals, holds) == can_be_even(totals, holds) == possible(totals, holds)
    # also where it is not: nothing is given twice, all that somebody may hold is held
    assert np.array_equal(held.sum(0), np.where(holds.any(0), totals, 0))
    assert (held[~holds] == 0).all()


def test_a_greedy_filling_without_taking_over_is_noticed() -> None:
    """Broken twin: whoever finds none of its classes left goes without. Client 0 may have only what client 1 can do
    without.
    """
    totals, holds = np.array([5, 3]), np.array([[True, False], [True, True]])
    stuck = 0
    for seed in range(20):
        left, held = totals.copy(), np.zeros((2, 2), int)
        for client in np.concatenate([rng(seed + i).permutation(2) for i in range(8)]):
            own = [c for c in np.flatnonzero(holds[client]) if left[c]]
            if own:
                chosen = min(own, key=lambda c: held[client, c])
                held[client, chosen] += 1
                left[chosen] -= 1
        stuck += np.ptp(held.sum(1)) > 1
        assert np.ptp(fill(totals, holds, rng(seed)).sum(1)) == 0
    assert stuck


@pytest.mark.slow
@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    st.lists(st.integers(5, 40), min_size=2, max_size=8),
    st.integers(1, 12),
    st.integers(1, 8),
    st.sampled_from(["circulant", "random"]),
)
def test_sizes_differ_by_at_most_one_or_the_bound_is_named(
    sizes: list[int], clients: int, k: int, holders: Any
) -> None:
    train, test = split_of(sizes), split_of([max(1, size // 5) for size in sizes], 1)
    found, code = dealt_or_refused(Active(clients, k, holders), train, test)
    if found is None:
        assert code in {"clients", "classes-per-client", "unheld-class", "thin-class", "unfillable-lists"}
        return
    rows, tests = found
    held, tested = (table(s.y, given_out, len(sizes)) for s, given_out in ((train, rows), (test, tests)))
    assert np.ptp(held.sum(1)) <= 1
    assert ((held > 0).sum(1) == k).all()
    assert len(rows.numbers) == len(train.y)
    assert np.array_equal(np.sort(tests.numbers), np.arange(len(test.y)))  # every test example once
    assert not (tested > 0)[held == 0].any()  # and none of a class that the client has never seen


def test_lists_that_cannot_be_filled_are_refused() -> None:
    with pytest.raises(
        PartitionError, match="2 circulant lists of 1 classes cannot be filled in equal parts"
    ) as refused:
        Active(2, 1).assign(split_of([30, 20]).y, None, rng())
    assert refused.value.code == "unfillable-lists"
    assert len(Active(2, 1).assign(split_of([20, 20]).y, None, rng())) == 2
    with pytest.raises(PartitionError) as refused:
        Active(4, 1, "random").assign(split_of([30, 10, 10, 10]).y, None, rng())
    assert refused.value.code == "unfillable-lists"
    for scheme, code in ((Active(2, 3), "classes-per-client"), (Active(2, 2, "other"), "unknown-choice")):  # type: ignore[arg-type]
        with pytest.raises(PartitionError) as refused:
            scheme.assign(split_of([20, 20]).y, None, rng())
        assert refused.value.code == code


def test_random_lists_are_drawn_again_until_they_can_be_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    totals, tries = np.array([12, 8, 10]), 0
    drawn = [
        np.array([[1, 1, 0], [1, 1, 0], [1, 1, 0], [0, 1, 1]], bool),
        np.array([[1, 1, 0], [1, 1, 0], [1, 0, 1], [0, 1, 1]], bool),
    ]
    assert [can_be_even(totals, holds) for holds in drawn] == [False, True]

    def lists(*rest: Any) -> Array:
        nonlocal tries
        tries += 1
        return drawn[tries - 1]

    monkeypatch.setitem(sordino.partition.HOLDERS, "random", lists)
    labels = split_of([12, 8, 10]).y
    held = table(labels, Active(4, 2, "random").assign(labels, None, rng()), 3)
    assert (tries, sorted(held.sum(1).tolist())) == (2, [7, 7, 8, 8])
    assert np.array_equal(held > 0, drawn[1])


# who is tested on what ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [IID(7), Classes(7, 3)], ids=repr)
def test_other_schemes_divide_test_examples_in_proportion(scheme: IID | Classes) -> None:
    train, test = split_of([60, 50, 70, 40, 80]), split_of([12, 10, 14, 8, 16], 1)
    rows = scheme.assign(train.y, None, rng(1))
    of, to = (part.y if scheme.reads_labels else np.zeros_like(part.y) for part in (train, test))  # else: of sizes
    ours, plain = scheme.match(train, rows, test, rng(5)), match_test(of, rows, to, rng(5))
    assert np.array_equal(ours.numbers, plain.numbers)
    assert np.array_equal(ours.starts, plain.starts)
    labels = scheme.relabel(train.y, rows, test.y, ours, rng(6))
    assert labels[0] is train.y
    assert labels[1] is test.y
    assert labels[2] == 5


# names ----------------------------------------------------------------------------------------------------------------


def same_names(train: Split, rows: RowNumbers, test: Split, tests: RowNumbers, names: tuple[Array, Array, int]) -> bool:
    """Has every client one name for each of its classes, 0 to k - 1, the same in training and test?"""
    y, y_test, k = names
    for mine, tested in zip(rows, tests, strict=True):
        pairs = {*zip(train.y[mine].tolist(), y[mine].tolist(), strict=True)}
        true, called = zip(*sorted(pairs), strict=True)
        if len(set(true)) < len(pairs) or sorted(called) != list(range(k)):
            return False
        if not {*zip(test.y[tested].tolist(), y_test[tested].tolist(), strict=True)} <= pairs:
            return False
    return True


def test_anonymous_clients_have_names_of_their_own() -> None:
    train, test = split_of([60] * 10), split_of([20] * 10, 1)
    scheme = Active(20, 3, anonymous=True)
    rows, tests = dealt(scheme, train, test)
    names = scheme.relabel(train.y, rows, test.y, tests, rng(4))
    assert same_names(train, rows, test, tests, names)
    assert np.array_equal(names[0], scheme.relabel(train.y, rows, test.y, tests, rng(4))[0])
    # of 20 permutations of 3 by chance about 3.3 are the same: all six occur, and none everywhere (6 (5/6)^20 < 0.16:
    # fixed seed)
    orders = {tuple(names[0][[mine[train.y[mine] == c][0] for c in np.unique(train.y[mine])]]) for mine in rows}
    assert len(orders) == 6
    # control: other names for the test examples, and one name for two classes
    other = scheme.relabel(train.y, rows, test.y, tests, rng(5))
    assert not same_names(train, rows, test, tests, (names[0], other[1], 3))
    assert not same_names(train, rows, test, tests, (np.minimum(names[0], 1), np.minimum(names[1], 1), 3))


SMALL = ["rounds=2", "algorithm=fedavg", "partition={scheme='active', clients=10, k=3}", "evaluation.final=1"]


def test_an_anonymous_federation_learns_and_is_tested_by_its_own_names() -> None:
    parts, plain = (simulated(config.load({}, [*SMALL, f"partition.anonymous={said}"])) for said in ("true", "false"))
    assert [list(rows) for rows in parts.population.shares[0]] == [list(rows) for rows in plain.population.shares[0]]
    assert parts.setup.task.init(1)["1.weight"].shape == (3, 64)
    assert plain.setup.task.init(1)["1.weight"].shape == (10, 64)
    true, told = plain.population.dataset, parts.population.named
    assert told.train.x is parts.population.dataset.train.x
    assert same_names(
        true.train,
        parts.population.shares[0],
        true.test,
        parts.population.shares[1],
        (told.train.y, told.test.y, told.classes),
    )
    again = simulated(parts.setup.experiment)  # as in another process
    assert np.array_equal(again.population.named.train.y, told.train.y)
    assert (
        parts.population.dataset.fingerprint() == plain.population.dataset.fingerprint()
    )  # the same people's data: one ledger
    for k in (0, 9):
        assert parts.site("run").shards[k].y.tolist() == told.train.y[parts.population.shares[0][k]].tolist()
    assert plain.population.named is plain.population.dataset
    # what a client learns holds for its own test examples, and not for the names of others
    task, mine, params = parts.setup.task, parts.site("run").shards[4], parts.setup.task.init(1)
    ready = task.ready(*mine)
    for _ in range(40):
        params = tree.formed(tree.axpy(-0.2, task.gradient(params, *ready, lambda: torch.zeros(0)), params))
    tested = parts.population.shares[1][4]
    x = torch.from_numpy(np.asarray(told.test.x[tested]))
    right, wrong = (
        float(task.score(params, Examples(x, torch.from_numpy(y)))["accuracy"].mean())
        for y in (told.test.y[tested], (told.test.y[tested] + 1) % 3)
    )
    assert right > 0.9
    assert wrong < 0.1


def test_names_hold_for_what_clients_hold_back() -> None:
    """One set for training and test, as with data.merge: every row is named by who has it, whichever part it is in."""
    experiment = config.load(
        {}, [*SMALL, "partition.anonymous=true", "data.source=images", "data.path=none", "data.merge=true"]
    )
    population, known = Population(experiment), Population(config.load({}, SMALL)).dataset
    vars(population)["dataset"] = replace(known, test=known.train)
    told = population.named
    assert np.array_equal(told.train.y, told.test.y)
    assert same_names(
        known.train,
        population.shares[0],
        known.train,
        population.shares[1],
        (told.train.y, told.test.y, told.classes),
    )
    assert min(population.shares[1].sizes) > 0


@pytest.mark.slow
def test_anonymous_augmented_clients_train_alike_looped_and_stacked(tmp_path: Path) -> None:
    words = [*SMALL, "partition.anonymous=true", "data.augment=crop_flip", "model=mlp", "model.hidden=8"]
    for executor in ("loop", "stack"):
        sordino.run(None, *words, f"engine.executor={executor}", out=tmp_path / executor)
    loop, stack = ((tmp_path / executor / "metrics.jsonl").read_text().splitlines() for executor in ("loop", "stack"))
    told = [[json.loads(line) for line in lines] for lines in (loop, stack)]
    assert [row["accuracy"] for row in told[0]] == [row["accuracy"] for row in told[1]]
    assert told[0][-1]["loss"] == pytest.approx(told[1][-1]["loss"], rel=1e-4)
    sordino.run(None, *words[:-3], *words[-2:], "engine.executor=loop", out=tmp_path / "plain")
    plain = json.loads((tmp_path / "plain" / "metrics.jsonl").read_text().splitlines()[-1])
    assert plain["loss"] != told[0][-1]["loss"]  # control: it was augmented
