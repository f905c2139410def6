"""Several processes of one run, each on an accelerator: the pretended one, and a real one where there is one."""

from __future__ import annotations

import hashlib
import subprocess
import types
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from sordino import config
from sordino.engine.executor import device_of
from sordino.errors import ConfigError, SordinoError
from sordino.planning.methods import Methods
from sordino.runs import ranks, run
from sordino.runs.run import start
from sordino.runs.setup import decided
from sordino.transport import message
from tests.helpers.prepared_runs import tiny
from tests.laws import warm
from tests.laws.cases import BY_NAME
from tests.laws.test_executors import paid
from tests.laws.traces import finished, trace
from tests.pretended import DEVICE, accelerator
from tests.runs.test_ranks import forked

WATCHED = "tests.runs.watched_workers"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "gaussian_gdp", "udp"])
def test_ranks_elsewhere_are_the_same_ranks(name: str, tmp_path: Path) -> None:
    """The pretended accelerator computes as the processor does: no byte may differ. Sums, and single uploads."""
    (tmp_path / "e.toml").write_text(BY_NAME[name].experiment(engine={"executor": "ranks"}).toml())
    here = forked(2, "run", tmp_path / "e.toml", "--out", tmp_path / "here")
    away = forked(2, "away", "run", tmp_path / "e.toml", "--out", tmp_path / "away", module=WATCHED)
    assert (here.returncode, away.returncode) == (0, 0), here.stderr + away.stderr
    assert trace(tmp_path / "here") == trace(tmp_path / "away")


@pytest.mark.slow
def test_what_one_rank_leaves_behind_is_found(tmp_path: Path) -> None:
    """The broken twin: the last rank does not move its rows."""
    (tmp_path / "e.toml").write_text(BY_NAME["scaffold"].experiment(engine={"executor": "ranks"}).toml())
    done = forked(2, "left_behind", "run", tmp_path / "e.toml", "--out", tmp_path / "run", module=WATCHED)
    assert done.returncode != 0
    assert "LeftBehind" in done.stderr


@pytest.mark.slow
def test_a_preparation_is_played_elsewhere(tmp_path: Path) -> None:
    """Phases, and what they hand out. The dropout of the discriminator is another one there, so bytes may differ."""
    (tmp_path / "e.toml").write_text(tiny(engine={"executor": "ranks"}).toml())
    away = forked(2, "away", "run", tmp_path / "e.toml", "--out", tmp_path / "away", module=WATCHED)
    assert away.returncode == 0, away.stderr
    here = finished(tiny(), tmp_path / "here")
    assert [paid(entry) for entry in trace(tmp_path / "away").ledger] == [paid(entry) for entry in here.ledger]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "gaussian_gdp"])
def test_client_processes_elsewhere_are_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Server and clients each move what they are sent."""
    engine = {"executor": "processes", "workers": 2}
    here = finished(BY_NAME[name].experiment(engine=engine), tmp_path / "here")
    monkeypatch.setattr(message, "subprocess", watching("client"))
    monkeypatch.setattr(run, "device_of", lambda name: str(DEVICE))
    with accelerator():
        away = finished(BY_NAME[name].experiment(engine=engine), tmp_path / "away")
    assert here == away


@pytest.mark.slow
def test_what_a_client_process_leaves_behind_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: a client process that does not move its rows."""
    monkeypatch.setattr(message, "subprocess", watching("client_left_behind"))
    with pytest.raises(SordinoError):
        start(BY_NAME["scaffold"].experiment(engine={"executor": "processes", "workers": 2}), tmp_path / "run")


def watching(play: str) -> Any:
    """What starts client processes that are watched."""

    def started(arguments: list[str], **more: Any) -> warm.Process:
        return warm.Process([*arguments[:2], WATCHED, play, *arguments[3:]], **more)

    return types.SimpleNamespace(Popen=started, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)


# which one ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that says it has three."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)


@pytest.mark.parametrize("name", ["cuda", "auto"])
def test_every_process_takes_that_of_its_number(name: str, three: None) -> None:
    assert [device_of(name, number) for number in range(4)] == ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]
    assert device_of(name) == "cuda"
    assert device_of("cpu", 1) == "cpu"


def test_where_there_is_none_every_process_says_so() -> None:
    if not torch.cuda.is_available():
        assert device_of("auto", 1) == "cpu"
        with pytest.raises(ConfigError) as refusal:
            device_of("cuda", 1)
        assert refusal.value.code == "no-such-device"


def test_there_are_as_many_client_processes_as_accelerators(three: None) -> None:
    asked = config.validate({"engine": {"device": "auto", "executor": "processes"}})
    engine = decided(asked.engine, Methods(asked).training)
    assert (engine.device, engine.workers) == ("cuda", 3)


@pytest.mark.parametrize("executor", ["processes", "ranks"])
def test_one_that_was_named_is_not_shared(executor: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        config.validate({"engine": {"device": "cuda:1", "executor": executor}})
    assert refusal.value.code == "device-of-many"
    for name in ("cuda", "auto"):
        assert config.validate({"engine": {"device": name, "executor": executor}}).engine.device == name


class Heard:
    """torch.distributed, as the first of several ranks finds it whose accelerators have these names."""

    def __init__(self, names: Sequence[str], nccl: bool) -> None:
        self._names, self._nccl = names, nccl
        self.added: list[str] = []

    def init_process_group(self, backend: str, timeout: timedelta) -> None:
        assert backend == "gloo"
        assert timeout >= timedelta(hours=12)  # candidates and networks of the server may take so long

    def get_rank(self) -> int:
        return 0

    def get_world_size(self) -> int:
        return len(self._names)

    def is_nccl_available(self) -> bool:
        return self._nccl

    def all_gather(self, told: list[torch.Tensor], mine: torch.Tensor) -> None:
        for place, name in zip(told, self._names, strict=True):
            digest = hashlib.sha256(name.encode()).digest()
            place.copy_(torch.frombuffer(bytearray(digest), dtype=torch.uint8))
        assert torch.equal(told[0], mine)

    def new_group(self, backend: str, timeout: timedelta) -> str:
        return backend

    def all_reduce(self, numbers: torch.Tensor, group: str = "gloo") -> None:
        self.added.append(group)


@pytest.mark.parametrize(
    ("device", "names", "nccl", "adds"),
    [
        ("cuda:0", ["a", "b"], True, "nccl"),
        ("cuda:0", ["a", "a"], True, "gloo"),  # two ranks share one
        ("cuda:0", ["a", "b"], False, "gloo"),  # a torch that was built without it
        ("cpu", ["rank 0", "rank 1"], True, "gloo"),
    ],
)
def test_sums_go_by_nccl_where_every_rank_has_its_own(
    device: str, names: list[str], nccl: bool, adds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard(names, nccl)
    monkeypatch.setattr(ranks, "dist", heard)
    named = types.SimpleNamespace(uuid=names[0])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: named)
    team = ranks.RankTeam()
    for _ in range(2):  # in every phase they meet again
        team.meet(device)
    team.sum({"w": torch.ones(2)})
    assert heard.added == [adds]
