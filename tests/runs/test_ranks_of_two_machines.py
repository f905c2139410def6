"""Ranks on two machines: network namespaces with one cable between them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sordino.receipts.verify import verify
from tests.laws.cases import BY_NAME
from tests.laws.test_executors import CLOSE, apart, paid
from tests.laws.traces import finished, trace

MACHINES = ("sordino-rank-a", "sordino-rank-b")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def two_machines() -> Iterator[None]:
    """10.79.0.1 and 10.79.0.2."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the package iproute2")
    try:
        ip("netns", "add", MACHINES[0])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine makes no network namespaces: {error.stderr.decode()}")
    try:
        ip("netns", "add", MACHINES[1])
        ip("link", "add", "cable", "netns", MACHINES[0], "type", "veth", "peer", "name", "cable", "netns", MACHINES[1])
        for number, name in enumerate(MACHINES, 1):
            ip("-n", name, "addr", "add", f"10.79.0.{number}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in MACHINES:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.mark.slow
def test_torchrun_over_two_machines_is_the_same_run(two_machines: None, tmp_path: Path) -> None:
    case = BY_NAME["scaffold"]
    loop = finished(case.experiment(), tmp_path / "loop")
    (tmp_path / "e.toml").write_text(case.experiment(engine={"executor": "ranks"}).toml())
    started = [
        subprocess.Popen(
            [
                *("ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run"),
                *("--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "1"),
                *("--master-addr", "10.79.0.1", "--master-port", "29500", "--local-addr", f"10.79.0.{number + 1}"),
                *("-m", "sordino", "run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "ranks"), "-q"),
            ],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "cable"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, name in enumerate(MACHINES)
    ]
    try:
        told = [one.communicate(timeout=240)[1] for one in started]
    finally:
        for one in started:
            one.kill()
    assert [one.returncode for one in started] == [0, 0], told
    together = trace(tmp_path / "ranks")
    assert [paid(entry) for entry in loop.ledger] == [paid(entry) for entry in together.ledger]
    assert apart(tmp_path / "loop", tmp_path / "ranks") < CLOSE
    assert verify(tmp_path / "ranks") == []
