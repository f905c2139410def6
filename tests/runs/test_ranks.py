"""Clients spread over ranks: the rounds of the loop, one sum instead of many uploads."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino import tree
from sordino.engine import wire
from sordino.errors import SordinoError
from sordino.privacy.uplink import Uplink
from sordino.receipts.verify import verify
from sordino.runs import ranks
from sordino.runs.run import start
from sordino.runs.simulation import reads_single_uploads, simulated
from sordino.types import Grant
from tests.laws import warm
from tests.laws.cases import BY_NAME, CASES
from tests.laws.test_executors import CLOSE, apart, paid
from tests.laws.traces import finished, trace


def torchrun(count: int, *arguments: object, module: str = "sordino") -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    quiet = ["-q"] if {"run", "resume"} & set(arguments) else []
    return subprocess.run(
        [*launcher, "-m", module, *map(str, arguments), *quiet],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def forked(count: int, *arguments: object, module: str = "sordino") -> subprocess.CompletedProcess[str]:
    """What `torchrun` starts, without it and without importing: each rank is a fork, and the first failure counts."""
    quiet = ["-q"] if {"run", "resume"} & set(arguments) else []
    command = [sys.executable, "-m", module, *map(str, arguments), *quiet]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    meeting = {"WORLD_SIZE": str(count), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    with tempfile.TemporaryFile() as told:
        started = [
            warm.Process(command, stdout=told, stderr=told, env={**meeting, "RANK": str(i), "LOCAL_RANK": str(i)})
            for i in range(count)
        ]
        try:
            ends = [process.wait(240) for process in started]
        finally:
            for process in started:
                process.kill()
        told.seek(0)
        return subprocess.CompletedProcess(command, next(filter(None, ends), 0), "", told.read().decode())


MEDIAN = {"uplink": {"server": [{"name": "median", "f": 1}]}, "cohort": {"name": "everyone"}}
LATE = {"stragglers": {"share": 0.5, "policy": "late"}}
LOST = {"chaos": {"drop": 0.3, "slow": 0.2}, "cohort": {"name": "everyone"}}
SINGLE: list[tuple[str, dict[str, Any]]] = [  # where the server looks at single uploads
    ("udp", {}),  # a median of norms
    ("fedavg", MEDIAN),
    ("scaffold", LATE),
    ("gaussian_gdp", LOST),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "more", "count"),
    [
        ("scaffold", {}, 2),
        ("central", {}, 3),
        ("gaussian_gdp", {}, 2),
        *((*one, 2 + i % 2) for i, one in enumerate(SINGLE)),
    ],
)
def test_ranks_do_what_the_loop_does(name: str, more: dict[str, Any], count: int, tmp_path: Path) -> None:
    case = BY_NAME[name]
    alone = finished(case.experiment(**more), tmp_path / "loop")
    (tmp_path / "e.toml").write_text(case.experiment(engine={"executor": "ranks"}, rounds=4, **more).toml())
    launched = torchrun if name == "scaffold" and not more else forked
    done = launched(count, "run", tmp_path / "e.toml", "--out", tmp_path / "ranks")
    assert done.returncode == 0, done.stderr
    together = trace(tmp_path / "ranks")
    assert [paid(entry) for entry in alone.ledger] == [paid(entry) for entry in together.ledger]
    assert apart(tmp_path / "loop", tmp_path / "ranks") < CLOSE
    assert verify(tmp_path / "ranks") == []
    assert len(list((tmp_path / "ranks").glob("checkpoints/clients-*"))) == count
    if launched is torchrun:  # a finished run resumes to itself, with as many ranks as it began with
        again = torchrun(count, "resume", tmp_path / "ranks")
        assert again.returncode == 0, again.stderr
        assert trace(tmp_path / "ranks") == together
        refused = forked(1, "resume", tmp_path / "ranks")
        assert refused.returncode != 0
        assert "other-ranks" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("name", "more"), [("scaffold", {}), *SINGLE])
def test_one_rank_is_the_loop(name: str, more: dict[str, Any], one_rank: None, tmp_path: Path) -> None:
    case = BY_NAME[name]
    loop = finished(case.experiment(**more), tmp_path / "loop")
    alone = finished(case.experiment(engine={"executor": "ranks"}, **more), tmp_path / "rank")
    assert [paid(entry) for entry in loop.ledger] == [paid(entry) for entry in alone.ledger]
    assert apart(tmp_path / "loop", tmp_path / "rank") < CLOSE


@pytest.mark.parametrize(("name", "more", "single"), [("scaffold", {}, False), *((*one, True) for one in SINGLE)])
def test_sums_are_sent_wherever_they_do(name: str, more: dict[str, Any], single: bool) -> None:
    setup = simulated(BY_NAME[name].experiment(**more)).setup
    assert reads_single_uploads(setup) == single


@pytest.mark.slow
def test_a_round_that_nobody_reads_to_its_end_leaves_nothing_for_the_next(tmp_path: Path) -> None:
    """Uploads of the broken round would be taken for those of the next one: their headers tell."""
    experiment = BY_NAME["udp"].experiment(engine={"executor": "ranks"})
    (tmp_path / "e.toml").write_text(experiment.toml())
    done = forked(2, "broken_off", tmp_path / "e.toml", tmp_path, module="tests.runs.watched_workers")
    assert done.returncode == 0, done.stderr
    simulation = simulated(experiment)
    task, algorithm = simulation.setup.task, simulation.setup.algorithm
    shape = algorithm.uplink.shape(algorithm.zero(task, algorithm.broadcast(algorithm.init(task, 0))))
    came = {int(file.name): file.read_bytes() for file in (tmp_path / "uploads").iterdir()}
    assert sorted(came) == list(range(len(simulation.setup.public.sizes)))
    for k, message in came.items():
        wire.decode(message, simulation.setup.header("run")(1, k), shape)


@pytest.mark.slow
def test_a_first_signal_waits_for_the_end_of_the_round(tmp_path: Path) -> None:
    """The launcher passes it on to every rank, and rank 0 needs the others until the round is over."""
    (tmp_path / "e.toml").write_text(
        BY_NAME["scaffold"].experiment(engine={"executor": "ranks"}, rounds=100_000, evaluation={"every": 1000}).toml()
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    started = subprocess.Popen(
        [*launcher, "-m", "sordino", "run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "ranks"), "-q"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    end, rows = time.monotonic() + 120, tmp_path / "ranks" / "metrics.jsonl"
    while not (rows.exists() and rows.stat().st_size) and time.monotonic() < end:
        time.sleep(0.1)
    started.send_signal(signal.SIGTERM)
    told = started.communicate(timeout=120)[1]
    assert "Stopped at a safe point" in told
    assert verify(tmp_path / "ranks") == []


LEAVING = """
import os, sys
from sordino.runs.ranks import joined
team = joined()
if sys.argv[1:]:
    for name in [name for name in sys.modules if name.startswith("torch.distributed.nn")]:
        del sys.modules[name]
import torch.distributed.nn.functional
team.wait()
team.leave()
del team
names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
print([name for name in names if "gloo" in name])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the threads of a process in /proc")
@pytest.mark.parametrize("late", [False, True])
def test_a_rank_that_has_left_keeps_no_thread(late: bool, one_rank: None) -> None:
    """Such a thread may free a tensor while Python ends, which takes the process down: "terminate called without an
    active exception". The broken twin imports what keeps the group once there is one."""
    done = subprocess.run(
        [sys.executable, "-c", LEAVING, *["late"] * late], capture_output=True, text=True, timeout=120, check=True
    )
    assert (done.stdout.strip() != "[]") == late


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(1, 7), st.integers(1, 4))
def test_sums_of_parts_are_the_sum(clients: int, parts: int) -> None:
    """However the clients are divided, what the server makes of the sums is what it makes of the uploads."""
    uplink, rng = Uplink(), torch.Generator().manual_seed(clients)
    zero = {"w": torch.zeros(5), "b": torch.zeros(2, 3)}
    raw = {k: tree.map(lambda leaf: torch.randn(leaf.shape, generator=rng), zero) for k in range(clients)}
    sent = {k: uplink.encode(raw[k], Grant(k, k + 1, clients, None)) for k in raw}  # type: ignore[arg-type]
    weights = [uplink.weight(k + 1, clients) for k in range(clients)]
    whole = uplink.receive(sent, zero, weights, 1.0, None, None)  # type: ignore[arg-type]
    shares = [uplink.sum(((k, sent[k]) for k in sent if k % parts == i), zero) for i in range(parts)]
    total: Any = shares[0].total
    for share in shares[1:]:
        total = tree.add(total, share.total)
    summed = type(shares[0])(total, sorted(k for share in shares for k in share.who))
    again = uplink.receive(summed, zero, weights, 1.0, None, None, each=False)  # type: ignore[arg-type]
    assert again.participation == whole.participation
    for a, b in zip(tree.leaves(whole.mean), tree.leaves(again.mean), strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-7)
    with pytest.raises(SordinoError) as refusal:
        _ = again.each
    assert refusal.value.code == "reads-each"


def test_without_torchrun_there_are_no_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert not ranks.following()
    with pytest.raises(SordinoError) as refusal:
        start(CASES[0].experiment(engine={"executor": "ranks"}), tmp_path / "run")
    assert refusal.value.code == "no-ranks"
