"""Flower's quickstart, made private, between processes on this machine: killed and continued, and its receipts.

The packages are in an environment of their own: the folder that SORDINO_FLOWER names, else one that is made here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sordino.ledger.ledger import State
from sordino.receipts.verify import examine, verify
from tests.adapters import warm_apps
from tests.adapters.environments import made, stop, verified_elsewhere, written
from tests.adapters.test_private_uplink import calibrated, multipliers, row, states
from tests.helpers.between_sites import ledger_of, model_of
from tests.helpers.real_sites import Trial
from tests.laws.cases import BY_NAME

APP, STUDY = (Path(__file__).parent / name for name in ("flower_app", "flower_study"))
pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Loopback:
    """A SuperLink and two SuperNodes, and the apps that run on them."""

    def __init__(self, binaries: Path, place: Path) -> None:
        self.binaries, self.place, self.port = binaries, place, free_port()
        for app in (APP, STUDY):
            shutil.copytree(app, place / app.name, ignore=shutil.ignore_patterns("__pycache__"))
        (place / "flower").mkdir()
        settings = (
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        (place / "flower" / "config.toml").write_text(settings)
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(place / "warm"), str(binaries), os.environ["PATH"]]),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "FLWR_HOME": str(place / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "QUICK_PLACE": str(place),
        }
        self.started = [warm_apps.lent(binaries / "python", place / "warm", self.environment)]

    def begin(self, name: str, *arguments: str) -> None:
        with (self.place / f"{len(self.started)}-{name}.log").open("wb") as log:
            command = [str(self.binaries / name), "--insecure", *arguments]
            self.started.append(
                subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)
            )

    def reachable(self) -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self.port)) == 0

    def run(self, app: Path = APP, **settings: str) -> str:
        """Run an app to its end, and return what Flower said of it."""
        (self.place / "result.json").unlink(missing_ok=True)
        said = [f'{name}="{value}"' for name, value in settings.items()]
        command = [
            str(self.binaries / "flwr"),
            "run",
            str(self.place / app.name),
            "here",
            "--stream",
            "--run-config",
            " ".join(said),
        ]
        ran = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=900)
        return re.sub(r"\x1b\[[0-9;]*m", "", ran.stdout + ran.stderr)

    def result(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.place / "result.json").read_text())
        return told


@pytest.fixture(scope="module")
def loopback(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    found = Loopback(made("flower", "flwr", tmp_path_factory), tmp_path_factory.mktemp("loopback"))
    try:
        found.begin("flower-superlink", "--port", str(found.port), "--disable-runtime-dependency-installation")
        until = time.monotonic() + 120
        while not found.reachable():
            assert time.monotonic() < until
            time.sleep(0.2)
        for number in range(2):
            node = ("--superlink", f"127.0.0.1:{found.port}", "--port", str(free_port()))
            found.begin(
                "flower-supernode", *node, "--node-config", f'partition-id={number} study="{found.place}/study"'
            )
        yield found
    finally:
        stop(found.started)


def test_without_noise_it_is_the_plain_mean(loopback: Loopback, tmp_path: Path) -> None:
    command = [str(loopback.binaries / "python"), str(APP / "same_mean.py"), str(tmp_path)]
    ran = subprocess.run(command, env=loopback.environment, capture_output=True, text=True, timeout=300)
    found = dict(line.split() for line in ran.stdout.splitlines() if line.startswith("Fed"))
    assert found.keys() == {"FedAvg", "FedAdam"}, ran.stderr
    assert all(float(difference) < 1e-6 for difference in found.values()), found


def test_noise_at_the_clients_and_one_of_them_killed(loopback: Loopback) -> None:
    said = loopback.run(private="client", kill="client")
    assert (loopback.place / "killed-client").exists(), said
    assert loopback.result() == {"moved": True, "metrics": []}, said  # no loss, no number of examples
    assert "train_loss" not in said
    said = loopback.run(private="client", kill="")
    for number in range(2):
        place = loopback.place / f"site-{number}"
        assert states(place) == [State.PUBLISHED] * 3, said  # two rounds of the first run, and one that was left
        assert examine(place).wrong == []
        assert row(place, "server")["epsilon"] <= 12.0
    assert "the budget is spent, after 3 releases" in said
    verified_elsewhere(loopback.place / "site-0", loopback.place / "elsewhere-site")
    found = row(loopback.place / "site-0", "server")
    theirs = calibrated(12.0, 1e-5, 3)  # ours is larger by what the grid of the noise costs
    assert all(theirs * 0.999 < ours < theirs * 1.01 for ours in multipliers(found))
    lines = written(APP / "quick" / "client_app.py", "mods=")
    assert lines <= 15
    print(f"Flower: {lines} lines, noise {multipliers(found)}, of dp-accounting {theirs:.4f}")


def test_noise_at_the_server_which_is_killed(loopback: Loopback) -> None:
    loopback.run(private="server", kill="server")
    place = loopback.place / "server"
    assert not (loopback.place / "result.json").exists()
    assert states(place) == [State.PUBLISHED]
    said = loopback.run(private="server", kill="")
    assert loopback.result()["moved"], said
    assert "asks nobody: the budget is spent, after 2 releases" in said
    assert states(place) == [State.PUBLISHED] * 2
    assert examine(place).wrong == []
    assert row(place, "participants")["epsilon"] <= 12.0
    assert row(place, "server")["epsilon"] == "inf"
    verified_elsewhere(place, loopback.place / "elsewhere-server")
    assert written(APP / "quick" / "server_app.py") <= 15


def test_a_whole_experiment_trains_what_the_simulation_trains(loopback: Loopback) -> None:
    """A site is killed when it has computed a round, and the server at the end of one; the same app goes on."""
    whole = {"rounds": 2, "partition": {"scheme": "iid", "clients": 2}, "cohort": {"name": "everyone"}}
    trial = Trial.of(BY_NAME["gaussian_gdp"], loopback.place / "study", **whole)
    loop = trial.simulated()
    loopback.run(STUDY, place=str(trial.place), kill="server")
    assert [row["round"] for row in trial.rows()] == [1]
    said = loopback.run(STUDY, place=str(trial.place))
    assert (trial.place / "site-0-run" / "replies" / "killed").exists()
    assert model_of(trial.folder) == model_of(loop), said
    assert ledger_of(trial.folder) == ledger_of(loop)
    assert verify(trial.folder) == []
    for k in range(2):
        own = trial.place / f"site-{k}-run"
        assert verify(own) == []
        assert model_of(own) == model_of(loop)
