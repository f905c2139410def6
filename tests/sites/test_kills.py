"""kill -9 of the server and of sites at random moments, each started again: the run that never stopped."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from sordino.ledger.ledger import State
from sordino.receipts.receipt import opened
from sordino.receipts.verify import verify
from tests.helpers.between_sites import ledger_of, model_of
from tests.helpers.real_sites import Trial
from tests.laws.cases import BY_NAME


def tortured(trial: Trial, kills: int, seed: int, most: float = 240.0) -> int:
    """Plays a run whose processes are killed so often; how many kills struck before its end."""
    chance, struck, until = random.Random(seed), 0, time.monotonic() + most
    trial.serve()
    trial.wait_for(trial.invitation)
    for k in range(trial.sites):
        trial.join(k)
    rounds = trial.experiment.rounds
    while struck < kills and len(trial.rows()) < rounds - 1:
        assert time.monotonic() < until
        time.sleep(chance.uniform(0.05, 0.5))
        who = chance.choice([*trial.processes])
        process = trial.processes[who]
        process.kill()
        process.wait()
        struck += 1
        trial.serve() if who == "server" else trial.join(int(who.rpartition("-")[2]))
    trial.ended(max(10.0, until - time.monotonic()))
    return struck


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["scaffold", "gaussian_gdp"])
def test_a_run_whose_processes_are_killed_is_the_run_that_never_stopped(name: str, seed: int, tmp_path: Path) -> None:
    trial = Trial.of(BY_NAME[name], tmp_path, rounds=20, cohort={"name": "everyone"})
    trial.more = ["--minimum", str(trial.sites), "--deadline", "60s"]  # so that whoever is started again is waited for
    loop = trial.simulated()
    try:
        assert tortured(trial, 6, seed)
    finally:
        trial.kill_all()
    assert model_of(trial.folder) == model_of(loop)
    assert ledger_of(trial.folder) == ledger_of(loop)
    for k in range(trial.sites):
        assert verify(tmp_path / f"site-{k}-run") == []


@pytest.mark.slow
def test_a_server_that_is_killed_while_it_tells_the_end_ends_when_it_is_started_again(tmp_path: Path) -> None:
    """Some have left by then, others have not been told: nobody waits for those who are gone."""
    trial = Trial.of(BY_NAME["gaussian_gdp"], tmp_path, rounds=2, cohort={"name": "everyone"})
    trial.more = ["--minimum", str(trial.sites), "--deadline", "8s"]
    try:
        trial.serve()
        trial.wait_for(trial.invitation)
        for k in range(trial.sites):
            trial.join(k)
        trial.wait_for(tmp_path / "site-0-run" / "replies" / "over")
        trial.processes["server"].kill()
        trial.processes["server"].wait()
        trial.serve()
        trial.ended(60)
        trial.join(1)  # started once more, though nobody is left who would tell it
        assert trial.processes["site-1"].wait(60) == 0
    finally:
        trial.kill_all()
    models = {model_of(tmp_path / f"site-{k}-run") for k in range(trial.sites)}
    assert models == {model_of(trial.folder)}


@pytest.mark.slow
def test_noise_of_the_system_is_never_drawn_twice_for_one_release(tmp_path: Path) -> None:
    """A round that was cut off is lost and stays paid; every other one has one release, and nobody is over its cap."""
    trial = Trial.of(BY_NAME["gaussian_gdp"], tmp_path, rounds=20, cohort={"name": "everyone"})
    privacy = {**trial.table["privacy"], "noise": "system"}
    trial = Trial(tmp_path / "real", {**trial.table, "privacy": privacy}, trial.sites, rehearsal=False)
    trial.more = ["--minimum", str(trial.sites), "--deadline", "60s"]
    try:
        assert tortured(trial, 6, 7)
    finally:
        trial.kill_all()
    for folder in (trial.folder, *(trial.place / f"site-{k}-run" for k in range(trial.sites))):
        assert verify(folder) == []
        _, federation = opened(folder)
        with federation.ledger as ledger:
            assert all(entry.state in (State.PUBLISHED, State.DRAWN) for entry in ledger.entries())
            for k in federation.members:
                left = ledger.remaining(str(k))
                assert left is not None
                assert min(left) >= 0


@pytest.mark.slow
@pytest.mark.parametrize("enough", [True, False])
def test_a_stop_with_a_silent_site_ends_soon_and_loses_nothing(enough: bool, tmp_path: Path) -> None:
    """What `systemctl stop` does: with enough answers the round is closed, without them it is asked for again."""
    trial = Trial.of(BY_NAME["gaussian_gdp"], tmp_path, rounds=40, cohort={"name": "everyone"})
    privacy = {**trial.table["privacy"], "noise": "system"}
    trial = Trial(tmp_path / "real", {**trial.table, "privacy": privacy}, trial.sites, rehearsal=False)
    trial.more = ["--minimum", str(trial.sites - enough), "--deadline", "600s"]
    try:
        trial.serve()
        trial.wait_for(trial.invitation)
        for k in range(trial.sites):
            trial.join(k)
        until = time.monotonic() + 90
        while len(trial.rows()) < 3:
            assert time.monotonic() < until, trial.said("server")
            time.sleep(0.02)
        trial.processes["site-0"].send_signal(signal.SIGSTOP)
        time.sleep(2.0)  # now the server waits for it
        begin, came = time.monotonic(), len(trial.rows())
        trial.processes["server"].send_signal(signal.SIGTERM)
        assert trial.processes["server"].wait(60) == 130
        assert time.monotonic() - begin < 30
        assert len(trial.rows()) == came + enough
        trial.processes["site-0"].send_signal(signal.SIGCONT)
        trial.serve()
        trial.ended(240)
    finally:
        trial.kill_all()
    assert len(trial.rows()) == 40
    assert not [row for row in trial.rows() if row.get("lost")]
    for folder in (trial.folder, *(trial.place / f"site-{k}-run" for k in range(trial.sites))):
        assert verify(folder) == []
