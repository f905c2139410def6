"""A run from its first round to its receipt: rounds, metrics, checkpoints, resume. Everything it leaves lies in one folder.

experiment.toml   resolved      environment.json  where it ran          metrics.jsonl     one object per round
ledger.sqlite     what was spent   checkpoints/   old or new, never half   privacy.json   the receipt      model.safetensors
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import platform
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, NamedTuple

import safetensors.torch
import torch

from sordino import config, tree
from sordino.assemble import Parts, settle
from sordino.audible import drowning
from sordino.config import Experiment
from sordino.engine import checkpoint
from sordino.engine.checkpoint import atomic_write
from sordino.engine.client import Clients
from sordino.engine.federation import Federation
from sordino.engine.memory import keep_freed_memory
from sordino.engine.processes import Processes
from sordino.errors import BudgetExhausted, LedgerError, NonFiniteModel, RunError
from sordino.folder import COSTS, SECRET, check_is_run, read_metrics, secret_of
from sordino.ranks import Ranks
from sordino.receipt import receipt
from sordino.round import Outcome, one_round
from sordino.version import __version__

Metrics = dict[str, Any]


class Progress(NamedTuple):
    round: int
    rounds: int
    metrics: Metrics
    folder: Path
    parts: Parts
    federation: Federation


@dataclass(frozen=True)
class Ended:
    folder: Path
    metrics: list[Metrics]
    receipt: dict[str, Any]
    notes: list[str]  # what the user should know and no table shows
    interrupted: bool


def start(
    experiment: Experiment, folder: Path, watch: Callable[[Progress], None] | None = None, crash: int | None = None
) -> Ended:
    """Run an experiment in a new folder. `crash` rehearses: the process is killed in that round, once it is reserved."""
    experiment = settle(experiment)
    experiment = experiment.model_copy(update={"engine": Parts(experiment).engine})
    parts = Parts(experiment)
    _ = parts.plan, parts.evaluation()  # every refusal happens before a folder exists
    if (secure := parts.algorithm.uplink.secure) is not None:
        secure.needs()
    if folder.exists():
        raise RunError(
            f"{folder} already exists",
            why="a run folder belongs to one run",
            fix=f"`sordino resume {folder}` continues it; otherwise choose another --out",
            code="run-exists",
        )
    _found(folder, experiment, secret=experiment.privacy.noise == "system" and hasattr(parts.algorithm.read, "prepare"))
    return _train(parts, folder, watch, crash=crash)


def _found(folder: Path, experiment: Experiment, secret: bool) -> None:
    """The run folder with what `resume` needs: it appears whole or not at all."""
    young = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        young.mkdir(parents=True)
        atomic_write(young / "experiment.toml", experiment.toml().encode())
        atomic_write(young / "environment.json", json.dumps(_environment(experiment), indent=2).encode())
        if secret:
            (young / SECRET).touch(0o600)
            (young / SECRET).write_bytes(secrets.token_bytes(32))
        young.rename(folder)
    except OSError as error:
        raise RunError(
            f"cannot create {folder}", why=error.strerror or str(error), fix="choose another --out", code="not-writable"
        ) from None
    finally:
        shutil.rmtree(young, ignore_errors=True)


def fresh_folder(name: str) -> Path:
    """runs/DATE-NAME, numbered where that is taken."""
    stem = f"{datetime.date.today().isoformat()}-{name}"
    folder, again = Path("runs") / stem, 2
    while folder.exists():
        folder, again = Path("runs") / f"{stem}-{again}", again + 1
    return folder


def resume(folder: Path, watch: Callable[[Progress], None] | None = None, fallback: bool = False) -> Ended:
    """Continue a run where its last checkpoint stands: the same bytes as if it had never stopped.

    `fallback` sets a damaged newest checkpoint aside and takes the one before; seeded rounds are then played again, to the same releases.
    """
    check_is_run(folder)
    return _train(Parts(config.load(folder / "experiment.toml")), folder, watch, fallback)


def _train(
    parts: Parts,
    folder: Path,
    watch: Callable[[Progress], None] | None,
    fallback: bool = False,
    crash: int | None = None,
) -> Ended:
    experiment = parts.experiment
    torch.set_num_threads(experiment.engine.threads)
    keep_freed_memory()
    run = json.loads((folder / "environment.json").read_text())["run"]
    with _locked(folder), contextlib.ExitStack() as stack:
        shared = experiment.privacy.ledger
        federation = parts.federation(Path(shared) if shared else folder / "ledger.sqlite", run)
        stack.callback(federation.ledger.close)
        loaded = checkpoint.load(folder / "checkpoints", parts.state, fallback=fallback)
        server, t, stalled, written = _state(parts, folder, federation, loaded)
        execute = _executor(parts, folder, run, loaded, stack)
        metrics_file = stack.enter_context(_metrics(folder, written))
        evaluate = parts.evaluation()
        notes = [*parts.cohort.warnings(experiment.rounds, len(parts.sizes)), *drowning(parts)]
        # noise from the system cannot be drawn again: there every round is kept
        every = 1 if experiment.privacy.noise == "system" else experiment.engine.checkpoint_every
        asked = stack.enter_context(_patience())
        interrupted, row = False, Metrics()

        def keep(outcome: Outcome, release: bytes) -> None:
            """What a crash goes on from: this round's row of metrics and, where one is due, a checkpoint."""
            nonlocal row, stalled
            if not tree.finite(outcome.server):
                raise NonFiniteModel(
                    f"the model is no longer finite after round {t + 1}",
                    why="the step size or the noise is too large for this model",
                    fix=f"lower algorithm.lr; the last good model is in {folder / 'checkpoints'}",
                    code="model-not-finite",
                )
            row = _row(t + 1, outcome)
            if _due(t + 1, experiment):
                row |= evaluate(t, outcome.server, execute.score)
                row["model_norm"] = float(tree.norm(next(iter(parts.algorithm.models(outcome.server).values()))))
            metrics_file.write(json.dumps(row).encode() + b"\n")
            if outcome.secure:
                with open(folder / COSTS, "a") as costs:
                    costs.write(json.dumps({"round": t + 1, "cpu_seconds": outcome.secure["cpu_seconds"]}) + "\n")
            stalled = federation.stalled(outcome.received)
            if (t + 1) % every == 0 or t + 1 == experiment.rounds:
                now: dict[str, checkpoint.JSON] = {
                    "stalled": stalled,
                    "ledger_head": federation.ledger.head(),
                    "release": release.hex(),
                }
                _save(folder, t + 1, outcome.server, execute, metrics_file, now)

        try:
            while t < experiment.rounds and not (interrupted := asked()):
                outcome = one_round(federation, server, t, _killed if t + 1 == crash else execute, stalled, keep)
                server, t = outcome.server, t + 1
                if not outcome.answered and not federation.everyone_pays:
                    notes.append(f"round {t}: nobody could take part, the model stays as it was")
                if watch is not None:
                    watch(Progress(t, experiment.rounds, row, folder, parts, federation))
        except OSError as error:
            raise RunError(
                f"cannot write in {folder}",
                why=str(error),
                fix="free some space or check the permissions, then resume",
                code="not-writable",
            ) from error
        except BudgetExhausted as error:
            notes.append(f"stopped before round {t + 1}: {error.what}")
        except KeyboardInterrupt:
            interrupted = True
        metrics_file.flush()
        made = _finish(parts, folder, federation, server)
        with open(folder / "log.txt", "a", encoding="utf-8") as log:
            log.writelines(f"{note}\n" for note in notes)
        return Ended(folder, read_metrics(folder), made, notes, interrupted)


def _due(t: int, experiment: Experiment) -> bool:
    """Is the model evaluated after round t?"""
    return t % experiment.evaluation.every == 0 or t > experiment.rounds - max(1, experiment.evaluation.final)


def _row(t: int, outcome: Outcome) -> Metrics:
    return {
        "round": t,
        "active": len(outcome.active),
        "answered": len(outcome.answered),
        "bytes_down": outcome.bytes_down,
        "bytes_up": outcome.bytes_up,
        "payload": outcome.payload,
        **({"secure": {k: v for k, v in outcome.secure.items() if k != "cpu_seconds"}} if outcome.secure else {}),
    }


def _finish(parts: Parts, folder: Path, federation: Federation, server: Any) -> dict[str, Any]:
    model = next(iter(parts.algorithm.models(server).values()))
    atomic_write(folder / "model.safetensors", safetensors.torch.save({k: v.contiguous() for k, v in model.items()}))
    made = receipt(parts, federation)
    atomic_write(folder / "privacy.json", json.dumps(made, indent=2).encode())
    return made


# state that survives a crash ------------------------------------------------------------------------------------------


def _state(
    parts: Parts, folder: Path, federation: Federation, loaded: checkpoint.Loaded | None
) -> tuple[Any, int, bool, int]:
    if loaded is None:
        return parts.state("server"), 0, False, 0
    if not federation.ledger.descends_from(loaded.meta["ledger_head"]):
        raise LedgerError(
            f"the ledger of {folder} does not know what this run has spent",
            why="it is an older copy, or another file: going on would give spent budget back",
            fix="put the newest ledger back in its place",
            code="ledger-rolled-back",
        )
    federation.replay(loaded.step)
    federation.store(loaded.step - 1, bytes.fromhex(loaded.meta["release"]))  # where the crash came between the two
    federation.publish(loaded.step - 1)
    return loaded.trees["server"], loaded.step, loaded.meta["stalled"], loaded.meta["metrics_bytes"]


def _executor(
    parts: Parts, folder: Path, run: str, loaded: checkpoint.Loaded | None, stack: contextlib.ExitStack
) -> Any:
    engine = parts.experiment.engine
    if engine.executor == "processes":
        clients = parts.clients(run, range(0), secret=secret_of(folder))
        workers = stack.enter_context(
            Processes(folder / "experiment.toml", run, engine.workers, folder, lambda t: clients.header(t, -1))
        )
        if loaded is not None:
            workers.restore(loaded.step)
        return workers
    if engine.executor == "ranks":
        ranks = stack.enter_context(Ranks(parts, run, folder))
        if loaded is not None:
            ranks.restore(loaded.step)
        return ranks
    return parts.clients(run, states=parts.states(folder, loaded), secret=secret_of(folder))


def _killed(*_: Any) -> Any:
    """An executor on a machine that loses power."""
    os.kill(os.getpid(), signal.SIGKILL)


def _save(
    folder: Path, t: int, server: Any, execute: Any, metrics: IO[bytes], now: Mapping[str, checkpoint.JSON]
) -> None:
    """Client states first, then the server's: a run stands where its server stands."""
    metrics.flush()
    os.fsync(metrics.fileno())
    trees = {"server": server}
    if isinstance(execute, Clients):
        trees |= execute.states.trees()
    else:
        execute.save(t)
    checkpoint.save(folder / "checkpoints", t, trees, {**now, "metrics_bytes": metrics.tell()})


@contextlib.contextmanager
def _metrics(folder: Path, written: int) -> Iterator[IO[bytes]]:
    """The metrics file, cut back to what the checkpoint knows of."""
    with open(folder / "metrics.jsonl", "ab") as file:
        file.truncate(written)
        file.seek(0, os.SEEK_END)
        yield file


@contextlib.contextmanager
def _patience() -> Iterator[Callable[[], bool]]:
    """A first Ctrl-C waits for the end of the round, a second one stops at once."""
    pressed = 0

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed += 1
        if pressed > 1:
            raise KeyboardInterrupt
        os.write(2, b"stopping after this round; Ctrl-C again stops at once\n")

    if threading.current_thread() is not threading.main_thread():  # only the main thread has signals to wait for
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed > 0
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"{folder} is in use",
                why="another process is running it",
                fix="wait for it, or stop it",
                code="run-in-use",
            ) from None
        yield


def _environment(experiment: Experiment) -> dict[str, Any]:
    digest = experiment.digest()
    # a seeded run is the same release whenever it is repeated; noise from the system never is
    run = digest[:16] if experiment.privacy.noise == "counter" else f"{digest[:16]}-{secrets.token_hex(6)}"
    return {
        "run": run,
        "config": digest,
        "sordino": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
