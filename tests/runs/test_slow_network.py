"""Clients as processes of their own on a slow network: the same numbers, only later; and who is silent is not waited
for.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import types
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from sordino import config, tree
from sordino.errors import ConfigError, UnsoundGuarantee
from sordino.receipts.folder import RunFolder
from sordino.runs.play import Progress
from sordino.runs.run import start
from sordino.runs.site_process import SlowNetwork
from sordino.transport import message
from tests.laws import warm

Table = dict[str, Any]
TEN: Table = {
    "rounds": 3,
    "partition": {"scheme": "iid", "clients": 10},
    "cohort": {"name": "random", "size": 2},
    "algorithm": {"name": "fedavg", "lr": 0.5, "local_steps": 2, "batch_size": 32},
    "privacy": {},
    "evaluation": {"every": 3, "final": 1},
}


def made(
    network: Table | None = None, executor: str = "processes", workers: int = 10, **more: Any
) -> config.Experiment:
    engine = {"executor": executor, "workers": workers, "network": network or {}}
    return config.validate({**TEN, **more, "engine": engine})


def model(folder: Path) -> torch.Tensor:
    return tree.flat(safetensors.torch.load_file(folder / "model.safetensors"))


def test_waiting_is_in_proportion_to_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    device = SlowNetwork(latency_ms=20.0, down_mbit=8.0, up_mbit=2.0, compute=3.0)
    ticks = iter([0.0, 2.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(ticks))
    assert device.behind(lambda message: bytes(500_000))(bytes(1_000_000)) == bytes(500_000)
    assert slept == pytest.approx([0.02 + 1.0, 4.0, 0.02 + 2.0])  # down; what took 2 s takes 6 there; up
    slept.clear()
    device.receive(500_000)  # what everybody is handed once
    assert slept == pytest.approx([0.02 + 0.5])
    at_once = len
    assert SlowNetwork().behind(at_once) is at_once  # type: ignore[arg-type, comparison-overlap]


@pytest.mark.parametrize(
    "network",
    [
        {"latency_ms": -1.0},
        {"down_mbit": 0.0},
        {"up_mbit": -2.0},
        {"compute": 0.5},
        {"timeout_s": 0.0},
        {"latency_ms": [5.0, -1.0]},
        {"down_mbit": []},
        {"up_mbit": [0.0]},
        {"compute": [1.0, 0.5]},
    ],
)
def test_networks_that_are_none(network: Table) -> None:
    with pytest.raises(ConfigError):
        made(network)


def test_each_process_has_a_way_of_its_own() -> None:
    network = made({"latency_ms": [5.0, 50.0], "up_mbit": [20.0, 2.0], "down_mbit": 8.0}).engine.network
    ways = [SlowNetwork(**network.of(process)) for process in range(3)]
    assert ways[:2] == [SlowNetwork(5.0, 8.0, 20.0), SlowNetwork(50.0, 8.0, 2.0)]
    assert ways[2] == ways[0]  # in turn


# runs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
def test_ten_devices_on_a_slow_network_are_the_simulator(tmp_path: Path) -> None:
    """Check 10, and the real-device test: ten processes, injected latency and bandwidth."""
    start(made(executor="loop"), tmp_path / "loop")
    network = {"latency_ms": 30.0, "down_mbit": 5.0, "up_mbit": 1.0, "timeout_s": 60.0}
    start(made(network), tmp_path / "ten")
    assert torch.allclose(model(tmp_path / "loop"), model(tmp_path / "ten"), rtol=0, atol=1e-5)
    one, ten = RunFolder(tmp_path / "loop").metrics(), RunFolder(tmp_path / "ten").metrics()
    assert [row.bytes_up for row in one] == [row.bytes_up for row in ten]
    assert [row.bytes_down for row in one] == [row.bytes_down for row in ten]
    for row in ten:
        message = row.bytes_up / 2
        least = 2 * 0.030 + 8 * message / 1e6 + 8 * (row.bytes_down / 2) / 5e6
        assert row.seconds >= least  # both devices wait at once, so once
        assert row.seconds < 2 * least + 5


SLAUG: Table = {
    "data": {"source": "digits", "probe": 5},
    "candidates": {"source": "procedural", "per_class": 20},
    "partition": {"scheme": "dirichlet", "clients": 10, "alpha": 0.5, "min_size": 12},
    "model": {"name": "cnn_norm"},
    "algorithm": {
        "name": "slaug_fl",
        "keep": 10,
        "gan_epochs": 1,
        "prepare_epochs": 1,
        "local_epochs": 1,
        "batch_size": 32,
    },
}


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
def test_so_is_a_run_that_prepares(tmp_path: Path) -> None:
    start(made(executor="loop", **SLAUG), tmp_path / "loop")
    network = {"latency_ms": [5.0, 10.0, 20.0, 40.0], "up_mbit": [50.0, 20.0, 10.0, 5.0], "down_mbit": 50.0}
    start(made(network, workers=4, **SLAUG), tmp_path / "four")
    assert torch.allclose(model(tmp_path / "loop"), model(tmp_path / "four"), rtol=0, atol=1e-5)
    assert RunFolder(tmp_path / "loop").prepared() == RunFolder(tmp_path / "four").prepared()


@pytest.mark.slow
def test_a_silent_device_is_not_waited_for_and_somebody_else_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process is stopped while it should work: the round ends without it, later ones draw others, and when it wakes
    it takes part again.
    """
    stopped: list[int] = []
    who: list[list[int]] = []
    workers: dict[int, int] = {}  # their processes

    def started(command: list[str], **more: Any) -> warm.Process:
        process = warm.Process(command, **more)
        workers[int(command[-2])] = process.pid
        return process

    ways = types.SimpleNamespace(Popen=started, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(message, "subprocess", ways)

    def watch(step: Progress) -> None:
        who.append(sorted(step.federation.participations))
        if step.round == 1:
            stopped.append(workers[9])
            os.kill(stopped[0], signal.SIGSTOP)
        if step.round == 4:
            os.kill(stopped[0], signal.SIGCONT)

    experiment = made({"timeout_s": 4.0}, rounds=6, cohort={"name": "random", "size": 9})
    begin = time.monotonic()
    start(experiment, tmp_path / "run", watch)
    assert time.monotonic() - begin < 120
    rows = RunFolder(tmp_path / "run").metrics()
    answered = [row.answered for row in rows]
    assert answered[0] == 9
    silent = [t for t, row in enumerate(rows) if row.answered < row.active]
    assert (
        len(silent) == 1
    )  # only the round in which it was first waited for: then the one left over is asked in its place
    assert answered[-1] == 9
    assert json.loads((tmp_path / "run" / "privacy.json").read_text())["rounds"] == 6


@pytest.mark.slow
def test_who_else_is_asked_decides_who_is_late_so_a_hidden_cohort_has_no_timeout(tmp_path: Path) -> None:
    """In one process, on a line on which an upload takes two seconds."""
    network, answered = {"up_mbit": 0.01, "timeout_s": 7.5}, []
    for size in (1, 6):
        start(made(network, workers=1, rounds=1, cohort={"name": "round_robin", "size": size}), tmp_path / f"{size}")
        (row,) = RunFolder(tmp_path / f"{size}").metrics()
        answered.append(row.answered)
    assert answered[0] == 1
    assert 0 < answered[1] < 6
    bound = {"client": [{"name": "clip", "radius": 1.0}], "server": [{"name": "noise", "neighbours": "zero_out"}]}
    with pytest.raises(UnsoundGuarantee) as refusal:
        start(
            made(network, cohort={"name": "poisson", "rate": 0.3}, uplink=bound, privacy={"epsilon": 8.0}),
            tmp_path / "hidden",
        )
    assert refusal.value.code == "timeout-tells"
