"""Strangers who hold connections open, and nothing else: the server goes on, and no round is lost to them."""

from __future__ import annotations

import os
import resource
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from sordino.receipts.verify import verify
from sordino.sites import grpc_server as rpc
from tests.helpers.real_sites import Trial
from tests.laws.cases import BY_NAME

FILES = 128  # that the server may open: a small machine's 1,024, sooner reached
CROWD = 400


@pytest.mark.slow
def test_a_crowd_without_certificates_costs_no_round(tmp_path: Path) -> None:
    two = {"scheme": "dirichlet", "clients": 2, "alpha": 1.0}
    trial = Trial.of(BY_NAME["gaussian_gdp"], tmp_path, rounds=12, cohort={"name": "everyone"}, partition=two)
    privacy = {**trial.table["privacy"], "noise": "system"}
    trial = Trial(tmp_path / "real", {**trial.table, "privacy": privacy}, 2, rehearsal=False, files={"server": FILES})
    with ExitStack() as crowd:
        try:
            trial.serve()
            trial.wait_for(trial.invitation)
            trial.join(0)
            trial.join(1)
            until = time.monotonic() + 60
            while not trial.rows():
                assert time.monotonic() < until, trial.said("server")
                time.sleep(0.02)
            for _ in range(CROWD):
                crowd.enter_context(socket.create_connection(("localhost", trial.port), 10))
            came, held = len(trial.rows()), len(os.listdir(f"/proc/{trial.processes['server'].pid}/fd"))
            trial.ended(120)
        finally:
            trial.kill_all()
    assert came < len(trial.rows()) == 12, "the crowd came while the run was going on"
    assert FILES // 2 < held < FILES, "as many connections are open as may be, and the run has files left"
    assert not [row for row in trial.rows() if row.get("lost")]
    assert verify(trial.folder) == []


@pytest.mark.parametrize(
    ("soft", "hard", "sites", "found"),
    [
        (1024, 20_000, 3, 1012),  # raised first
        (1024, 1024, 3, 512),
        (1024, 1 << 30, 30_000, 1 << 15),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 3, 1012),
        (256, resource.RLIM_INFINITY, 3, 1012),
    ],
)
def test_connections_leave_half_of_the_files_to_the_run(
    soft: int, hard: int, sites: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: asked.append(limits))
    assert rpc.connections_for(sites) == found
    wanted = min(1 << 16, hard if hard != resource.RLIM_INFINITY else 1 << 16)
    assert asked == [(wanted, hard)] * (soft != resource.RLIM_INFINITY and soft < wanted)
