"""Processes that help: the same bytes whoever computes, also where one of them dies, has no room, or meets an error."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from sordino import tree
from sordino.engine import forks, site
from sordino.engine.forks import Fork, Forks, ForksWork, SpeedSoFar, Templates, Unit, UnitAnswers
from sordino.fast import parallel
from sordino.fast.factored import ClientRows, Matrix, Scaled, Span
from sordino.fast.parallel import Ends, ProcessMessage, apart, whole
from sordino.privacy.noise.sources import Counter, SystemNoise
from sordino.types import NoiseSource
from tests.laws.cases import BY_NAME, Case
from tests.laws.traces import Trace, differences, finished

SECONDS = 0.002  # that a unit takes
TEMPLATES = Templates({"w": torch.zeros(3, 2)}, ())


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every round but the first is worth help."""
    monkeypatch.setattr(site, "LONG", 0.0)
    torch.set_num_threads(1)


def answer(k: int) -> UnitAnswers:
    time.sleep(SECONDS)
    return UnitAnswers([k], [{"w": torch.full((3, 2), float(k))}], [()])


def serve(ends: Ends) -> None:
    asked = ForksWork(ends, ())
    for (told, _), _ in asked:
        if told["do"] == "unit":
            asked.tell(told["number"], answer(told["clients"][0]), TEMPLATES)


def asked_of(
    many: int, serve: Callable[[Ends], None] = serve, units: int = 12
) -> tuple[Forks, Iterator[tuple[int, UnitAnswers]], list[int]]:
    """Forks at work, their answers, and the units that the asker did itself."""
    helpers, mine = Forks(many), list[int]()
    helpers.begin(serve, SECONDS)
    return helpers, helpers.map(0, {"w": torch.ones(2)}, (unit(k, mine) for k in range(units)), TEMPLATES), mine


def unit(k: int, mine: list[int] | None = None) -> Unit:
    def compute() -> UnitAnswers:
        if mine is not None:
            mine.append(k)
        return answer(k)

    return Unit([k], [{}], [()], 1.0, compute)


def numbers(found: Iterator[tuple[int, UnitAnswers]]) -> list[float]:
    """What came, of units that say the same by the order of their numbers and by their clients."""
    came = sorted((number, answers.clients[0], float(answers.uploads[0]["w"][2, 1])) for number, answers in found)
    assert all(client == value for _, client, value in came)
    return [value for *_, value in came]


@pytest.mark.one_fast
@pytest.mark.parametrize("many", [1, 2, 4])
def test_every_unit_is_answered_once(many: int) -> None:
    helpers, found, mine = asked_of(many)
    assert numbers(found) == list(range(12))
    assert len(mine) == 12 if many == 1 else len(mine) < 12
    helpers.close()


def test_what_a_dead_fork_owes_is_done_by_the_asker() -> None:
    helpers, found, mine = asked_of(2, serve=lambda ends: os._exit(1))
    assert (numbers(found), len(mine)) == (list(range(12)), 12)
    assert not helpers.begin(serve)  # and it is not called again


def test_what_a_fork_cannot_do_is_done_by_the_asker() -> None:
    def unable(ends: Ends) -> None:
        asked = ForksWork(ends, ())
        for (told, _), _ in asked:
            if told["do"] == "unit":
                asked.give_up(told["number"])

    helpers, found, mine = asked_of(3, serve=unable)
    assert (numbers(found), len(mine)) == (list(range(12)), 12)
    helpers.close()


def test_an_answer_of_another_look_is_not_taken() -> None:
    def other(ends: Ends) -> None:
        asked = ForksWork(ends, ())
        for (told, _), _ in asked:
            if told["do"] == "unit":
                asked.tell(told["number"], UnitAnswers([0], [{"v": torch.zeros(3, 2)}], [()]), TEMPLATES)

    helpers, found, mine = asked_of(2, serve=other)
    assert (numbers(found), len(mine)) == (list(range(12)), 12)
    helpers.close()


@pytest.mark.one_fast
@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_the_asker_counts_what_it_hands_on_and_not_its_waiting(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it gives away all units and waits for them."""
    monkeypatch.setattr("tests.engine.test_forks.SECONDS", 0.05)  # long beside what a busy machine makes of nothing
    helpers, found, _ = asked_of(2, units=4)
    for _ in found:
        time.sleep(seconds)
    assert seconds <= helpers.pace.answer < seconds + SECONDS / 2 < seconds + helpers.pace.unit
    helpers.close()


@pytest.mark.parametrize(
    ("free_in", "to_give", "theirs"),
    [
        (0.0, 0.0, True),  # the last unit, and a fork that has nothing to do: the asker goes on handing on
        (0.5, 0.0, False),  # the last unit: whoever is free sooner
        (0.5, 9.0, True),  # much is to come, and the fork would wait half as long as the asker takes
        (2.0, 9.0, True),  # it is all the same: small units are left to the asker
        (2.0, 1.0, False),  # the asker would end long before it
    ],
)
def test_a_unit_goes_to_whoever_ends_the_round_sooner(
    free_in: float, to_give: float, theirs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    helpers, fork = Forks(1), Mock()
    helpers._forks, helpers.pace = [fork], SpeedSoFar(unit=1.0)
    monkeypatch.setattr(forks.time, "perf_counter", lambda: 100.0)
    monkeypatch.setattr(helpers, "_free_at", lambda one: 100.0 + free_in)
    assert helpers._sooner(fork, cost=1.0, left=0.0, to_give=to_give) == theirs
    helpers.pace = SpeedSoFar(unit=1.0, answer=1.0)  # an asker with five seconds of answers to hand on gives it away
    assert helpers._sooner(fork, cost=1.0, left=5.0, to_give=0.0)
    helpers._forks.clear()


def test_whoever_wants_no_more_leaves_no_process() -> None:
    helpers, found, _ = asked_of(3)
    pids = [fork.pid for fork in helpers._forks]
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert not helpers.begin(serve)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_where_the_machine_gives_no_more_fewer_help(monkeypatch: pytest.MonkeyPatch) -> None:
    fork, made = os.fork, list[int]()

    def one_only() -> int:
        if made:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        made.append(fork())
        return made[0]

    monkeypatch.setattr(os, "fork", one_only)
    helpers, found, _ = asked_of(4)
    assert len(helpers._forks) == 1
    assert numbers(found) == list(range(12))
    helpers.close()


def test_a_signal_at_a_fork_is_the_askers_and_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes where a library's hook would swallow what is raised; then it ends the asker, and no fork is left."""
    heard, fork, made = list[int](), os.fork, list[int]()

    def handler(number: int, frame: object) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    def struck() -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(1000):
                pass
        except KeyboardInterrupt:  # as the interpreter does with what a hook raises
            heard.clear()
        if pid := fork():
            made.append(pid)
        return pid

    monkeypatch.setattr(os, "fork", struck)
    before = signal.signal(signal.SIGTERM, handler)
    helpers = Forks(3)
    try:
        with pytest.raises(KeyboardInterrupt):
            helpers.begin(serve, SECONDS)
        ignored = [ignores(pid, signal.SIGTERM) for pid in made]
    finally:
        signal.signal(signal.SIGTERM, before)
        helpers.close()
    assert heard == [signal.SIGTERM]
    assert ignored == [True, True]
    assert not any(Path(f"/proc/{pid}").exists() for pid in made)


def ignores(pid: int, number: int) -> bool:
    for _ in range(1000):  # a fork begins with it, and may not have begun
        line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigIgn"))
        if int(line.split()[1], 16) >> (number - 1) & 1:
            return True
        time.sleep(0.005)
    return False


def test_a_fork_ends_with_its_asker_and_holds_nothing_open(tmp_path: Path) -> None:
    """A lock that the asker holds is free when the asker is gone, though a fork still lives."""
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fork = Fork(serve)
        fork.say({"do": "round", "t": 0}, [])
        fork.say({"do": "unit", "number": 0, "clients": [1], "terms": [{}]}, [])
        assert fork.heard() is not None  # it has begun to live
    with open(tmp_path / "lock") as again:
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fork.ends.close()  # as when the asker is gone
    assert os.waitpid(fork.pid, 0)[0] == fork.pid


@pytest.mark.parametrize(("source", "shared"), [(SystemNoise(), False), (Counter(1), True)], ids=["real", "seeded"])
def test_real_noise_of_a_fork_is_its_own(source: NoiseSource, shared: bool) -> None:
    """Also where the asker has drawn from it before; seeded noise is the same, and so shows what would be seen."""
    source.words(4)
    fork = Fork(lambda ends: ends.say({}, [source.words(4)]))
    said = fork.heard()
    fork.end()
    assert said is not None
    assert torch.equal(said.tensors[0], source.words(4)) is shared


# words and tensors ----------------------------------------------------------------------------------------------------


def through(leaves: list[Matrix]) -> list[Matrix]:
    """Leaves as they arrive on the other side."""

    def echo(ends: Ends) -> None:
        while True:
            ends.say(*ends.hear())

    fork = Fork(echo)
    tensors: list[torch.Tensor] = []
    made = apart(leaves, tensors)
    fork.say({"made": made}, tensors)
    frame = fork.heard()
    fork.end()
    assert isinstance(frame, ProcessMessage)
    return whole(frame.values["made"], iter(frame.tensors))


@pytest.mark.one_fast
@pytest.mark.parametrize("room", [parallel.ROOM, 4096, 0], ids=["in memory", "some of it", "through the pipe"])
def test_everything_arrives_as_it_was(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ends, "room", lambda self, size: self._used + size <= room)
    rows = ClientRows(torch.randn(7, 5))
    leaves: list[Matrix] = [
        Span(rows, torch.randn(7, 3)),
        Scaled(torch.randn(400, 3), 0.1 + 0.2),
        torch.randn(2, 3, dtype=torch.float64).t(),
        torch.tensor(float("nan")),
        torch.zeros(0, 4),
        torch.randn(9).to(torch.bfloat16),
        torch.tensor([True, False]),
        torch.tensor(2**62 + 1),
        torch.tensor([-3], dtype=torch.int16),
    ]
    for before, after in zip(leaves, through(leaves), strict=True):
        assert type(before) is type(after)
        assert (before.shape, before.dtype) == (after.shape, after.dtype)
        for part, same in zip(parts_of(before), parts_of(after), strict=True):
            assert torch.equal(part.nan_to_num(7), same.nan_to_num(7))


def parts_of(leaf: Matrix) -> list[torch.Tensor]:
    if isinstance(leaf, Span):
        return [leaf.c, leaf.rows.x]
    return [leaf.x, torch.tensor(leaf.factor)] if isinstance(leaf, Scaled) else [leaf]


def test_what_is_said_twice_in_a_round_lies_in_two_places() -> None:
    """A round may be asked for in parts, and the answers to all of them are looked at together."""
    helpers, found, _ = asked_of(2)
    first = list(found)
    again = list(helpers.map(0, {"w": torch.ones(2)}, [unit(k) for k in range(100, 112)], TEMPLATES))
    assert numbers(iter(first)) == list(range(12))
    assert numbers(iter(again)) == list(range(100, 112))
    helpers.close()


# whole runs -----------------------------------------------------------------------------------------------------------

SMALL = {"scheme": "iid", "clients": 60}  # so few images that an update is told by coefficients
WAYS = {
    "sums": Case(
        "fedavg", {"name": "fedavg"}, cohort={"name": "everyone"}, model={"name": "mlp"}, more={"partition": SMALL}
    ),
    "coefficients": Case(  # of clients one by one, since who is late is left out
        "fedavg",
        {"name": "fedavg"},
        cohort={"name": "everyone"},
        model={"name": "mlp"},
        more={"partition": SMALL, "stragglers": {"share": 0.2, "policy": "late"}},
    ),
    "states": BY_NAME["scaffold"],
    "a shared pass, noise": BY_NAME["gaussian_gdp"],
}


def traced(case: Case, folder: Path, workers: int) -> Trace:
    return finished(case.experiment(engine={"workers": workers}), folder)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trace]:
    """Each run by one process, made once."""
    return cache(lambda way: traced(WAYS[way], tmp_path_factory.mktemp("alone") / "run", 1))


@pytest.mark.one_fast
@pytest.mark.parametrize("way", WAYS)
def test_forks_change_no_byte(
    way: str, alone: Callable[[str], Trace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = list[Any]()
    monkeypatch.setattr(forks, "whole", lambda made, of: done.append(made) or whole(made, of))
    assert differences(alone(way), traced(WAYS[way], tmp_path / "three", 3)) == []
    assert done  # by others, who were able to do it


@pytest.mark.slow
def test_a_fork_that_is_killed_changes_no_byte(
    alone: Callable[[str], Trace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give = Fork.give

    def killed(self: Fork, number: int, unit: Unit) -> bool:
        done = give(self, number, unit)
        os.kill(self.pid, signal.SIGKILL)
        return done

    monkeypatch.setattr(Fork, "give", killed)
    assert differences(alone("states"), traced(WAYS["states"], tmp_path / "three", 3)) == []


@pytest.mark.slow
def test_the_law_catches_answers_that_are_written_out(
    alone: Callable[[str], Trace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken twin: a fork sends the upload itself in place of its coefficients, and sums are rounded elsewhere."""

    def formed(leaves: Any, into: list[torch.Tensor]) -> list[str]:
        return apart([tree.formed(leaf) for leaf in leaves], into)

    monkeypatch.setattr(forks, "apart", formed)
    assert "model" in differences(alone("coefficients"), traced(WAYS["coefficients"], tmp_path / "run", 3))


@pytest.mark.slow
def test_the_law_catches_sums_that_are_rounded(
    alone: Callable[[str], Trace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken twin: a fork sends its sum in the precision of one upload."""

    def rounded(leaves: Any, into: list[torch.Tensor]) -> list[str]:
        return apart([leaf.float().double() if leaf.dtype == torch.float64 else leaf for leaf in leaves], into)

    monkeypatch.setattr(forks, "apart", rounded)
    assert "model" in differences(alone("sums"), traced(WAYS["sums"], tmp_path / "run", 3))


def test_nobody_is_forked_beside_torchs_own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not Forks(3).begin(lambda ends: None)
