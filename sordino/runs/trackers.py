"""TensorBoard, MLflow, wandb and trackio behind one small protocol, for users who ask for them: `sordino run --track
tensorboard`.

Nothing is sent and no package is imported unless it is named, and trackers are not part of an experiment. They get only
numbers that metrics.jsonl and the receipt hold: never a list with one value per client, which is the evaluator's alone.
Even the averages are computed from the test data and are covered by no epsilon, so everything stays on this machine by
default: TensorBoard, MLflow and trackio write local files, wandb runs offline until your own WANDB_MODE says otherwise,
and what these packages would report of themselves is off. They write down when they are told something, so of a secret
cohort they are told at the end of the run."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from sordino.accounting.claims import Status, Subject, standing
from sordino.accounting.events import Json
from sordino.errors import ConfigError
from sordino.receipts import Receipt
from sordino.receipts.folder import numbers
from sordino.runs.rounds import shown

if TYPE_CHECKING:
    from sordino.runs.play import Ended, Progress

# fields that disclose the size of a cohort, which stays secret where the cohort is hidden
CROWD = {"active", "answered", "bytes_down", "bytes_up", "device_flops"}
Watch = Callable[["Progress"], None]


class Tracker(Protocol):
    """Interface of an adapter. `settings` and `row` are flat and hold plain values."""

    needs: str  # the package
    quiet: Mapping[str, str]  # environment variables that keep it local and silent

    def start(self, settings: Json, folder: Path) -> None: ...
    def round(self, row: Mapping[str, float], step: int) -> None: ...
    def end(self, promised: Mapping[str, float]) -> None: ...


class TensorBoard:
    """Event files in RUN/tensorboard: `tensorboard --logdir runs` shows all runs."""

    needs: str = "tensorboard"
    quiet: Mapping[str, str] = MappingProxyType({})

    def start(self, settings: Json, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder / "tensorboard"))
        self._writer.add_text("experiment", "\n".join(f"    {name} = {value}" for name, value in settings.items()))

    def round(self, row: Mapping[str, float], step: int) -> None:
        for name, value in row.items():
            self._writer.add_scalar(name, value, step)

    def end(self, promised: Mapping[str, float]) -> None:
        for name, value in promised.items():
            self._writer.add_scalar(name, value)
        self._writer.close()


class MLflow:
    """Plain files beside the run folder, in mlruns, unless MLFLOW_TRACKING_URI is set."""

    needs: str = "mlflow"
    quiet: Mapping[str, str] = MappingProxyType({"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"})

    def start(self, settings: Json, folder: Path) -> None:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        place = os.environ.get("MLFLOW_TRACKING_URI") or (folder.resolve().parent / "mlruns").as_uri()
        self._client: Any = MlflowClient(place)
        experiment = self._client.get_experiment_by_name("sordino")
        self._run = self._client.create_run(
            experiment.experiment_id if experiment else self._client.create_experiment("sordino"), run_name=folder.name
        ).info.run_id
        self._client.log_batch(self._run, params=[Param(k, str(v)) for k, v in settings.items()])

    def round(self, row: Mapping[str, float], step: int) -> None:
        for name, value in row.items():
            self._client.log_metric(self._run, name, value, step=step)

    def end(self, promised: Mapping[str, float]) -> None:
        for name, value in promised.items():
            self._client.log_metric(self._run, name, value)
        self._client.set_terminated(self._run)


class WandbTracker:
    """wandb and trackio, which have the same interface: `wandb sync RUN/wandb/*`, `trackio show --project sordino`."""

    def __init__(self, needs: str, quiet: Mapping[str, str], choices: Callable[[Path], Json]) -> None:
        self.needs, self.quiet, self._choices = needs, quiet, choices

    def start(self, settings: Json, folder: Path) -> None:
        self._board: Any = importlib.import_module(self.needs)
        self._run = self._board.init(
            project="sordino", name=folder.name, config=dict(settings), **self._choices(folder)
        )

    def round(self, row: Mapping[str, float], step: int) -> None:
        self._run.log(dict(row), step=step)

    def end(self, promised: Mapping[str, float]) -> None:
        if promised:
            self._run.log(dict(promised))
        self._board.finish()


def _wandb() -> WandbTracker:
    """Weights & Biases, which gets only the run's numbers: not the machine, its load, code or printed text."""
    nothing_else = {"x_disable_meta": True, "x_disable_stats": True, "x_disable_machine_info": True}
    nothing_else |= {"disable_git": True, "disable_code": True, "x_save_requirements": False}

    def choices(folder: Path) -> Json:
        mode = os.environ.get("WANDB_MODE", "offline")
        return {
            "mode": mode,
            "dir": str(folder),
            "settings": {**nothing_else, "console": "off", "silent": True, "host": "-"},
        }

    return WandbTracker("wandb", {"WANDB_ERROR_REPORTING": "false"}, choices)


def _trackio() -> WandbTracker:
    off = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return WandbTracker("trackio", off, lambda folder: {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False})


TRACKERS: dict[str, Callable[[], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": _wandb,
    "trackio": _trackio,
}


def tracked(go: Callable[[Watch], Ended], to: Sequence[str], watch: Watch | None = None) -> Ended:
    """Run `go` and report its rounds to the trackers named. An error in one of them becomes a note."""
    followers = [_Follower(name, _open(name)) for name in to]

    def tell(step: Progress) -> None:
        for follower in followers:
            follower.see(step)
        if watch is not None:
            watch(step)

    promised: dict[str, float] = {}
    try:
        ended = go(tell)
        promised = _promised(ended.receipt)
    finally:
        for follower in followers:
            follower.leave(promised)
    return replace(ended, notes=[*ended.notes, *(follower.note for follower in followers if follower.note)])


def _open(name: str) -> Tracker:
    if name not in TRACKERS:
        raise ConfigError(
            f"no tracker is called {name!r}", fix=f"use one of {', '.join(TRACKERS)}", code="unknown-tracker"
        )
    tracker = TRACKERS[name]()
    for variable, value in tracker.quiet.items():
        os.environ.setdefault(variable, value)  # a value that the user has set is kept
    try:
        importlib.import_module(tracker.needs)
    except Exception as error:
        raise ConfigError(
            f"{name} cannot be used: {type(error).__name__}: {error}",
            why=f"the package {tracker.needs} is needed, and nothing else in sordino needs it",
            fix="run: pip install 'sordino[track]', or run without the tracker",
            code="tracker-missing",
        ) from None
    return tracker


@dataclass
class _Follower:
    """Tracker of a run, which is left out for the rest of the run once it fails."""

    name: str
    tracker: Tracker
    started: bool = False
    note: str = ""
    held: list[Callable[[], None]] = field(default_factory=list)  # until the run ends

    def see(self, step: Progress) -> None:
        if step.metrics.phase:  # of a preparation, whose rounds have other numbers
            return

        def tell() -> None:
            if not self.started:  # not before the first round: a run folder appears whole or not at all
                self.tracker.start(_settings(step.setup.experiment.model_dump(mode="json")), step.folder)
                self.started = True
            hidden, real = step.setup.policy.hidden, step.setup.policy.real
            # an evaluator's numbers stay with the evaluator
            metrics = shown(step.metrics, hidden) if real else step.metrics.to_json()
            kept = {"round"} | (CROWD if hidden else set())
            row = {name: value for name, value in numbers(metrics).items() if name not in kept}
            self.tracker.round(row, step.round)

        if step.setup.policy.secret_cohort:  # a round's duration reveals how many were drawn, and trackers record times
            self.held.append(tell)
        else:
            self._safely(tell)

    def leave(self, promised: Mapping[str, float]) -> None:
        for tell in self.held:
            self._safely(tell)
        if self.started:
            self._safely(lambda: self.tracker.end(promised))

    def _safely(self, tell: Callable[[], None]) -> None:
        if self.note:
            return
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # standard output is the run's: --json prints one object
                tell()
        except Exception as error:
            self.note = f"{self.name} stopped following: {type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _settings(experiment: Json, prefix: str = "") -> Json:
    """Numbers, switches and the names that choose something: no paths, no names of columns."""
    found: Json = {}
    for name, value in experiment.items():
        if isinstance(value, dict):
            found |= _settings(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) or (
            isinstance(value, str) and name in ("name", "scheme", "source", "noise")
        ):
            found[f"{prefix}{name}"] = value
    return found


def _promised(receipt: Receipt) -> dict[str, float]:
    """The finite guarantees, named by unit, neighbours, adversary and status, with their delta; and the share of the
    budget that is spent, as `spent_share_nominal` where a publication's own count says it.
    """
    found: dict[str, float] = {}
    for row in receipt.guarantees:
        if row.finite:
            about = "_".join(dict(row.subject).values())
            found |= {epsilon_name(row, row.status, receipt.simulated): row.epsilon, f"delta_{about}": row.delta}
    if (budget := receipt.budget) is not None:
        share = "spent_share_nominal" if budget.nominal(receipt.guarantees) else "spent_share"
        found[share] = budget.spent_share.max
    return found


def epsilon_name(row: Subject, status: Status, simulated: bool) -> str:
    """Name of an epsilon in a table of plain numbers: unit, neighbours, adversary and status are part of it."""
    suffix = re.sub(r"\W+", "_", standing(status, simulated)).strip("_")
    return "_".join(("epsilon", *dict(row.subject).values(), suffix))
