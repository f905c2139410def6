"""A finished run's trace (`sordino.checks.trial`), and ways to stop a run in the middle, or to put it back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sordino.checks.trial import Trace, differences
from sordino.checks.trial import trace as whole_trace
from sordino.config import Experiment, load
from sordino.engine.server import FederatedServer
from sordino.receipts import seal
from sordino.receipts.folder import RunFolder
from sordino.runs import rounds
from sordino.runs.play import Progress
from sordino.runs.run import resume, start
from sordino.runs.simulation import Simulation, simulated

__all__ = ["Trace", "differences"]  # re-exported

COUNTS = ("bytes_up", "bytes_down", "payload")


def trace(folder: Path) -> Trace:
    """A lattice ciphertext is drawn afresh and compressed, so no two are equally long: such runs are compared without
    what counts bytes, and without the digests of that.
    """
    found, mine = whole_trace(folder), RunFolder(folder)
    if mine.experiment.algorithm["name"] != "lattice_fl":
        return found
    rows = map(json.loads, mine.metrics_file.read_text().splitlines())
    told = [{name: value for name, value in row.items() if name not in COUNTS} for row in rows]
    claimed = seal.claimed(folder)
    files = {name: digest for name, digest in claimed["files"].items() if name != mine.metrics_file.name}
    receipt = {name: value for name, value in claimed.items() if name != "ledger_head"} | {"files": files}
    return found._replace(metrics=json.dumps(told), receipt=json.dumps(receipt, sort_keys=True))


def finished(experiment: Experiment, folder: Path) -> Trace:
    start(experiment, folder)
    return trace(folder)


def parts_of(folder: Path) -> Simulation:
    return simulated(load(folder / "experiment.toml"))


def started(parts: Simulation) -> Any:
    """The model of the first round."""
    return next(iter(parts.setup.algorithm.models(parts.setup.state("server")).values()))


# interruptions --------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone: nothing catches this."""


# what has just happened when the process dies
POINTS: Mapping[str, tuple[Any, str, int]] = {
    "reserved": (FederatedServer, "reserve", 0),
    "computed": (FederatedServer, "receive", 0),
    "kept": (rounds.RunningPhase, "_save", 1),  # counts the rounds that are done
    "published": (FederatedServer, "publish", 0),
}


@contextmanager
def killed_at(point: str, round: int) -> Iterator[None]:
    """Die as soon as `point` of the given round has passed."""
    owner, name, shift = POINTS[point]
    whole = getattr(owner, name)

    def dying(self: Any, t: Any, *rest: Any) -> Any:
        result = whole(self, t, *rest)
        if getattr(t, "t", t) == round + shift:  # of an open round, or the number itself
            raise Killed
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, dying)
        with pytest.raises(Killed):
            yield


def die_after(round: int) -> Callable[[Progress], None]:
    """A watcher that dies when the checkpoint of a round is complete."""

    def watch(step: Progress) -> None:
        if step.round == round:
            raise Killed

    return watch


def interrupted(experiment: Experiment, folder: Path) -> Trace:
    """The run of `experiment`, killed at every point in turn and resumed each time."""
    with killed_at("reserved", 0):
        start(experiment, folder)
    with killed_at("published", 0):
        resume(folder)
    with killed_at("computed", 1):
        resume(folder)
    with killed_at("published", 1):
        resume(folder)
    with pytest.raises(Killed):
        resume(folder, die_after(experiment.rounds - 1))
    resume(folder)
    return trace(folder)


def put_back(copy: Path, folder: Path) -> None:
    """The folder as its copy has it, put back in its place as rsync, `cp -a` and snapshots do: files keep inodes."""
    for path in folder.rglob("*"):
        if not path.is_dir() and not (copy / path.relative_to(folder)).exists():
            path.unlink()
    shutil.copytree(copy, folder, dirs_exist_ok=True)
