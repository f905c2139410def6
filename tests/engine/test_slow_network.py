"""Clients as processes of their own on a slow network: the same numbers, only later; and who is silent is not waited
for.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from sordino import config, tree
from sordino.engine.lines import Line, write
from sordino.engine.slow_network import Emulated
from sordino.errors import ConfigError, RunError
from sordino.runs.folder import RunFolder
from sordino.runs.run import Progress, start

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


# a line ---------------------------------------------------------------------------------------------------------------

ECHO = (
    "import sys, time, struct\n"
    "while (head := sys.stdin.buffer.read(8)):\n"
    "    data = sys.stdin.buffer.read(struct.unpack('<Q', head)[0])\n"
    "    time.sleep(float(data.split()[0]))\n"
    "    sys.stdout.buffer.write(head + data); sys.stdout.buffer.flush()\n"
)


@pytest.fixture
def line() -> Iterator[Line]:
    process = subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    yield Line(process)
    process.kill()
    process.communicate()


def test_what_comes_late_is_thrown_away(line: Line) -> None:
    line.send(b"0.6 late")
    assert line.receive(time.monotonic() + 0.05) is None
    line.owed += 1
    assert not line.settled()
    assert (
        line.receive(time.monotonic() + 10) == b"0.6 late"
    )  # it did come; now once more, without anybody waiting for it
    line.send(b"0.0 first")
    line.send(b"0.0 second")
    until = time.monotonic() + 10
    while not line.settled():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert line.receive(time.monotonic() + 10) == b"0.0 second"  # the first was owed


def test_long_frames_come_in_pieces(line: Line) -> None:
    long = b"0 " + bytes(300_000)
    line.send(long)
    line.send(b"0 short")
    assert line.receive(time.monotonic() + 10) == long
    assert line.receive(time.monotonic() + 10) == b"0 short"


def test_who_is_dead_is_told(line: Line) -> None:
    line.process.kill()
    with pytest.raises(RunError) as told:
        line.receive(time.monotonic() + 10)
    assert told.value.code == "client-process-ended"


def test_waiting_is_in_proportion_to_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    device = Emulated(latency_ms=20.0, down_mbit=8.0, up_mbit=2.0, compute=3.0)
    ticks = iter([0.0, 2.0, 2.0, 2.5, 2.5])
    monkeypatch.setattr(time, "monotonic", lambda: next(ticks))
    sent = [bytes(1_000_000), bytes(500_000)]
    assert list(device.carried([bytes(1_000_000)], iter(sent))) == sent
    # down; then what took 2 s takes 6 there, and up; and again
    assert slept == pytest.approx([0.02 + 1.0, 4.0, 0.02 + 4.0, 1.0, 0.02 + 2.0])
    slept.clear()
    ticks = iter([0.0, 2.0, 2.0])
    assert list(Emulated().carried([bytes(1_000_000)], iter([b"a"]))) == [b"a"]
    assert slept == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "network", [{"latency_ms": -1.0}, {"down_mbit": 0.0}, {"up_mbit": -2.0}, {"compute": 0.5}, {"timeout_s": 0.0}]
)
def test_networks_that_are_none(network: Table) -> None:
    with pytest.raises(ConfigError):
        made(network)


# runs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
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
        "gan_epochs": 2,
        "prepare_epochs": 2,
        "local_epochs": 1,
        "batch_size": 32,
    },
}


@pytest.mark.slow
def test_so_is_a_run_that_prepares(tmp_path: Path) -> None:
    start(made(executor="loop", **SLAUG), tmp_path / "loop")
    start(made({"latency_ms": 5.0, "up_mbit": 50.0}, **SLAUG), tmp_path / "ten")
    assert torch.allclose(model(tmp_path / "loop"), model(tmp_path / "ten"), rtol=0, atol=1e-5)
    assert RunFolder(tmp_path / "loop").prepared() == RunFolder(tmp_path / "ten").prepared()


@pytest.mark.slow
def test_a_silent_device_is_not_waited_for_and_somebody_else_is_asked(tmp_path: Path) -> None:
    """One process is stopped while it should work: the round ends without it, later ones draw others, and when it wakes
    it takes part again.
    """
    stopped: list[int] = []
    who: list[list[int]] = []

    def workers() -> dict[int, int]:
        found = {}
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = place.read_bytes().split(b"\0")
            except OSError:
                continue
            if b"sordino.runs.site_process" in words and str(tmp_path / "run").encode() in words:
                found[int(words[-3])] = int(place.parent.name)
        return found

    def watch(step: Progress) -> None:
        who.append(sorted(step.federation.exposures))
        if step.round == 1:
            stopped.append(workers()[9])
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


def test_frames_are_written_whole(tmp_path: Path) -> None:
    with open(tmp_path / "frames", "wb") as file:
        write(file, b"abc")
    assert (tmp_path / "frames").read_bytes() == (3).to_bytes(8, "little") + b"abc"
