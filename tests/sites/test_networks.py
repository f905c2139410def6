"""Machines of their own: network namespaces, joined by a bridge. One is cut off in the middle of a run and comes back, the
server is killed and started again, a link is slow.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sordino.receipts.verify import verify
from tests.helpers.between_sites import ledger_of, model_of
from tests.helpers.real_sites import Trial
from tests.laws.cases import BY_NAME

SITES, HUB = 3, "sordino-hub"
pytestmark = pytest.mark.slow


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def space(who: str) -> str:
    return f"sordino-{who}"


def machines() -> list[str]:
    return ["server", *(f"site-{k}" for k in range(SITES))]


@pytest.fixture
def network() -> Iterator[None]:
    """10.77.0.1 is the server, the sites follow; each hangs by one cable on a bridge."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("network namespaces need root and the package iproute2")
    try:
        ip("netns", "add", HUB)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine makes no network namespaces: {error.stderr.decode()}")
    try:
        ip("-n", HUB, "link", "add", "bridge", "type", "bridge")
        ip("-n", HUB, "link", "set", "bridge", "up")
        for number, who in enumerate(machines(), 1):
            ip("netns", "add", space(who))
            ip("link", "add", "cable", "netns", space(who), "type", "veth", "peer", "name", who, "netns", HUB)
            ip("-n", HUB, "link", "set", who, "master", "bridge", "up")
            ip("-n", space(who), "addr", "add", f"10.77.0.{number}/24", "dev", "cable")
            ip("-n", space(who), "link", "set", "cable", "up")
            ip("-n", space(who), "link", "set", "lo", "up")
        yield
    finally:
        for who in [HUB, *map(space, machines())]:
            subprocess.run(["ip", "netns", "del", who], check=False, capture_output=True)


def cable(who: str, standing: str) -> None:
    ip("-n", HUB, "link", "set", who, standing)


def test_cut_off_killed_and_slow_it_is_the_run_that_nothing_happened_to(network: None, tmp_path: Path) -> None:
    trial = Trial.of(
        BY_NAME["scaffold"],
        tmp_path,
        rounds=40,
        cohort={"name": "everyone"},
        partition={"scheme": "dirichlet", "clients": SITES, "alpha": 1.0},
    )
    trial = Trial(
        tmp_path / "net", trial.table, SITES, host="10.77.0.1", inside=lambda who: ["ip", "netns", "exec", space(who)]
    )
    trial.more = ["--minimum", str(SITES), "--deadline", "120s"]
    loop = trial.simulated()
    slow = ["tc", "qdisc", "add", "dev", "cable", "root", "tbf", "rate", "128kbit", "burst", "4kb", "latency", "400ms"]
    subprocess.run(["ip", "netns", "exec", space("site-1"), *slow], check=True)
    try:
        trial.serve()
        trial.wait_for(trial.invitation)
        for k in range(SITES):
            trial.join(k)
        rounds(trial, 3)
        cable("site-0", "down")
        time.sleep(4)
        stopped = len(trial.rows())
        time.sleep(2)
        assert len(trial.rows()) == stopped  # nobody goes on without it
        cable("site-0", "up")
        rounds(trial, stopped + 3)
        trial.processes["server"].kill()
        trial.processes["server"].wait()
        time.sleep(2)
        trial.serve()
        trial.ended(180)
    finally:
        trial.kill_all()
    assert model_of(trial.folder) == model_of(loop)
    assert ledger_of(trial.folder) == ledger_of(loop)
    assert [verify(trial.place / f"site-{k}-run") for k in range(SITES)] == [[]] * SITES


def rounds(trial: Trial, many: int) -> None:
    until = time.monotonic() + 90
    while len(trial.rows()) < many:
        assert time.monotonic() < until, trial.said("server")
        time.sleep(0.05)
