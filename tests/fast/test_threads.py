"""Several clients at once on threads: the same answers in the same order, errors told, nobody left at work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sordino import config, keys, tree
from sordino.algorithms import all_algorithms
from sordino.algorithms.fedavg import Client, FedAvg, Server, Up
from sordino.algorithms.scaffold import Scaffold
from sordino.fast.parallel import Threads
from sordino.runs.simulation import simulated
from sordino.tasks.quadratic import Quadratic
from sordino.tasks.supervised import Classification
from sordino.types import Shard, Task
from tests.laws.cases import Case
from tests.laws.traces import differences, finished

NETS: dict[str, dict[str, Any]] = {
    "a chain": {"name": "mlp"},
    "a network with a graph": {"name": "tests.fast.test_threads:Graph"},
}


class Graph(torch.nn.Module):
    """No chain of known layers, so autograd goes the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(64, 32), torch.nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.two(torch.tanh(self.one(x.flatten(1))))
        return z


class Drawing(Graph):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn(()) if self.training else x)


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are worth it however little there is to do."""
    monkeypatch.setattr("sordino.fast.parallel.HEAVY", 0)


def test_nobody_takes_the_network_while_clients_train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first state of a new client is made of a model: before the round, and not in the middle of it."""
    case = Case("scaffold", {"name": "scaffold", "local_steps": 1}, model=NETS["a network with a graph"])
    trains, taken = Scaffold.local, Classification.init
    at_work, wrong = [0], []

    def local(*asked: Any) -> Any:
        at_work[0] += 1
        found = trains(*asked)
        at_work[0] -= 1
        return found

    def init(self: Classification, key: keys.Key) -> Any:
        wrong.append(at_work[0])
        return taken(self, key)

    monkeypatch.setattr(Scaffold, "local", local)
    monkeypatch.setattr(Classification, "init", init)
    finished(case.experiment(cohort={"name": "everyone"}), tmp_path / "run")
    assert wrong
    assert not any(wrong)


def several(many: int = 3) -> Threads:
    return Threads(Quadratic(2), many, lambda: Quadratic(2))


def test_answers_come_in_the_order_of_the_questions() -> None:
    first = threading.Event()

    def work(task: Task, unit: int) -> int:
        if unit == 0:
            assert first.wait(10)  # the second answer is there before the first
        if unit == 1:
            first.set()
        return unit * unit

    assert list(several().map(work, range(20))) == [unit * unit for unit in range(20)]


def test_each_thread_has_a_task_of_its_own() -> None:
    both, seen = threading.Barrier(2, timeout=10), []

    def work(task: Task, unit: int) -> None:
        seen.append(id(task))
        both.wait()

    list(several(2).map(work, range(2)))
    assert len(set(seen)) == 2


def test_few_questions_are_asked_ahead() -> None:
    asked = []

    def units() -> Iterator[int]:
        for unit in range(100):
            asked.append(unit)
            yield unit

    answers = several(2).map(lambda task, unit: unit, units())
    assert next(answers) == 0
    assert len(asked) <= 4
    answers.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("many", [1, 3])
def test_an_error_is_told_and_nobody_stays_at_work(many: int) -> None:
    ended = []

    def work(task: Task, unit: int) -> int:
        if unit == 2:
            raise ValueError("this one")
        ended.append(unit)
        return unit

    pool = several(many)
    with pytest.raises(ValueError, match="this one"):
        list(pool.map(work, range(50)))
    count = len(ended)
    assert count < 50
    assert list(pool.map(lambda task, unit: unit, range(5))) == [0, 1, 2, 3, 4]  # and goes on to work
    assert len(ended) == count


def test_one_question_starts_no_thread() -> None:
    before = threading.active_count()
    assert list(several().map(lambda task, unit: threading.current_thread(), [1])) == [threading.main_thread()]
    assert threading.active_count() == before


def test_threads_compute_with_as_many_torch_threads() -> None:
    assert set(several().map(lambda task, unit: torch.get_num_threads(), range(8))) == {torch.get_num_threads()}


def test_threads_that_would_wait_for_each_other_are_not_asked() -> None:
    found = several().map(lambda task, unit: threading.current_thread(), range(9), lambda unit: unit > 0)
    assert set(found) == {threading.main_thread()}


# who may have several -------------------------------------------------------------------------------------------------
def threads(**tables: Any) -> int:
    made = simulated(config.validate({"privacy": {}, "algorithm": {"name": "fedavg"}} | tables))
    place = made.site("run")
    assert place.threads is not None
    return place.threads.many


def test_what_somebody_else_wrote_is_asked_by_one_thread_unless_more_are_wanted() -> None:
    own = {"model": {"name": "tests.fast.test_threads:Graph"}}
    assert threads(engine={"workers": 3}) == 3
    assert threads(engine={"workers": 3}, **own) == 3
    assert threads(**own) == 1


def test_a_network_that_draws_from_torchs_generator_is_asked_by_one_thread() -> None:
    assert threads(engine={"workers": 3}, model={"name": "tests.fast.test_threads:Drawing"}) == 1


class Counting(FedAvg):
    """Broken twin: what a client learns depends on who else is at work."""

    calls = 0

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: keys.Key) -> tuple[Up, Client]:
        Counting.calls += 1
        calls = Counting.calls
        up, state = super().local(task, down, c, shard, key)
        return Up(tree.scale(1.0 + (Counting.calls > calls), up.delta)), state


@pytest.mark.one_fast
@pytest.mark.parametrize("net", NETS)
def test_the_number_of_threads_changes_no_byte(net: str, tmp_path: Path) -> None:
    case = Case("fedavg", {"name": "fedavg"}, model=NETS[net])
    one = finished(case.experiment(engine={"workers": 1, "executor": "loop"}), tmp_path / "one")
    assert differences(one, finished(case.experiment(), tmp_path / "three")) == []


@pytest.mark.slow
def test_the_law_catches_clients_that_see_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(all_algorithms(), "counting", Counting)
    case = Case("counting", {"name": "counting"})
    one = finished(case.experiment(engine={"workers": 1, "executor": "loop"}), tmp_path / "one")
    threes = (finished(case.experiment(), tmp_path / str(i)) for i in range(20))
    assert any("model" in differences(one, three) for three in threes)
