"""A job of NVFlare, made private, in its simulator: killed and continued, stopped by its budget, and its receipts.

The package is in an environment of its own: the folder that SORDINO_NVFLARE names, else one that is made here.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from sordino.errors import LedgerError
from sordino.ledger.ledger import State
from sordino.receipts.verify import examine, verify
from tests.adapters.environments import made, stop, verified_elsewhere, written
from tests.adapters.test_private_uplink import calibrated, multipliers, row, states
from tests.helpers.between_sites import ledger_of, model_of
from tests.helpers.real_sites import Trial
from tests.laws.cases import BY_NAME

APP = Path(__file__).parent / "nvflare_app"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made("nvflare", "nvflare", tmp_path_factory) / "python"


def begun(python: Path, script: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    with log.open("wb") as out:
        command = [str(python), script, *arguments]
        return subprocess.Popen(command, cwd=APP, env=environment, stdout=out, stderr=out, start_new_session=True)


def played(python: Path, place: Path, private: str) -> str:
    log = place / "log"
    process = begun(python, "job.py", str(place), private, log=log)
    try:
        process.wait(600)
    finally:
        stop([process])
    return log.read_text(errors="replace")


def released(folder: Path) -> int:
    """Number of a site's releases so far; none before it has a ledger."""
    try:
        return len(states(folder))
    except LedgerError:
        return 0


def test_noise_at_the_sites_which_are_killed(python: Path, tmp_path: Path) -> None:
    process = begun(python, "job.py", str(tmp_path), "client", log=tmp_path / "log")
    place, until = tmp_path / "site-1", time.monotonic() + 300
    while not released(place):
        assert time.monotonic() < until, (tmp_path / "log").read_text()
        time.sleep(0.05)
    stop([process], at_once=True)
    before, ahead = released(place), released(tmp_path / "site-2")
    said = played(python, tmp_path, "client")  # two rounds, or fewer where the other site was ahead and is spent first
    assert before + min(2, 3 - max(before, ahead)) <= len(states(place)) <= min(3, before + 2), said
    said = played(python, tmp_path, "client")
    assert "the budget is spent, after 3 releases" in said
    for site in ("site-1", "site-2"):
        assert len(states(tmp_path / site)) <= 3
        assert examine(tmp_path / site).wrong == []
        assert float(row(tmp_path / site, "server")["epsilon"]) <= 12.0
        assert "loss" not in (tmp_path / site / "privacy.json").read_text()
    verified_elsewhere(tmp_path / "site-1", tmp_path / "elsewhere")
    found = row(tmp_path / "site-1", "server")
    theirs = calibrated(12.0, 1e-5, 3)  # ours is larger by what the grid of the noise costs
    assert all(theirs * 0.999 < ours < theirs * 1.01 for ours in multipliers(found))
    lines = written(APP / "job.py", "recipe.add_client_output_filter(noise", "TransferType")
    assert lines <= 15
    print(f"NVFlare: {lines} lines, noise {multipliers(found)}, of dp-accounting {theirs:.4f}")


def test_noise_at_the_server(python: Path, tmp_path: Path) -> None:
    place = tmp_path / "server"
    said = played(python, tmp_path, "server")
    assert states(place) == [State.PUBLISHED] * 2, said
    said = played(python, tmp_path, "server")
    assert states(place) == [State.PUBLISHED] * 3, said
    assert "the budget is spent, after 3 releases" in said
    assert examine(place).wrong == []
    assert row(place, "participants")["epsilon"] <= 12.0
    assert row(place, "server")["epsilon"] == "inf"


def test_a_round_whose_results_are_encrypted_ends_the_job_unpaid(python: Path, tmp_path: Path) -> None:
    said = played(python, tmp_path, "sealed")
    assert "the result was encrypted, or processed in another way" in said, said
    assert "Round 1 started" not in said
    assert states(tmp_path / "server") == []


def test_a_thousand_malformed_results_are_a_thousand_refusals(python: Path, tmp_path: Path) -> None:
    process = begun(python, "malformed_results.py", str(tmp_path), "1000", log=tmp_path / "log")
    assert process.wait(300) == 0, (tmp_path / "log").read_text()
    told = json.loads((tmp_path / "log").read_text().splitlines()[-1])
    assert told["refused"] == 1_000
    assert told["encrypted"] == ["secure-sum-elsewhere"] * 2
    assert (told["accepted"], told["good"]) == (0, "OK")
    assert told["failures"] == [["EXECUTION_EXCEPTION", False]] * 2
    assert told["control"] == ["DXO", "__headers__"]
    for payer in ("site", "server"):
        assert states(tmp_path / payer) == [State.PUBLISHED]  # the control alone was paid for


def test_a_whole_experiment_trains_what_the_simulation_trains(python: Path, tmp_path: Path) -> None:
    """The job is killed once a round is done; the same job goes on, with the folders of server and sites."""
    whole = {"rounds": 3, "partition": {"scheme": "iid", "clients": 2}, "cohort": {"name": "everyone"}}
    trial = Trial.of(BY_NAME["gaussian_gdp"], tmp_path / "study", **whole)
    loop, log = trial.simulated(), tmp_path / "log"
    begin = lambda work: begun(python, "study.py", str(trial.place), str(tmp_path / work), "2", log=log)  # noqa: E731
    process, until = begin("first"), time.monotonic() + 300
    while not trial.rows():
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.02)
    stop([process], at_once=True)
    process = begin("second")
    try:
        process.wait(300)
    finally:
        stop([process])
    assert model_of(trial.folder) == model_of(loop), log.read_text()
    assert ledger_of(trial.folder) == ledger_of(loop)
    assert verify(trial.folder) == []
    for k in range(2):
        own = trial.place / f"site-{k}-run"
        assert verify(own) == []
        assert model_of(own) == model_of(loop)
