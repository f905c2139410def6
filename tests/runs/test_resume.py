"""Stopped anywhere, by anything, a run continues to the bytes of the run that never stopped; what was spent stays
spent.

Runs here are processes of their own that die of real signals (see `laws.warm`: only the import of torch is shared).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sordino import tree
from sordino.config import load
from sordino.engine import checkpoint
from sordino.engine.server import FederatedServer
from sordino.engine.site import Site
from sordino.errors import LedgerError, RunError
from sordino.ledger.ledger import Entry, State
from sordino.planning.accounts import Accounts, OpenRound
from sordino.privacy.uplink import Uplink
from sordino.receipts.receipt import opened
from sordino.receipts.verify import verify
from sordino.runs.play import Progress
from sordino.runs.run import resume, start
from tests.laws.cases import BY_NAME, CASES, Case
from tests.laws.traces import POINTS, Killed, Trace, differences, finished, killed_at, parts_of, trace
from tests.laws.tried import AGAIN
from tests.runs.ways_to_die import ROUNDS, _alive, _lines, experiment_file, sordino


def entries(folder: Path) -> list[Entry]:
    _, federation = opened(folder)
    with federation.ledger as ledger:
        return list(ledger.entries())


def released(folder: Path) -> dict[str, str]:
    """What has been fixed as the content of each release so far."""
    if not (folder / "environment.json").is_file() or not (folder / "ledger.sqlite").exists():
        return {}
    return {entry.op: entry.digest for entry in entries(folder) if entry.digest}


def die_and_resume(case: Case, folder: Path, kills: int, seed: int, **changes: Any) -> Trace:
    """Kill a run, and its continuations, at random moments; then let it finish."""
    rng = random.Random(seed)
    out = folder / "run"
    file = experiment_file(case, folder, **changes)
    known: dict[str, str] = {}
    for number in range(kills):
        if (out / "environment.json").is_file():
            process = sordino("resume", out, "-q")
        else:
            shutil.rmtree(out, ignore_errors=True)  # it died before there was a run
            process = sordino("run", file, "--out", out, "-q")
        wanted = rng.randint(
            0, ROUNDS * (number + 1) // (kills + 1)
        )  # rounds that shall have passed, and a moment more
        deadline = time.monotonic() + 60
        while len(_lines(out)) < wanted and time.monotonic() < deadline and process.pid in _alive():
            time.sleep(0.002)
        time.sleep(rng.random() * 0.03)
        process.kill()
        assert process.wait() in (-signal.SIGKILL, 0)
        now = released(out)
        assert known.items() <= now.items()  # nothing that was released is ever drawn again
        known = now
    assert (
        sordino(
            *(["resume", out] if (out / "environment.json").is_file() else ["run", file, "--out", out]), "-q"
        ).wait()
        == 0
    )
    assert known.items() <= released(out).items()
    return trace(out)


# kill -9 --------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_killed_twice_it_is_the_run_that_never_stopped(tmp_path: Path) -> None:
    case = BY_NAME["scaffold"]
    whole = finished(case.experiment(rounds=ROUNDS), tmp_path / "whole")
    assert differences(whole, die_and_resume(case, tmp_path, 2, seed=1)) == []
    assert verify(tmp_path / "run") == []


@pytest.mark.slow
def test_killed_with_its_client_processes(tmp_path: Path) -> None:
    case = BY_NAME["scaffold"]
    whole = finished(case.experiment(rounds=ROUNDS), tmp_path / "whole")
    again = die_and_resume(case, tmp_path, 2, seed=3, engine={"executor": "processes", "workers": 2})
    assert differences(whole, again) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "executor"),
    [
        *(pytest.param(case, "loop", id=f"{case.name}-loop") for case in CASES),
        # how processes come back is the same for all: one case of every way that a run may go. These die five times,
        # the others twice: that each comes back from every moment is a law (tests/laws)
        *(pytest.param(case, "processes", id=f"{case.name}-processes") for case in CASES if case.name not in AGAIN),
    ],
)
def test_killed_again_and_again_it_is_the_run_that_never_stopped(case: Case, executor: str, tmp_path: Path) -> None:
    kills = 2 if case.name in AGAIN else 5
    whole = finished(case.experiment(rounds=ROUNDS), tmp_path / "whole")
    again = die_and_resume(case, tmp_path, kills, seed=len(case.name), engine={"executor": executor, "workers": 2})
    assert differences(whole, again) == []
    assert verify(tmp_path / "run") == []


@pytest.mark.slow
def test_a_process_started_afresh_continues_too(tmp_path: Path) -> None:
    """Nothing warm: a new interpreter for the run and another one for its continuation."""
    case = BY_NAME["gaussian_gdp"]
    whole = finished(case.experiment(rounds=40), tmp_path / "whole")
    command = [sys.executable, "-m", "sordino"]
    run = subprocess.Popen(
        [*command, "run", str(experiment_file(case, tmp_path, rounds=40)), "--out", str(tmp_path / "run"), "-q"]
    )
    while len(_lines(tmp_path / "run")) < 5 and run.poll() is None:
        time.sleep(0.002)
    run.kill()
    assert run.wait() == -signal.SIGKILL
    assert subprocess.run([*command, "resume", str(tmp_path / "run"), "-q"], check=False).returncode == 0
    assert differences(whole, trace(tmp_path / "run")) == []


@pytest.mark.one_fast
@pytest.mark.parametrize("every", [3, 100])
def test_checkpoints_may_be_rare(every: int, tmp_path: Path) -> None:
    """Rounds since the last checkpoint are done again, and are the same releases."""
    case = BY_NAME["whole_update"]
    whole = finished(case.experiment(rounds=7), tmp_path / "whole")
    made = case.experiment(rounds=7, engine={"checkpoint_every": every, "executor": "loop"})
    with killed_at("published", 4):
        start(made, tmp_path / "run")
    before = released(tmp_path / "run")
    assert len(before) == 5
    resume(tmp_path / "run")
    assert differences(whole, trace(tmp_path / "run")) == []
    assert before.items() <= released(tmp_path / "run").items()


@pytest.mark.slow
def test_a_round_is_kept_and_begun_before_what_cannot_be_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However rare checkpoints may be: each round of real noise has one, and begins in the ledger before clients work."""
    steps: list[str] = []
    for owner, name in ((FederatedServer, "begin"), (Site, "__call__"), (checkpoint, "save")):
        whole = getattr(owner, name)

        def noted(*given: Any, whole: Any = whole, name: str = name, **named: Any) -> Any:
            steps.append(name)
            return whole(*given, **named)

        monkeypatch.setattr(owner, name, noted)
    case = BY_NAME["gaussian_gdp"]
    often = {"checkpoint_every": 100, "executor": "loop"}
    start(case.experiment(privacy=case.privacy | {"noise": "system"}, engine=often), tmp_path / "run")
    assert steps == ["begin", "__call__", "save"] * 4
    steps.clear()
    start(case.experiment(engine=often), tmp_path / "seeded")
    assert steps.count("save") == 1


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    case = BY_NAME["central_visible"]
    whole = finished(case.experiment(), tmp_path / "run")
    resume(tmp_path / "run")
    assert differences(whole, trace(tmp_path / "run")) == []


# what was spent -------------------------------------------------------------------------------------------------------
def test_an_interrupted_upload_stays_spent(tmp_path: Path) -> None:
    """Killed after the reservation and never resumed: the ledger knows of the round, `verify` and `spent` count it."""
    case = BY_NAME["gaussian_gdp"]
    with killed_at("reserved", 2):
        start(case.experiment(), tmp_path / "run")
    found = entries(tmp_path / "run")
    assert [entry.state for entry in found] == [State.PUBLISHED, State.PUBLISHED, State.RESERVED]
    _, federation = opened(tmp_path / "run")
    with federation.ledger as ledger:
        for client, charge in found[2].charges.items():
            own = [entry.charges[client] for entry in found if client in entry.charges]
            assert charge in own
            assert ledger.spent(client) == tuple(map(sum, zip(*own, strict=True)))


SYSTEM = BY_NAME["gaussian_gdp"].privacy | {"noise": "system"}


@pytest.mark.one_fast
@pytest.mark.parametrize("point", POINTS)
def test_no_round_is_drawn_twice_with_noise_of_the_system(point: str, tmp_path: Path) -> None:
    """The process dies anywhere in a round: what was drawn and not kept is lost, what was released stays, every
    operation is one release."""
    made = BY_NAME["gaussian_gdp"].experiment(privacy=SYSTEM)
    with killed_at(point, 2):
        start(made, tmp_path / "run")
    before = released(tmp_path / "run")
    assert len(before) == (3 if point == "published" else 2)
    kept = checkpoint.load(tmp_path / "run" / "checkpoints", parts_of(tmp_path / "run").setup.state)
    result = resume(tmp_path / "run")
    lost = point == "computed"
    assert [row.lost for row in result.metrics] == [False, False, lost, False]
    assert any("cut off after its noise was drawn" in note for note in result.notes) == lost
    after = released(tmp_path / "run")
    assert before.items() <= after.items()
    assert len(after) == 4 - lost
    assert len(entries(tmp_path / "run")) == 4  # a lost round stays paid for
    assert kept is not None
    if point in ("kept", "published"):  # what the checkpoint holds is what the ledger says was released
        assert list(after.values())[2] == kept.meta["release"]
    assert verify(tmp_path / "run") == []


def draws_of_round_two(folder: Path, kills: int) -> list[bytes]:
    """What a client sends in round 2, in every attempt of a run that is killed before anything of it is kept."""
    sent: list[bytes] = []
    encode = Uplink.encode

    def spied(self: Uplink, upload: Any, grant: Any) -> Any:
        found = encode(self, upload, grant)
        if grant.client == watched[0]:
            sent.append(tree.leaves(found)[0].contiguous().numpy().tobytes())
        return found

    def dying(self: FederatedServer, now: Any, *rest: Any) -> Any:
        found = receive(self, now, *rest)
        if now.t == 2:
            raise Killed
        return found

    made, watched = BY_NAME["gaussian_gdp"].experiment(privacy=SYSTEM, cohort={"name": "everyone"}, rounds=3), [0]
    receive = FederatedServer.receive
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Uplink, "encode", spied)
        patch.setattr(FederatedServer, "receive", dying)
        with pytest.raises(Killed):
            start(made, folder)
        first = len(sent)
        for _ in range(kills):
            with contextlib.suppress(Killed):
                resume(folder)
    return sent[first - 1 :]


@pytest.mark.slow
def test_kills_do_not_average_the_noise_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the server dies after uploads have come in, it has seen one draw of them. The twin that draws again
    shows it another one every time."""
    assert len(set(draws_of_round_two(tmp_path / "run", 3))) == 1

    monkeypatch.setattr(FederatedServer, "cut_off", lambda self, t: None)
    monkeypatch.setattr(FederatedServer, "begin", lambda self, now: self.ledger.drawn(self.op(now.t)))
    assert len(set(draws_of_round_two(tmp_path / "twin", 3))) == 4


@pytest.mark.one_fast
@pytest.mark.parametrize("shared", [False, True])
def test_a_copied_folder_does_not_release_a_round_again(shared: bool, tmp_path: Path) -> None:
    """On one ledger the copy is stopped before it draws; a ledger that was copied with its folder is noticed by where
    it lies."""
    ledger = {"ledger": str(tmp_path / "shared.sqlite")} if shared else {}
    with killed_at("kept", 1):
        start(BY_NAME["gaussian_gdp"].experiment(privacy=SYSTEM | ledger), tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    resume(tmp_path / "run")
    before = released(tmp_path / "run")
    with pytest.raises((LedgerError, RunError)) as refusal:
        resume(tmp_path / "copy", moved=shared)  # the ledger knows better than who says that it has been moved
    assert refusal.value.code == ("released-elsewhere" if shared else "copied-run")
    assert released(tmp_path / "run") == before


def test_another_draw_of_the_same_release_is_refused(tmp_path: Path) -> None:
    """Without the checkpoint of its last round: going on would release the same operation twice. It is refused before
    anything is drawn."""
    with killed_at("published", 2):
        start(BY_NAME["gaussian_gdp"].experiment(privacy=SYSTEM), tmp_path / "run")
    before = released(tmp_path / "run")
    max((tmp_path / "run" / "checkpoints").glob("round-*.ckpt")).unlink()
    with pytest.raises(LedgerError) as refusal:
        resume(tmp_path / "run")
    assert refusal.value.code == "released-elsewhere"
    assert released(tmp_path / "run") == before


# Ctrl-C ---------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("executor", ["loop", "processes"])
def test_control_c_stops_at_a_point_from_which_it_continues(executor: str, tmp_path: Path) -> None:
    case = BY_NAME["whole_update"]
    engine = {"executor": executor, "workers": 2, "checkpoint_every": 3000}
    file = experiment_file(case, tmp_path, rounds=3000, engine=engine)
    out = tmp_path / "run"
    with open(tmp_path / "stdout", "wb") as said, open(tmp_path / "stderr", "wb") as complained:
        process = sordino("run", file, "--out", out, "--json", stdout=said, stderr=complained)
        while len(_lines(out)) < 4 and process.pid in _alive():
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    complaint = (tmp_path / "stderr").read_text()
    assert f"sordino resume {out}" in " ".join(complaint.split())
    assert "Traceback" not in complaint
    answer = json.loads((tmp_path / "stdout").read_text())
    assert 4 <= len(answer["metrics"]) < 3000
    assert verify(out) == []  # a receipt for what was done so far
    assert (out / "model.safetensors").is_file()
    kept = max((out / "checkpoints").glob("round-*.ckpt"))
    assert int(kept.stem.removeprefix("round-")) == len(answer["metrics"])  # however rare they are

    with killed_at("published", 20):
        resume(out)
    stopped = {entry.op: entry.digest for entry in entries(out)[:20]}
    with killed_at("published", 20):
        start(case.experiment(rounds=3000), tmp_path / "whole")
    assert stopped == {entry.op: entry.digest for entry in entries(tmp_path / "whole")[:20]}


@pytest.mark.slow
def test_control_c_in_a_terminal_reaches_the_whole_group(tmp_path: Path) -> None:
    """The client processes are spared, so that they do not print what happened to them."""
    engine = {"executor": "processes", "workers": 2}
    file = experiment_file(BY_NAME["fedavg"], tmp_path, rounds=3000, engine=engine)
    with open(tmp_path / "stderr", "wb") as complained:
        run = subprocess.Popen(
            [sys.executable, "-m", "sordino", "run", str(file), "--out", str(tmp_path / "run"), "-q"],
            stderr=complained,
            start_new_session=True,
        )
        while len(_lines(tmp_path / "run")) < 3 and run.poll() is None:
            time.sleep(0.01)
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait() == 130
    complaint = (tmp_path / "stderr").read_text()
    assert "Traceback" not in complaint
    assert "sordino resume" in complaint


def test_a_round_that_was_reserved_for_nobody_goes_on_without_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secret coins fell for nobody, and the process died before anything left. As it was, the coins were tossed again,
    and the ledger refused to have the round for others: the run could not go on."""
    case = BY_NAME["gaussian_gdp"]
    secret = {"privacy": case.privacy | {"noise": "system"}, "cohort": {"name": "poisson", "rate": 0.5}}
    draw, begin, drawn = Accounts.draw, Accounts.begin, [[], [0, 1]]

    def dies(self: Accounts, now: OpenRound) -> None:
        if now.t == 1:
            raise Killed
        begin(self, now)

    monkeypatch.setattr(Accounts, "draw", lambda self, now, *rest: drawn.pop(0) if now.t == 1 else draw(self, now))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Accounts, "begin", dies)
        with pytest.raises(Killed):
            start(case.experiment(**secret), tmp_path / "run")
    again = resume(tmp_path / "run")
    assert not drawn
    assert [row.answered for row in again.metrics][1] == 0
    assert len(again.metrics) == case.experiment().rounds
    assert verify(tmp_path / "run") == []


@pytest.mark.slow
def test_ctrl_c_waits_for_the_round_where_noise_cannot_be_drawn_again(tmp_path: Path) -> None:
    made = load(None, ["rounds=4", "partition.clients=4", "privacy.noise=system"])

    def press(step: Progress) -> None:
        if step.round == 2:
            os.kill(os.getpid(), signal.SIGINT)

    result = start(made, tmp_path / "run", press)
    assert result.interrupted
    assert len(result.metrics) == 2
    first = released(tmp_path / "run")
    again = resume(tmp_path / "run")
    assert not again.interrupted
    assert len(again.metrics) == 4
    assert {op: digest for op, digest in released(tmp_path / "run").items() if op in first} == first
    assert verify(tmp_path / "run") == []
