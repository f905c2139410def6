"""Create a run folder with all that `resume` needs, whole or not at all; or, in a dry run, name the files and the
choices that a run would make."""

from __future__ import annotations

import datetime
import hmac
import json
import os
import platform
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch

from sordino import user_code
from sordino.accounting.events import Json
from sordino.accounting.facts import FORMAT
from sordino.config import Engine, Experiment, start_of
from sordino.device import CPU
from sordino.errors import RunError, unwritten
from sordino.ledger.files import atomic_write, sync
from sordino.planning import Agreement
from sordino.planning.phase import PlannedPhase
from sordino.receipts import Environment, private
from sordino.receipts.folder import RunFolder
from sordino.receipts.newest import place_of
from sordino.receipts.private import DATA
from sordino.runs.bundle import kept_private
from sordino.runs.setup import PhaseSetup
from sordino.runs.witness import Witness, needed
from sordino.version import __version__


def create_folder(
    folder: Path,
    setup: PlannedPhase,
    agreement: Agreement,
    environment: Environment,
    data_key: bytes,
    story: Json | None = None,
    more: Mapping[str, str] | None = None,
    secret: bytes = b"",
) -> None:
    """Creates a run folder: written under another name beside its place, then renamed. `story`: how the server's own
    images were made; `more`: further files, by name; `secret`: that of the clients, where it is not a new one."""
    experiment, young = setup.experiment, folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        parents = list(folder.absolute().parents)
        around = parents[: 1 + next(i for i, parent in enumerate(parents) if parent.exists())]
        young.mkdir(parents=True)
        files = RunFolder(young)
        atomic_write(files.experiment_file, experiment.toml().encode())
        environment = environment.beside(began=start_of(folder))
        atomic_write(files.environment_file, json.dumps(environment.to_json(), indent=2).encode())
        if story is not None:
            atomic_write(files.candidates_file, json.dumps(story, indent=2).encode())
        if experiment.privacy.real:
            once = any(phase.algorithm.read.redraw is not None for phase in setup.whole.phases)
            private.create(young, secret := (secret or private.new_key()) if once else b"")
            if once:
                private.write(files.private / private.WHOSE, hmac.digest(secret, environment.run.encode(), "sha256"))
        if data_key:  # between sites a site's identity has it
            private.write(young / private.DATA, data_key)
        agreement.write(young)
        for name, text in (more or {}).items():
            atomic_write(young / name, text.encode())
        young.rename(folder)
        for parent in around:
            sync(parent)
    except OSError as error:
        raise unwritten(f"cannot create {folder}", error, "choose another --out") from None
    except RunError as error:  # of a file in it
        fix = "free some space, then start again: nothing has begun" if error.code == "disk-full" else error.fix
        raise RunError(f"cannot create {folder}", why=error.why, fix=fix, code=error.code) from None
    finally:
        shutil.rmtree(young, ignore_errors=True)
    if needed(setup):  # a kill before it makes the receipt say more than it must
        Witness(folder, place_of(RunFolder(folder))).create()


def environment_of(experiment: Experiment, prepared: Path | None = None, run: str = "") -> Environment:
    """The environment of a new run: versions, machine, time and the run's name. `prepared`: the run whose preparation
    is reused; `run`: the name, where another party chose it.
    """
    digest = experiment.digest()
    # a seeded run is the same release whenever it is repeated; noise from the system never is
    run = run or (digest[:16] if not experiment.privacy.real else f"{digest[:16]}-{secrets.token_hex(6)}")
    return Environment(
        format=FORMAT,
        run=run,
        config=digest,
        sordino=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        platform=platform.platform(),
        processor=platform.machine(),
        cores=os.cpu_count() or 0,
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        prepared="" if prepared is None else str(prepared.resolve()),
    )


ORDERED = "it stands in [engine]"


def choices(asked: Engine, engine: Engine, experiment: Experiment) -> list[str]:
    """The program's own choices for a run (executor, device, precision, noise, ledger), each with its reason."""
    rule = {
        "pooled": "the algorithm reads examples behind noise, and clients at equal weights can share a pass",
        "stack": "the algorithm reads examples as they are, and clients of equal shape can be trained in one call; in "
        "a hidden cohort, or of secret sizes, with real noise each is trained alone",
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


def would_write(folder: Path, setup: PhaseSetup) -> list[Path]:
    """Files that a run writes, in the order in which they appear."""
    files, experiment = RunFolder(folder), setup.experiment
    own = experiment.privacy.real
    shared = experiment.privacy.ledger
    return [
        files.experiment_file,
        files.environment_file,
        files.agreement_file,
        *([files.candidates_file] if experiment.candidates is not None else []),
        folder / DATA,
        *([files.private] if own else []),
        *([files.preparation, files.preparation_file] if setup.preparation else []),
        files.own_ledger if shared is None else Path(shared),
        files.metrics_file,
        files.checkpoints,
        files.model_file,
        *([files.description_file] if setup.experiment.data.source != "quadratic" and not kept_private(setup) else []),
        files.log_file,
        files.receipt_file,
    ]
