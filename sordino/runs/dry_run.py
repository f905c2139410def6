"""Dry run: the choices that a run would make, and the files that it would write."""

from __future__ import annotations

import os
from pathlib import Path

from sordino import user_code
from sordino.config import Engine, Experiment
from sordino.device import CPU
from sordino.receipts.folder import RunFolder
from sordino.receipts.private import DATA
from sordino.runs.bundle import kept_private
from sordino.runs.setup import Setup

ORDERED = "it stands in [engine]"


def choices(asked: Engine, engine: Engine, experiment: Experiment) -> list[str]:
    """The program's own choices for a run (executor, device, precision, noise, ledger), each with its reason."""
    rule = {
        "pooled": "the algorithm reads examples behind noise, and clients at equal weights can share a pass",
        "stack": "the algorithm reads examples as they are, and clients of equal shape can be trained in one call",
    }
    has = "this processor has" if engine.precision == "bf16" else "this processor lacks"
    why = ORDERED if asked.executor != "auto" else rule.get(engine.executor, "the algorithm asks for it")
    rule_of_bf16 = (
        f"{has} instructions that multiply bf16" if engine.device == CPU else "as long as bf16 is not measured there"
    )
    precise = ORDERED if asked.precision != "auto" else rule_of_bf16
    trainers = "processes" if engine.client_processes else "threads or forks"
    data, privacy = experiment.data, experiment.privacy
    kept = "real: of the operating system" if privacy.real else f"simulated, from the seed {experiment.seed}"
    return [
        f"executor {engine.executor}: {why}",
        f"device {engine.device}: {_placed(asked, engine)}",
        f"workers {engine.workers}: {trainers} that train clients, each with {engine.threads} torch threads",
        f"precision {engine.precision}: {precise}",
        f"data {data.source}" + (f", from {_places(data.path)}" if data.path is not None else ""),
        f"noise {kept}",
        "ledger " + ("in the run folder" if privacy.ledger is None else f"shared: {os.path.abspath(privacy.ledger)}"),
        f"experiment {experiment.digest()[:16]}",
    ]


def _placed(asked: Engine, engine: Engine) -> str:
    if asked.device != "auto":
        return ORDERED if engine.device != CPU else "the default"
    return "this machine has no other" if engine.device == CPU else "this machine has one"


def _places(path: str | list[str]) -> str:
    if isinstance(path, str) and user_code.is_lent(path):
        return "the memory of this Python session"
    return ", ".join(map(os.path.abspath, [path] if isinstance(path, str) else path))


def would_write(folder: Path, setup: Setup) -> list[Path]:
    """Files that a run writes, in the order in which they appear."""
    mine, experiment = RunFolder(folder), setup.experiment
    own = experiment.privacy.real
    shared = experiment.privacy.ledger
    return [
        mine.experiment_file,
        mine.environment_file,
        mine.agreement_file,
        *([mine.candidates_file] if experiment.candidates is not None else []),
        folder / DATA,
        *([mine.private] if own else []),
        *([mine.preparation, mine.preparation_file] if setup.preparation else []),
        mine.own_ledger if shared is None else Path(shared),
        mine.metrics_file,
        mine.checkpoints,
        mine.model_file,
        *([mine.description_file] if setup.experiment.data.source != "quadratic" and not kept_private(setup) else []),
        mine.log_file,
        mine.receipt_file,
    ]
