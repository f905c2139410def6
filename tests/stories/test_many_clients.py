"""A million clients: what is said once for all of them is what was said of each, and nothing in a round grows with
them.

No clock is read: start-up and rounds are measured in calls of Python functions and in bytes.
"""

from __future__ import annotations

import gc
import math
import statistics
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sordino import config, keys
from sordino.data.dataset import Dataset, Split
from sordino.engine.server import FederatedServer
from sordino.metrics import Scores
from sordino.metrics.evaluation import LISTED, Evaluator
from sordino.partition import Natural, counts
from sordino.partition.row_numbers import RowNumbers
from sordino.receipts.receipt import _of_all, _spread, some_of
from sordino.receipts.verify import verify
from sordino.round import Outcome, one_round
from sordino.runs.population import Population
from sordino.runs.run import start
from sordino.runs.simulation import Simulation
from sordino.types import Examples


# partitions, sizes, weights -------------------------------------------------------------------------------------------
@settings(max_examples=60)
@given(st.lists(st.integers(-1, 6), max_size=40))
def test_rows_are_one_array_for_every_client(owner: list[int]) -> None:
    rows = RowNumbers.by_owner(np.array(owner, np.int64), 7)
    parts = [np.flatnonzero(np.array(owner) == k) for k in range(7)]
    assert [part.tolist() for part in rows] == [part.tolist() for part in parts]
    assert (len(rows), list(rows.sizes)) == (7, [len(part) for part in parts])
    assert rows.owners.tolist() == sorted(k for k in owner if k >= 0)
    assert all(part.base is not None for part in rows)  # views
    again = RowNumbers.of(parts)
    assert (again.numbers.tolist(), again.starts.tolist()) == (rows.numbers.tolist(), rows.starts.tolist())
    assert [part.tolist() for part in rows[-2:]] == [part.tolist() for part in parts[-2:]]
    for beyond in (7, -8):
        with pytest.raises(IndexError):
            rows[beyond]


@settings(max_examples=60)
@given(st.lists(st.integers(-5, 9), min_size=1, max_size=20), st.lists(st.integers(-6, 10), max_size=20))
def test_natural_clients_keep_their_own_test_rows(group: list[int], test: list[int]) -> None:
    train, held = np.array(group, np.int64), np.array(test, np.int64)
    splits = (Split(rows, np.zeros(len(rows), np.int64), rows) for rows in (train, held))
    matched = Natural().match(next(splits), RowNumbers.of([]), next(splits), np.random.default_rng(0))
    assert [rows.tolist() for rows in matched] == [np.flatnonzero(held == g).tolist() for g in np.unique(train)]


def test_poor_clients_are_filled_up_as_before(caplog: pytest.LogCaptureFixture) -> None:
    """The largest gives, the first of those that are alike: a queue finds it as a search through everybody did."""

    def by_search(held: NDArray[np.int64], least: int, rng: np.random.Generator) -> NDArray[np.int64]:
        held, sizes = held.copy(), held.sum(1)
        for poor in np.flatnonzero(sizes < least):
            for _ in range(least - sizes[poor]):
                rich = sizes.argmax()
                c = np.searchsorted(held[rich].cumsum(), rng.integers(sizes[rich]), side="right")
                held[[rich, poor], c] += [-1, 1]
                sizes[[rich, poor]] += [-1, 1]
        return held

    for seed in range(100):
        rng = np.random.default_rng(seed)
        held = rng.integers(0, 4, (rng.integers(2, 12), 3)) * rng.integers(0, 3, 3)
        least = int(held.sum() // len(held))
        first, second = np.random.default_rng(seed), np.random.default_rng(seed)
        assert (counts._repair(held.copy(), least, first) == by_search(held, least, second)).all()


# what a receipt says of all -------------------------------------------------------------------------------------------
@settings(max_examples=60)
@given(st.lists(st.sampled_from([0.25, 0.5, 0.75, 0.1]), max_size=9), st.integers(1, 12))
def test_the_spread_over_all_clients_is_found_from_those_who_took_part(spent: list[float], more: int) -> None:
    people = len(spent) + more
    every = [*spent, *[0.0] * more]
    told = {"min": min(every), "median": statistics.median(every), "max": max(every)}
    assert _spread(_of_all(spent, 0.0, people, False)).to_json() == told
    times = [round(4 * share) for share in spent]
    found = _spread(_of_all(times, 0, people, False))
    assert found.median == statistics.median([*times, *[0] * more])
    assert type(found.median) is type(statistics.median([*times, *[0] * more]))  # the same text in the receipt
    assert _spread(_of_all([0.3], 0.0, people, True)).to_json() == {"min": 0.3, "median": 0.3, "max": 0.3}
    assert _spread(_of_all([], 0, people, True)).to_json() == {"min": 0, "median": 0, "max": 0}


def test_a_page_shows_some_of_very_many() -> None:
    assert list(some_of(4, None)) == list(some_of(4, 4)) == [0, 1, 2, 3]
    assert list(some_of(10**6, 4)) == [0, 250_000, 500_000, 750_000]


# evaluation -----------------------------------------------------------------------------------------------------------
class Given:
    """A task whose scores are given."""

    scores: tuple[str, ...] = ()  # nothing is measured of all examples together
    always: tuple[str, ...] = ()

    def __init__(self, **scores: list[float]) -> None:
        self.metrics = tuple(scores)
        self.given = {name: torch.tensor(values, dtype=torch.float64) for name, values in scores.items()}

    def score(self, params: Any, examples: Examples) -> dict[str, torch.Tensor]:
        return self.given

    def constant(self, examples: Examples) -> None:
        return None


def evaluated(task: Given, rows: Any) -> Scores:
    some = next(iter(task.given.values()))
    return Evaluator(task, Examples(some, some.abs().long()), rows)({})  # type: ignore[arg-type]


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(-1, 25), st.integers(0, 1), st.floats(0, 9)), min_size=1, max_size=60), st.booleans()
)
def test_every_client_is_scored_as_if_alone(examples: list[tuple[int, int, float]], with_accuracy: bool) -> None:
    owner, right, loss = (list(column) for column in zip(*examples, strict=True))
    task = Given(accuracy=right, loss=loss) if with_accuracy else Given(loss=loss)
    metric, values = ("accuracy", right) if with_accuracy else ("loss", loss)
    found = evaluated(task, RowNumbers.by_owner(np.array(owner), 26))
    own = [[v for k, v in zip(owner, values, strict=True) if k == client] for client in range(26)]
    each = [statistics.fmean(mine) if mine else None for mine in own]
    assert found.loss == pytest.approx(statistics.fmean(loss))
    known = sorted((score for score in each if score is not None), reverse=metric == "loss")
    if not known:
        assert found.clients is None
        return
    told = found.clients
    assert told is not None
    assert told.metric == metric
    assert list(told.each or ()) == [score if score is None else pytest.approx(score) for score in each]
    assert told.mean == pytest.approx(statistics.fmean(known))
    assert told.std == pytest.approx(statistics.pstdev(known), abs=1e-9)
    assert told.worst_tenth == pytest.approx(statistics.fmean(known[: max(1, math.ceil(len(known) / 10))]))


def test_single_clients_are_listed_up_to_ten_thousand() -> None:
    for clients in (LISTED, LISTED + 1):
        rows = RowNumbers.by_owner(np.array([0, 5, clients - 1]), clients)
        told = evaluated(Given(accuracy=[1.0, 0.0, 1.0]), rows).clients
        assert told is not None
        assert (told.each is not None) == (clients == LISTED)
        assert told.mean == pytest.approx(2 / 3)


def test_an_evaluation_leaves_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str] = []

    def counted(name: str) -> Any:
        whole = getattr(torch.Tensor, name)
        return lambda self, *rest: (left.append(name), whole(self, *rest))[1]

    task = Given(accuracy=[1.0, 0.0, 1.0], loss=[1.0, 2.0, 3.0])
    some = task.given["accuracy"]
    evaluator = Evaluator(task, Examples(some, some.long()), RowNumbers.by_owner(np.array([0, 1, 1]), 3))  # type: ignore[arg-type]
    evaluator({})  # what never changes is counted once
    for name in ("item", "tolist", "__float__", "__int__", "__bool__", "cpu", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, counted(name))
    evaluator({})
    assert left == ["tolist"]
    float(torch.ones(1).sum())  # the counter counts
    assert left == ["tolist", "__float__"]


# a federation of a million --------------------------------------------------------------------------------------------
MILLION, THOUSAND = 10**6, 10**3


PLAIN = ("cohort={name='random', size=100}", "privacy={}")


PRIVATE = ("cohort={name='random', size=100}", "privacy={epsilon=8.0, delta=1e-7}", "algorithm={name='gaussian_gdp'}")


IN_TURN = (*PRIVATE[1:], "cohort={name='round_robin', size=100}")


def hidden(clients: int) -> tuple[str, ...]:
    uplink = "{client=[{name='clip', radius=1.0}], server=[{name='noise', neighbours='zero_out'}]}"
    return (
        f"cohort={{name='poisson', rate={100 / clients}}}",
        f"uplink={uplink}",
        "privacy={epsilon=8.0, delta=1e-7, schedule={name='linear_front'}}",
    )


@cache
def data(clients: int) -> Dataset:
    """One row of four numbers for every client, and a thousand to test on."""
    rng = np.random.default_rng(0)

    def split(rows: int) -> Split:
        x = rng.standard_normal((rows, 4)).astype(np.float32)
        return Split(x, (x[:, 0] > 0).astype(np.int64))

    return Dataset("stand-in", "table", 2, split(clients), split(1000), (0.0,) * 4, (1.0,) * 4)


class Crowd:
    """A federation on data from nowhere, ready for its first round."""

    def __init__(self, clients: int, *words: str, rounds: int = 3) -> None:
        few = [f"rounds={rounds}", f"partition={{scheme='iid', clients={clients}}}", "model={name='logistic'}"]
        algorithm = ["algorithm={name='fedavg', local_epochs=1, batch_size=10}"]
        population = Population(config.load(None, [*few, *algorithm, "engine={executor='loop'}", *words]))
        vars(population)["dataset"] = data(clients)
        self.parts = Simulation.of(population)
        self.federation = self.parts.federation(":memory:", "run")
        self.clients, self.server, self.t = self.parts.site("run"), self.parts.setup.state("server"), 0

    def watched(self) -> Crowd:
        """After a first round, which makes what is made once."""
        self.round()
        run, plan = self.federation, self.federation.plan
        vars(run).update(sizes=Watched(run.sizes), weights=Watched(run.weights))
        vars(plan).update(participations=Watched(plan.participations), reads=Watched(plan.reads))
        return self

    def round(self) -> Outcome:
        outcome = one_round(self.federation, self.server, self.t, self.clients)
        self.server, self.t = outcome.server, self.t + 1
        return outcome


class Watched(Sequence[Any]):
    """Numbers of all clients whose every use is a call of Python's, so that `max` or numpy cannot walk over them
    unseen.
    """

    def __init__(self, numbers: Sequence[Any]) -> None:
        self.numbers = numbers

    def __getitem__(self, k: Any) -> Any:
        return self.numbers[k]

    def __len__(self) -> int:
        return len(self.numbers)


def calls(work: Callable[[], Any]) -> int:
    """How often a function is called, of Python's or by Python of C's."""
    count = 0

    def seen(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def bytes_needed(work: Callable[[], Any]) -> int:
    """At once, by Python and numpy, beside what was there before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["plain", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("in turn", "private"))]
)
def test_the_work_of_a_round_does_not_know_how_many_clients_there_are(kind: str) -> None:
    words = {"plain": PLAIN, "private": PRIVATE, "in turn": IN_TURN}[kind]
    found = []
    for clients in (THOUSAND, MILLION):
        crowd = Crowd(clients, *words).watched()
        found.append(calls(crowd.round))
        assert bytes_needed(crowd.round) < MILLION / 4  # no array of a number, nor of a bit, for everybody
    small, large = found
    assert small > 100 * 10  # something was done
    assert abs(large - small) <= 0.1 * small


@pytest.mark.slow
def test_the_work_of_a_hidden_round_does_not_either() -> None:
    """Cohorts of random size: calls per client drawn, with what a round takes without any."""
    found = []
    for clients in (THOUSAND, MILLION):
        crowd = Crowd(clients, *hidden(clients)).watched()
        drawn: list[int] = []
        count = calls(lambda crowd=crowd, drawn=drawn: drawn.append(len(crowd.round().active)))  # type: ignore[misc]
        found.append(count / drawn[0])
        assert bytes_needed(crowd.round) < MILLION / 4
    assert abs(found[1] - found[0]) <= 0.1 * found[0]


@pytest.mark.slow
def test_a_walk_over_everybody_is_noticed() -> None:
    """Negative controls: the largest size looked for at every grant, as it once was, and a cohort out of a permutation
    of everybody.
    """

    class Slow(FederatedServer):
        largest = property(lambda self: max(self.sizes))  # type: ignore[assignment]

    small, large = (Crowd(clients, *PLAIN).watched() for clients in (THOUSAND // 2, 5 * THOUSAND // 2))
    before = calls(small.round)
    for crowd in (small, large):
        crowd.federation.__class__ = Slow
    assert before * 2 < calls(small.round) < calls(large.round) / 3
    assert bytes_needed(lambda: keys.permutation(1, MILLION)[:100]) > MILLION


@pytest.mark.parametrize(
    "kind", ["plain", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("in turn", "hidden"))]
)
@pytest.mark.slow
def test_an_idle_client_takes_at_most_64_bytes(kind: str) -> None:
    """Everything that start-up and a round leave behind, beside the data's own rows."""
    words = {"plain": PLAIN, "in turn": IN_TURN, "hidden": hidden(MILLION)}[kind]
    data(MILLION)  # neither it nor what is imported on the way is counted
    Crowd(THOUSAND, *words).round()
    tracemalloc.start()
    try:
        crowd = Crowd(MILLION, *words)
        crowd.round()
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] / MILLION
    finally:
        tracemalloc.stop()
    assert 8 < taken <= 64  # the row numbers alone take 8: the counter counts
    assert len(crowd.clients.states) <= 200  # made when a client first takes part
    assert len(crowd.federation.participations) <= 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "clients"),
    [
        ("plain", MILLION // 10),
        *(pytest.param(kind, MILLION, marks=pytest.mark.slow) for kind in ("plain", "private", "hidden")),
    ],
)
def test_a_run_of_a_million_clients_ends_with_a_receipt(kind: str, clients: int, tmp_path: Path) -> None:
    words = {"plain": PLAIN, "private": PRIVATE, "hidden": hidden(clients)}[kind]
    crowd = Crowd(clients, *words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Population, "dataset", crowd.parts.population.dataset)
        ended = start(crowd.parts.setup.experiment, tmp_path / "run")
        assert verify(tmp_path / "run") == []
    assert len(ended.metrics) == 3
    assert all(row.clients.each is None for row in ended.metrics if row.clients is not None)
    assert ended.receipt.clients == clients
    finite = [row for row in ended.receipt.guarantees if row.finite]
    assert bool(finite) == (kind != "plain")
    assert (tmp_path / "run" / "ledger.sqlite").stat().st_size < 200_000
    if kind != "plain":
        used = ended.receipt.budget.participations_used
        assert used.to_json() == (
            {"min": 3, "median": 3, "max": 3} if kind == "hidden" else {"min": 0, "median": 0, "max": 1}
        )
