"""What is recorded for a GPU depends on its arguments alone. A recording is played here by the function of its first
call, on the memory of its first call: as the GPU would, which runs no Python any more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sordino import tree
from sordino.fast import graphs, pure
from tests.laws.cases import BY_NAME
from tests.laws.test_executors import CLOSE, apart, paid
from tests.laws.traces import finished

plays: list[int] = []


class Played:
    def __init__(self, of: Callable[..., list[Tensor]], like: list[Tensor]) -> None:
        self._of, self._given = of, [one.clone() for one in like]

    def play(self, given: list[Tensor]) -> list[Tensor]:
        plays.append(1)
        torch._foreach_copy_(self._given, given)
        return [one.clone() for one in self._of(*self._given)]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor, taken for a GPU."""
    plays.clear()
    monkeypatch.setattr(graphs, "_Recording", Played)
    monkeypatch.setattr(graphs, "_recordable", lambda given: all(type(one) is torch.Tensor for one in given))


@pytest.mark.one_fast
@pytest.mark.parametrize("name", ["scaffold", pytest.param("moon", marks=pytest.mark.slow), "cuag_pfl_published"])
def test_a_run_of_recordings_is_the_same_run(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    experiment = BY_NAME[name].experiment()
    here = finished(experiment, tmp_path / "plain")
    request.getfixturevalue("recorded")
    away = finished(experiment, tmp_path / "recorded")
    assert [paid(entry) for entry in here.ledger] == [paid(entry) for entry in away.ledger]
    assert apart(tmp_path / "plain", tmp_path / "recorded") < CLOSE
    assert plays


class Owner:
    replays = True


@pure
def doubled(owner: Owner, params: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    return {name: 2 * value + x for name, value in params.items()}


def test_a_function_that_looks_elsewhere_is_found(recorded: None) -> None:
    """The broken twin: its later answers are those of its first call."""
    owner, x = Owner(), torch.ones(2)

    def asked(secret: float) -> float:
        return float(graphs.replayed(owner, "twin", lambda p, x: {"w": p["w"] + x * secret}, {"w": x}, x)["w"][0])

    assert [asked(float(i)) for i in range(5)] != [1 + float(i) for i in range(5)]


def test_only_what_is_declared_has_recordings(recorded: None) -> None:
    owner = Owner()
    assert graphs.owner_of(partial(doubled, owner)) is owner
    assert graphs.owner_of(lambda params, x: params) is None
    assert graphs.owner_of(partial(doubled, owner, x=torch.ones(1))) is None
    assert graphs.owner_of(partial(doubled, object())) is None


def test_other_shapes_are_other_recordings_and_few_are_kept(recorded: None) -> None:
    owner = Owner()
    for size in range(1, 40):
        for call in range(5):
            x = torch.full((size,), float(call))
            found = graphs.replayed(owner, "more", lambda p, x: doubled(owner, p, x), {"w": x}, x)
            assert torch.equal(found["w"], 3 * x)
    assert sum(isinstance(one, Played) for one in vars(owner)[graphs.KEPT].values()) == graphs.MOST


def test_one_kernel_for_all_leaves_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = ({name: torch.randn(3, generator=torch.Generator().manual_seed(s)) for name in "vw"} for s in (1, 2))

    def all_of() -> list[float]:
        walked = tree.descend({name: value.clone() for name, value in a.items()}, 0.1, b, None)
        found = tree.sub(a, b), tree.axpy(0.3, a, b), tree.scale(0.7, a), tree.times(torch.tensor(0.3), a), walked
        return [*tree.flat(found).tolist(), float(tree.norm(a)), float(tree.norm(a, 1))]

    one_by_one = all_of()
    monkeypatch.setattr(tree, "_on_gpu", lambda *trees: True)
    assert all_of() == one_by_one
