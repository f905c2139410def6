"""Runs that are watched: one that goes on between sites in a hidden cohort, and one that is simulated."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sordino import config, run
from sordino.ledger.files import atomic_write
from sordino.sites.event_log import EventLog
from sordino.sites.serve import AGREEMENT
from tests.helpers.between_sites import Federated

HIDDEN = (
    "rounds=4", "partition=iid", "partition.clients=4", "algorithm=gaussian_gdp", "privacy.epsilon=8",
    "privacy.noise=system", "cohort.name=poisson", "cohort.rate=0.5", "evaluation.every=1",
)  # fmt: skip


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("watched") / "run"
    run(None, "rounds=3", "partition.clients=5", "evaluation.every=1", out=out)
    return out


@pytest.fixture(scope="session")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a server that has played with sites, with real noise and a hidden cohort."""
    place = tmp_path_factory.mktemp("hidden")
    between = Federated(config.load(None, HIDDEN), place, shares_scores=True)
    between.hears = EventLog(between.folder, real=True, hidden=True)
    between.play()
    atomic_write(between.folder / AGREEMENT, between.agreed.toml().encode())
    return between.folder


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """Makes a copy of a run that looks as if it went on: its last row is missing, and somebody holds its lock."""
    with ExitStack() as stack:

        def copied(folder: Path) -> Path:
            made = Path(shutil.copytree(folder, tmp_path / "live"))
            rows = (made / "metrics.jsonl").read_text().splitlines(keepends=True)
            (made / "metrics.jsonl").write_text("".join(rows[:-1]))
            (made / "next").write_text(rows[-1])
            shutil.rmtree(made / "checkpoints")
            fcntl.flock(stack.enter_context(open(made / ".lock", "w")), fcntl.LOCK_EX)
            return made

        yield copied


def go_on(folder: Path) -> None:
    """The round that was missing is over."""
    with open(folder / "metrics.jsonl", "a") as file:
        file.write((folder / "next").read_text())
