"""An adversary who reads everything that a run leaves and sends, and knows everything but one thing.

It plays the same real run twice, with the same noise, on two neighbours: one example of one client is another one, all
of a client's examples are others, or one
client's coin shows the other side. What the statement names is noised: it may differ. Everything else must be the same
to the byte, or the adversary tells the
neighbours apart. `left` is what anybody may read, `sent` what the server sees.

Not looked at, because it is said: how long rounds take, what lies in RUN/private, and what lies in checkpoints, which
only their owner can read.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from sordino import tree
from sordino.accounting.statement import statement
from sordino.config import Experiment
from sordino.data import SOURCES
from sordino.data.dataset import Dataset
from sordino.engine.site import Site
from sordino.errors import LedgerError
from sordino.ledger.ledger import Ledger
from sordino.privacy.noise.sources import SystemNoise
from sordino.receipts.folder import RunFolder
from sordino.receipts.receipt import opened, spending
from sordino.receipts.verify import verify
from sordino.report.dashboard.run_state import WatchedRun, metrics
from sordino.report.run_facts import gather
from sordino.runs.run import resume, start
from sordino.runs.simulation import Simulation, simulated
from sordino.runs.trackers import TRACKERS, tracked
from sordino.sampling import draws
from sordino.types import Terms
from tests.helpers.executors import answers_of
from tests.laws.traces import Killed, die_after, put_back

VICTIM = 1  # the client whose data, or whose coin, differs

# what is a release, or follows from releases alone, or is drawn afresh for every run
NAMED = {
    "privacy.json": ("run", "files", "ledger_head"),
    "agreement.json": ("dataset",),
    "environment.json": ("run", "started"),
    "candidates.json": ("seconds",),
    "facts": ("environment", "commands"),
}
RELEASED = ("model_norm",)  # of a row
LENGTHS = ("bytes_up", "bytes_down", "payload")  # where the uplink learns, the last release says how much is sent
PASSED_OVER = (
    "data.key",
    "private",
    "checkpoints",
    ".lock",
    "report.html",
    "ledger.sqlite",
    "model.safetensors",
    "public.safetensors",
)


class Seen(NamedTuple):
    left: dict[str, Any]
    sent: list[tuple[str, int, list[bytes]]]  # round, client, what its upload holds
    finite: set[tuple[str, str]]  # (unit, adversary) that the statement promises something about
    learns: bool  # does the last release say how much is sent?


class Follower:
    """A tracker that keeps what it is told."""

    needs, quiet = "json", {}  # type: ignore[var-annotated]

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def start(self, settings: Any, folder: Path) -> None:
        pass

    def round(self, row: Any, step: int) -> None:
        self.rows.append({"step": step, **row})

    def end(self, promised: Any) -> None:
        pass


@contextmanager
def same_noise(stream: int) -> Iterator[None]:
    """The operating system's noise, the same in every run with this number."""
    generator = np.random.Generator(np.random.PCG64(stream))

    def words(self: SystemNoise, count: int) -> Any:
        return generator.integers(0, 1 << 64, count, dtype=np.uint64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SystemNoise, "_words", words)
        yield


@contextmanager
def other_data(change: Callable[[Dataset], Dataset] | None) -> Iterator[None]:
    if change is None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        found = {name: partial(_changed, load, change) for name, load in SOURCES.items()}
        patch.setattr("sordino.runs.declared_data.SOURCES", found)
        yield


def _changed(load: Callable[..., Dataset], change: Callable[[Dataset], Dataset], **given: Any) -> Dataset:
    return change(load(**given))


@contextmanager
def other_coins(flipped: bool) -> Iterator[None]:
    """The victim's coin of every round, turned around."""
    with pytest.MonkeyPatch.context() as patch:
        if flipped:
            from sordino.planning.accounts import Accounts

            whole = Accounts.draw

            def draw(self: Any, *given: Any) -> list[int]:
                return sorted(set(whole(self, *given)) ^ {VICTIM})

            patch.setattr(Accounts, "draw", draw)
        yield


def play(
    experiment: Experiment,
    folder: Path,
    change: Callable[[Dataset], Dataset] | None = None,
    flipped: bool = False,
    stream: int = 1,
) -> Seen:
    sent: list[tuple[str, int, list[bytes]]] = []
    whole, follower = Site.__call__, Follower()
    # all draw from one stream, so one thread draws
    experiment = experiment.model_copy(update={"engine": experiment.engine.model_copy(update={"workers": 1})})

    def called(self: Site, t: int, down: Any, terms: Mapping[int, Terms]) -> Iterator[tuple[int, Any]]:
        for client, upload in whole(self, t, down, terms).uploads:
            # what is late or secret on the way is not seen, but this is what would be
            leaves = [leaf.contiguous().numpy().tobytes() for leaf in tree.leaves(upload)]
            sent.append((f"{self.header(t, 0).run.partition('.')[2]}/{t}", client, leaves))
            yield client, upload

    with same_noise(stream), other_data(change), other_coins(flipped), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Site, "__call__", answers_of(called))
        patch.setitem(TRACKERS, "follower", lambda: follower)
        ended = tracked(lambda watch: start(experiment, folder, watch), ["follower"])
        finite = {(r.unit, r.adversary) for r in ended.receipt.guarantees if r.finite}
        assert verify(folder) == []
        learns = simulated(experiment).setup.algorithm.uplink.learns
        return Seen(_left(folder, follower, (*RELEASED, *(LENGTHS if learns else ()))), sent, finite, learns)


def _left(folder: Path, follower: Follower, released: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {"told to trackers": _without(follower.rows, released)}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_dir() or any(part in PASSED_OVER for part in name.parts):
            continue
        # what the server found in a preparation follows from what it was sent
        found[str(name)] = None if name.parts[0] == "preparation" else _content(path, released)
    for path in (folder / "model.safetensors", folder / "public.safetensors"):
        found[f"size of {path.name}"] = path.stat().st_size if path.exists() else None
    with Ledger.as_founded(RunFolder(folder).ledger) as ledger:
        entries = list(ledger.entries())
    found["ledger"] = [
        (e.op.rpartition(".")[2].rpartition("/")[2], e.state, e.charges, _config_of(e.note)) for e in entries
    ]
    facts = {k: v for k, v in gather(folder).to_json().items() if k not in NAMED["facts"]}
    facts["spent"] = _without(facts["spent"], NAMED["privacy.json"])
    found["facts of the report"] = _without(json.loads(json.dumps(facts, default=str)), released)
    watched = WatchedRun(folder)
    found["metrics of the dashboard"] = metrics(watched, watched.look()._replace(spending=spending(folder)))
    return found


def _config_of(note: str) -> Any:
    return json.loads(note)


def _content(path: Path, released: tuple[str, ...]) -> Any:
    text = path.read_bytes()
    if path.suffix == ".jsonl":
        return [_without(json.loads(line), released) for line in text.decode().splitlines()]
    if path.suffix == ".json":
        told = json.loads(text)
        return _without(told, NAMED.get(path.name, ()))
    return text


def _without(told: Any, names: tuple[str, ...]) -> Any:
    if isinstance(told, dict):
        return {k: _without(v, names) for k, v in told.items() if k not in names}
    return [_without(part, names) for part in told] if isinstance(told, list) else told


def tells_apart(one: Seen, other: Seen) -> list[str]:
    """Where two runs differ that must not."""
    return [name for name in one.left.keys() | other.left.keys() if one.left.get(name) != other.left.get(name)]


def raw(one: Seen, again: Seen, other: Seen) -> list[tuple[str, int]]:
    """Uploads with a part in which there is no noise (it is the same under another noise) and which shows the
    difference all the same."""
    found = []
    for (t, k, mine), (_, _, fresh), (_, _, theirs) in zip(one.sent, again.sent, other.sent, strict=True):
        if any(a == b and a != c for a, b, c in zip(mine, fresh, theirs, strict=True)):
            found.append((t, k))
    return found


def draws_of_each_round(experiment: Experiment, folder: Path, times: int) -> list[int]:
    """How many different uploads of client 0 a server gets of each round that puts the folder back, in its place, as it
    was after the first one, as often as it likes.
    """
    sent: dict[int, set[bytes]] = {}
    whole = Site.__call__

    def called(self: Site, t: int, *given: Any) -> Iterator[tuple[int, Any]]:
        for client, upload in whole(self, t, *given).uploads:
            if client == 0:
                sent.setdefault(t, set()).add(b"".join(leaf.numpy().tobytes() for leaf in tree.leaves(upload)))
            yield client, upload

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Site, "__call__", answers_of(called))
        with pytest.raises(Killed):
            start(experiment, folder, die_after(1))
        copy = shutil.copytree(folder, folder.with_name(f"{folder.name}, as it was"))
        resume(folder)
        for _ in range(times):
            put_back(copy, folder)
            with suppress(LedgerError):
                resume(folder)
            resume(folder, moved=True)
    return [len(sent[t]) for t in sorted(sent)]


# neighbours -----------------------------------------------------------------------------------------------------------


def other_example(parts: Simulation, rows: int | None = 1) -> Callable[[Dataset], Dataset]:
    """The first examples of the victim (None: all) are others, under the same labels: who holds what stays as it
    was."""
    mine = np.asarray(parts.population.shares[0][VICTIM])[:rows]

    def change(data: Dataset) -> Dataset:
        x = np.array(data.train.x)
        kept = _rows_of(parts.population.dataset, data, mine)
        x[kept] = 255 - x[kept] if x.dtype == np.uint8 else -1.5 * x[kept] + 1
        return replace(data, train=data.train._replace(x=x))

    return change


def _rows_of(held: Dataset, loaded: Dataset, rows: Any) -> Any:
    """Where these rows lie in the data as they were loaded, before the server took its own part."""
    if len(held.train.y) == len(loaded.train.y):
        return rows
    index = {bytes(image.tobytes()): i for i, image in enumerate(np.asarray(loaded.train.x))}
    return np.array([index[bytes(np.asarray(held.train.x)[row].tobytes())] for row in rows])


def guessed(experiment: Experiment, folder: Path) -> float:
    """How many of the hidden cohorts somebody finds who knows experiment.toml: the share of (round, client) that is
    told right."""
    drawn: dict[int, list[int]] = {}
    from sordino.planning.accounts import Accounts, OpenRound

    whole = Accounts.draw

    def draw(self: Any, now: OpenRound, *given: Any) -> list[int]:
        drawn[now.t] = whole(self, now, *given)
        return drawn[now.t]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Accounts, "draw", draw)
        start(experiment, folder)
    parts = simulated(experiment)
    _, federation = opened(folder)
    federation.ledger.close()
    right = 0
    for t, who in drawn.items():
        rates = federation.plan.rates(t, {})
        seeded = draws.Seeded(_folded(parts, t))
        told = set(parts.setup.cohort.toss(len(parts.setup.public.sizes), seeded, rates))  # type: ignore[attr-defined]
        right += sum((k in told) == (k in who) for k in range(len(parts.setup.public.sizes)))
    return right / (len(drawn) * len(parts.setup.public.sizes))


def _folded(parts: Simulation, t: int) -> Any:
    from sordino import keys

    return keys.fold(parts.setup.phase_key, "cohort", t)


def promises(notes: list[str], clients: int, delta: float) -> set[tuple[str, str]]:
    return {(row.unit, row.adversary) for row in statement(notes, clients, delta) if row.epsilon < float("inf")}
