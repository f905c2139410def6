"""Trackers get the numbers of the run folder and nothing of single clients; none of them can end a run. Real packages
where installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import pytest

import sordino
from sordino import config
from sordino.cli import main
from sordino.errors import RunError, SordinoError
from sordino.results import Result
from sordino.runs import trackers as tracking
from sordino.runs.run import start

ROUNDS = 3
SMALL: dict[str, Any] = {
    "rounds": ROUNDS,
    "partition": {"scheme": "iid", "clients": 3},
    "evaluation.every": 2,
    "evaluation.final": 0,
}
NUMBERS = {"active", "answered", "bytes_down", "bytes_up", "payload", "accuracy", "loss", "model_norm"}
NUMBERS |= {"device_flops", "majority"}
NUMBERS |= {"clients_mean", "clients_std", "clients_worst_tenth"}


class Recorder:
    """A tracker that only remembers, and breaks where it is told to."""

    needs: str = "json"
    quiet: Mapping[str, str] = MappingProxyType({})

    def __init__(self, breaks: str = "") -> None:
        self.breaks = breaks
        self.settings: dict[str, Any] = {}
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.promised: dict[str, float] | None = None

    def start(self, settings: Mapping[str, Any], folder: Path) -> None:
        self._break("start")
        assert (folder / "experiment.toml").exists()
        self.settings = dict(settings)

    def round(self, row: Mapping[str, float], step: int) -> None:
        self._break("round")
        self.rows.append((step, dict(row)))

    def end(self, promised: Mapping[str, float]) -> None:
        self._break("end")
        self.promised = dict(promised)

    def _break(self, where: str) -> None:
        if where == self.breaks:
            raise OSError(f"no room\nin {where}")


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, *trackers: Recorder, **changes: Any) -> Result:
    names = [f"recorder-{i}" for i in range(len(trackers))]
    for name, tracker in zip(names, trackers, strict=True):
        monkeypatch.setitem(tracking.TRACKERS, name, lambda tracker=tracker: tracker)
    return sordino.run(out=folder / "run", track=names, **{**SMALL, **changes})


def expected(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """The numbers of metrics.jsonl, read here by other means."""
    found = []
    for line in (folder / "run" / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        clients = row.pop("clients", {})
        row |= {f"clients_{name}": clients[name] for name in ("mean", "std", "worst_tenth") if clients}
        found.append((row.pop("round"), row))
    return found


# what goes out --------------------------------------------------------------------------------------------------------


def test_the_numbers_of_the_folder_go_out_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    result = run(tmp_path, monkeypatch, recorder)
    assert recorder.rows == expected(tmp_path)
    assert set().union(*(row for _, row in recorder.rows)) == NUMBERS
    server = next(row for row in result.receipt.guarantees if row.finite and row.adversary == "server")
    assert recorder.promised is not None
    assert recorder.promised["epsilon_example_replace_server_proved_simulation"] == server.epsilon
    assert recorder.promised["delta_example_replace_server"] == server.delta
    assert recorder.promised["spent_share"] == result.receipt.budget.spent_share.max
    assert result.notes == []


def test_how_many_a_hidden_cohort_drew_stays_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, twin = Recorder(), Recorder()
    hidden = {"cohort": {"name": "poisson", "rate": 0.5}, "algorithm": {"name": "fedavg"}, "privacy": {}}
    run(tmp_path, monkeypatch, recorder, **hidden)
    crowd = {"active", "answered", "bytes_down", "bytes_up", "device_flops"}
    assert not set().union(*(row for _, row in recorder.rows)) & crowd
    assert any("accuracy" in row for _, row in recorder.rows)
    monkeypatch.setattr(tracking, "CROWD", set())  # the twin that tells
    run(tmp_path / "twin", monkeypatch, twin, **hidden)
    assert set().union(*(row for _, row in twin.rows)) >= crowd


def test_when_a_round_of_a_secret_cohort_ended_is_told_to_no_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round takes as long as it has clients, and trackers keep the time at which they are told of it."""
    hidden: dict[str, Any] = {
        "cohort": {"name": "poisson", "rate": 0.5},
        "algorithm": {"name": "fedavg"},
        "uplink": {
            "client": [{"name": "clip", "radius": 1.0}],
            "server": [{"name": "noise", "neighbours": "zero_out"}],
        },
    }
    for noise, told in (("counter", [1, 2, 3]), ("system", [0, 0, 0])):
        recorder, after = Recorder(), list[int]()
        monkeypatch.setitem(tracking.TRACKERS, "recorder", lambda recorder=recorder: recorder)
        made = config.load(None, settings={**SMALL, **hidden, "privacy": {"epsilon": 8.0, "noise": noise}})

        def watch(step: Any, seen: Recorder = recorder, after: list[int] = after) -> None:
            after.append(len(seen.rows))

        tracking.tracked(partial(start, made, tmp_path / noise), ["recorder"], watch)
        assert after == told
        assert [step for step, _ in recorder.rows] == [1, 2, 3]
        assert recorder.promised


def test_no_value_of_a_single_client_goes_out() -> None:
    leaky = {"round": 1, "loss": 0.5, "clients": {"mean": 0.5, "each": [0.1, 0.9], "metric": "accuracy"}, "x": [1, 2]}
    assert tracking.numbers(leaky) == {"round": 1, "loss": 0.5, "clients_mean": 0.5}


def test_no_path_and_no_name_of_a_column_goes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "secret-place.csv", "w") as file:
        file.write("age,ward,outcome\n" + "".join(f"{i % 70},w{i % 3},{i % 2}\n" for i in range(60)))
    table = {"source": "tabular", "path": str(tmp_path / "secret-place.csv"), "label": "outcome", "group": "ward"}
    recorder, ledger = Recorder(), str(tmp_path / "secret-ledger.sqlite")
    run(tmp_path, monkeypatch, recorder, data=table, partition={"scheme": "natural"}, **{"privacy.ledger": ledger})
    assert recorder.settings["algorithm.name"] == "gaussian_gdp"
    assert recorder.settings["privacy.epsilon"] == 8.0
    assert recorder.settings["privacy.noise"] == "counter"  # who reads these runs sees which were simulations
    assert recorder.settings["data.source"] == "tabular"
    said = json.dumps([recorder.settings, recorder.rows, recorder.promised])
    for secret in ("secret", "ward", "outcome", str(tmp_path)):
        assert secret not in said


def test_a_tracker_is_no_part_of_the_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = run(tmp_path, monkeypatch, Recorder())
    alone = sordino.run(out=tmp_path / "alone", **SMALL)
    # the ledger's head holds a digest of the data under a key of each run's own
    assert told.receipt == alone.receipt.beside(ledger_head=told.receipt.ledger_head)
    assert told.metrics == alone.metrics


def test_a_resumed_run_tells_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(step: Any) -> None:
        if step.round == 2:
            raise KeyboardInterrupt

    start(config.load(None, settings={**SMALL, "rounds": 4}), tmp_path / "run", stop)
    recorder = Recorder()
    monkeypatch.setitem(tracking.TRACKERS, "recorder", lambda: recorder)
    sordino.resume(tmp_path / "run", track=["recorder"])
    assert recorder.rows == expected(tmp_path)[2:]
    again = Recorder()
    monkeypatch.setitem(tracking.TRACKERS, "recorder", lambda: again)
    sordino.resume(tmp_path / "run", track=["recorder"])  # nothing is left to do, so nothing is said
    assert (again.settings, again.rows, again.promised) == ({}, [], None)


# what breaks ----------------------------------------------------------------------------------------------------------


@pytest.mark.one_fast
@pytest.mark.parametrize("where", ["start", "round", "end"])
def test_a_tracker_that_fails_is_a_note(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, sound = Recorder(where), Recorder()
    result = run(tmp_path, monkeypatch, broken, sound)
    assert result.notes == ["recorder-0 stopped following: OSError: no room"]
    assert len(result.metrics) == ROUNDS
    assert sound.rows == expected(tmp_path)
    assert sound.promised


def test_a_run_that_fails_ends_its_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setitem(tracking.TRACKERS, "recorder", lambda: recorder)
    experiment = config.load(None, settings=SMALL)

    def go(tell: tracking.Watch) -> Any:
        def break_(step: Any) -> None:
            tell(step)
            if step.round == 2:
                raise RunError("out of luck")

        return start(experiment, tmp_path / "run", break_)

    with pytest.raises(RunError, match="out of luck"):
        tracking.tracked(go, ["recorder"])
    assert [step for step, _ in recorder.rows] == [1, 2]
    assert recorder.promised == {}  # ended, with nothing promised: there is no receipt


def test_ctrl_c_is_not_swallowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()

    def press(row: Mapping[str, float], step: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(recorder, "round", press)
    assert run(tmp_path, monkeypatch, recorder).interrupted


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb", "trackio"])
def test_a_missing_package_is_said_before_anything_starts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SordinoError) as refusal:
        sordino.run(out=tmp_path / "run", track=[name], **SMALL)
    assert refusal.value.code == "tracker-missing"
    assert "sordino[track]" in refusal.value.fix
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_imported_unasked(tmp_path: Path) -> None:
    before = set(sys.modules)
    sordino.run(out=tmp_path / "run", **{**SMALL, "rounds": 1})
    assert not {"tensorboard", "mlflow", "wandb", "trackio"} & {
        name.partition(".")[0] for name in set(sys.modules) - before
    }


def test_the_command_line_takes_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorders = [Recorder(), Recorder("start")]
    for name, recorder in zip(("one", "two"), recorders, strict=True):
        monkeypatch.setitem(tracking.TRACKERS, name, lambda recorder=recorder: recorder)
    words = ["run", "rounds=2", "partition=iid", "partition.clients=3", "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["sordino", *words, "--track", "one", "--track", "two"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert [step for step, _ in recorders[0].rows] == [1, 2]
    assert "two stopped following" in capsys.readouterr().out


# the packages themselves ----------------------------------------------------------------------------------------------


def real(name: str) -> None:
    pytest.importorskip(name, reason=f"{name} is not installed: pip install 'sordino[track]'")


@pytest.mark.slow
def test_tensorboard_reads_it_back(tmp_path: Path) -> None:
    real("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = sordino.run(out=tmp_path / "run", track=["tensorboard"], **SMALL)
    assert result.notes == []
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    told: dict[tuple[int, str], float] = {}
    for name in board.Tags()["scalars"]:
        told |= {(event.step, name): event.value for event in board.Scalars(name)}
    rows = {(step, name): value for step, row in expected(tmp_path) for name, value in row.items()}
    promised = {(0, name): value for name, value in tracking._promised(result.receipt).items()}
    assert told == pytest.approx(rows | promised, rel=1e-6)  # events hold 32-bit floats
    assert promised


def test_mlflow_reads_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    result = sordino.run(out=tmp_path / "run", track=["mlflow"], **SMALL)
    assert result.notes == []
    from mlflow.tracking import MlflowClient

    client = MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("sordino")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == "run"
    assert found.info.status == "FINISHED"
    assert found.data.params["algorithm.name"] == "gaussian_gdp"
    for name in NUMBERS:
        told = [(metric.step, metric.value) for metric in client.get_metric_history(found.info.run_id, name)]
        assert told == [(step, row[name]) for step, row in expected(tmp_path) if name in row]
    assert found.data.metrics["spent_share"] == result.receipt.budget.spent_share.max
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_wandb_stays_offline_and_keeps_to_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: "secret-host")
    result = sordino.run(out=tmp_path / "run", track=["wandb"], **SMALL)
    assert result.notes == []
    (kept,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    names = NUMBERS | {"epsilon_example_replace_server_proved_simulation", "algorithm.name"}
    deadline = time.monotonic() + 30  # another process writes it
    while any(name.encode() not in kept.read_bytes() for name in names):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    told = kept.read_bytes()
    for secret in ("secret-host", sys.executable, str(Path.cwd()), "each"):
        assert secret.encode() not in told
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/files/*")) == []  # no machine, no packages, no code


def test_trackio_reads_it_back(tmp_path: Path) -> None:
    real("trackio")
    # it fixes its place when it is imported, so it gets a process of its own
    script = (
        "import json, sys, sordino\n"
        f"result = sordino.run(out='run', track=['trackio'], **json.loads({json.dumps(json.dumps(SMALL))}))\n"
        "import trackio\n"
        "from trackio.sqlite_storage import SQLiteStorage\n"
        "told = SQLiteStorage.get_logs('sordino', 'run')\n"
        "json.dump([result.notes, told], open('told.json', 'w'), default=str)\n"
    )
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout == ""  # its own words stay out of ours
    notes, told = json.loads((tmp_path / "told.json").read_text())
    assert notes == []
    for (step, row), kept in zip(expected(tmp_path), told, strict=False):
        assert kept["step"] == step
        assert {name: kept[name] for name in row} == row
    assert told[-1]["spent_share"] == pytest.approx(1, abs=1e-6)


# stand-ins, where the packages are not installed: what is asked of them -----------------------------------------------


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[tuple[str, Any]]]:
    def stand_in(name: str) -> list[tuple[str, Any]]:
        calls: list[tuple[str, Any]] = []
        module: Any = ModuleType(name)
        log = lambda row, step=None: calls.append(("log", (step, row)))  # noqa: E731
        made = SimpleNamespace(log=log)
        module.finish = lambda: calls.append(("finish", None))
        module.init = lambda **asked: calls.append(("init", asked)) or made
        monkeypatch.setitem(sys.modules, name, module)
        return calls

    return stand_in


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_board_is_started_told_and_finished(
    name: str, board: Callable[[str], list[tuple[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    calls = board(name)
    sordino.run(out=tmp_path / "run", track=[name], **SMALL)
    assert [what for what, _ in calls] == ["init", *["log"] * ROUNDS, "log", "finish"]
    assert [told for what, told in calls if what == "log"][:ROUNDS] == expected(tmp_path)
    asked = calls[0][1]
    assert (asked["project"], asked["name"]) == ("sordino", "run")
    assert asked.get("mode", "offline") == "offline"
    assert "space_id" not in asked


def test_the_users_own_wandb_mode_stands(
    board: Callable[[str], list[tuple[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    calls = board("wandb")
    sordino.run(out=tmp_path / "run", track=["wandb"], **SMALL)
    assert calls[0][1]["mode"] == "online"
    assert calls[0][1]["settings"]["x_disable_meta"] is True
