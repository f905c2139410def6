"""Client states: what is put in comes out, wherever it lies in between, and a checkpoint does not show the way it went."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sordino import tree
from sordino.engine import checkpoint, client_states
from sordino.engine.client_states import States, shape_of, unpacked
from tests.laws.cases import BY_NAME
from tests.laws.traces import differences, finished, interrupted

quick = settings(derandomize=True, deadline=None, max_examples=50)


class State(NamedTuple):
    c: dict[str, Tensor]
    turns: Tensor


def state(number: int) -> State:
    half = torch.full((3,), float(number), dtype=torch.bfloat16)
    return State({"w": torch.full((2, 2), float(number)), "b": half}, torch.tensor(number))


EMPTY = state(0)


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


@pytest.fixture(params=["memory", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path | None:
    if request.param == "memory":
        return None
    monkeypatch.setattr(client_states, "BUDGET", 200)  # four rows
    monkeypatch.setattr(client_states, "FEWEST", 2)
    return tmp_path


PUT = st.lists(st.tuples(st.integers(0, 10**9) | st.integers(0, 5), st.integers(0, 99)), max_size=30)


@given(PUT)
@quick
def test_what_is_put_in_comes_out(put: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_states, "FEWEST", 2)
        states, known = States(EMPTY), dict[int, State]()
        for client, number in put:
            states[client] = known[client] = state(number)
        assert dict.fromkeys(states) == dict.fromkeys(sorted(known))
        assert checkpoint.digest_trees(states.trees(live=True)) == checkpoint.digest_trees(states.trees())
        assert len(states) == len(known)
        assert all(same(states[client], kept) for client, kept in known.items())
        assert states.get(-1) is None


def test_a_state_is_read_as_a_copy(place: Path | None) -> None:
    """Otherwise an upload that holds the old state would change when the new one is put away."""
    states = States(EMPTY, place)
    for client in range(20):
        states[client] = state(client)
    before = states[7]
    states[7] = state(8)
    assert same(before, state(7))
    before.c["w"].zero_()
    assert same(states[7], state(8))
    assert same(states[19], state(19))


def test_many_states_lie_in_files_of_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[Path] = []
    whole = client_states._mapped
    monkeypatch.setattr(client_states, "_mapped", lambda *made: (places.append(made[0]), whole(*made))[1])
    monkeypatch.setattr(client_states, "BUDGET", 102_400)
    states = States((torch.zeros(100),), tmp_path)
    for client in range(200):
        states[client] = (torch.full((100,), float(client)),)
    assert places == []  # 256 rows of 400 bytes are in the budget
    for client in range(0, 10**9, 10**6):
        states[client] = (torch.full((100,), float(client)),)
    assert set(places) == {tmp_path}
    assert list(tmp_path.iterdir()) == []  # without a name: nothing stays behind when the process is killed
    assert all(states[client][0][99] == client for client in (1, 199, 999 * 10**6))


def test_a_full_disk_is_an_error_and_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(client_states.os, "posix_fallocate", full, raising=False)
    monkeypatch.setattr(client_states, "BUDGET", 0)
    with pytest.raises(OSError, match="No space"):
        States(EMPTY, tmp_path)[1] = state(1)


def kept(directory: Path, trees: dict[str, Any]) -> States:
    """Through a checkpoint and back."""
    checkpoint.save(directory, 1, trees, {})

    def shapes(name: str) -> Any:
        return EMPTY if name == "server" else shape_of(name, EMPTY)

    loaded = checkpoint.load(directory, shapes)
    assert loaded is not None
    return States(EMPTY).restore(loaded.trees)


def test_a_checkpoint_does_not_show_who_came_first(place: Path | None, tmp_path: Path) -> None:
    one, other = States(EMPTY, place), States(EMPTY)
    for client in (5, 3, 10**9, 4):
        one[client] = state(client % 97)
    for client in (10**9, 3, 4, 5):
        other[client] = state(1)
        other[client] = state(client % 97)
    assert checkpoint.digest_trees(one.trees()) == checkpoint.digest_trees(other.trees())
    again = kept(tmp_path / "checkpoints", {"server": EMPTY, **one.trees()})
    assert list(again) == [3, 4, 5, 10**9]
    assert all(same(again[client], one[client]) for client in one)
    other[4] = state(2)  # negative control
    assert checkpoint.digest_trees(one.trees()) != checkpoint.digest_trees(other.trees())


def test_a_checkpoint_with_a_tree_for_every_client_is_still_read(tmp_path: Path) -> None:
    again = kept(tmp_path, {"server": EMPTY, "clients/7": state(1), "clients/12": state(2)})
    assert {client: int(again[client].turns) for client in again} == {7: 1, 12: 2}


def test_nobody_yet(tmp_path: Path) -> None:
    assert States(EMPTY).trees() == {}
    assert len(kept(tmp_path, {"server": EMPTY})) == 0
    nothing = States(())  # an algorithm whose clients keep nothing
    nothing[3] = ()
    assert (list(nothing), nothing[3]) == ([3], ())
    assert [client for name, found in nothing.trees().items() for client, _ in unpacked(name, found)] == [3]


def test_a_state_of_another_shape_is_kept_as_it_came() -> None:
    """The law of shapes refuses it elsewhere; here it must not be bent into the others' form."""
    states = States(EMPTY)
    states[1], states[2] = state(1), State({"w": torch.ones(1)}, torch.tensor(2.0))
    states[1] = State({"w": torch.ones(3)}, torch.tensor(1))
    assert states[1].c["w"].shape == (3,)
    assert states.trees().keys() == {"clients/1", "clients/2"}
    states[1] = state(4)
    assert same(states[1], state(4))
    assert states.trees().keys() == {"states/1", "clients/2"}


@pytest.mark.one_fast
@pytest.mark.parametrize("resumed", [False, True])
def test_a_run_whose_states_lie_in_files_is_the_same_run(
    resumed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = BY_NAME["scaffold"]
    plain = finished(case.experiment(), tmp_path / "plain")
    mapped: list[Any] = []
    whole = client_states._mapped
    monkeypatch.setattr(client_states, "BUDGET", 0)
    monkeypatch.setattr(client_states, "_mapped", lambda *made: (mapped.append(made), whole(*made))[1])
    apart = (interrupted if resumed else finished)(case.experiment(), tmp_path / "apart")
    assert mapped
    assert differences(plain, apart) == []


def test_states_that_are_saved_at_once_are_not_copied(place: Path | None) -> None:
    states = States(EMPTY, place)
    for client in range(9):
        states[client] = state(client)
    begins = {
        live: [leaf.data_ptr() for leaf in tree.leaves(states.trees(live)["states/9"].states)] for live in (True, False)
    }
    assert begins[True] == [column.data_ptr() for column in states._columns]
    assert not {*begins[True]} & {*begins[False]}
