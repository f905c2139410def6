"""A run that prepares before it trains is the same however it is stopped and wherever its clients live."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from sordino import config, keys
from sordino.engine import checkpoint
from sordino.engine.server import FederatedServer
from sordino.receipts.verify import verify
from sordino.runs import preparation
from sordino.runs.rounds import RunningPhase
from sordino.runs.run import resume, start
from sordino.runs.setup import PhaseSetup
from sordino.runs.simulation import simulated
from sordino.transport import message
from tests.helpers.prepared_runs import CLASSES, TINY, rows_of, tiny
from tests.laws import warm
from tests.laws.test_executors import CLOSE, paid
from tests.laws.test_executors import apart as models_apart
from tests.laws.traces import Killed, Trace, differences, finished, trace
from tests.runs.test_ranks import forked


class Whole(NamedTuple):
    """What a run with a preparation leaves, in bytes."""

    training: Trace
    rows: str  # of the preparation
    tensors: str
    phases: dict[str, str]  # what each stood at: the server, and what clients kept


def whole(folder: Path) -> Whole:
    rows, tensors = (
        hashlib.sha256((folder / f).read_bytes()).hexdigest() for f in ("preparation.jsonl", "public.safetensors")
    )
    phases = {}
    for mine in simulated(config.load(folder / "experiment.toml")).preparation:
        place = folder / "preparation" / mine.setup.phase
        loaded = checkpoint.load(place / "checkpoints", mine.setup.state)
        assert loaded is not None
        held = [
            loaded,
            *(checkpoint.load(worker, mine.setup.state) for worker in sorted(place.glob("checkpoints/clients-*"))),
        ]
        states = mine.setup.states()
        for one in held:
            assert one is not None
            states.restore(one.trees)
        phases[mine.setup.phase] = checkpoint.digest_trees({"server": loaded.trees["server"], **states.trees()})
    return Whole(trace(folder), rows, tensors, phases)


def apart(a: Whole, b: Whole) -> list[str]:
    """Names of what differs: [] is the law."""
    others = [name for name in Whole._fields[1:] if getattr(a, name) != getattr(b, name)]
    return differences(a.training, b.training) + others


@pytest.fixture(scope="session")
def unstopped(once: Path) -> Whole:
    return whole(once)


# resume ---------------------------------------------------------------------------------------------------------------
METHODS = {
    "reserved": (FederatedServer, "reserve", 0),
    "computed": (FederatedServer, "receive", 0),
    "written": (
        RunningPhase,
        "_save",
        1,
    ),  # counts the rounds that are done; the row of metrics is, the checkpoint is not
    "kept": (RunningPhase, "_save", 1),
    "published": (FederatedServer, "publish", 0),
}


@contextmanager
def killed_in(phase: str, point: str, t: int) -> Iterator[None]:
    """Die as soon as `point` of round t of a phase has passed; "" is the training."""
    owner, name, shift = METHODS[point]
    real = getattr(owner, name)

    def dying(self: Any, now: int, *rest: Any) -> Any:
        here = self.setup.phase if isinstance(self, RunningPhase) else self.run.partition(".")[2]
        dies = here == phase and getattr(now, "t", now) == t + shift  # of an open round, or the number itself
        if dies and point == "written":
            self.metrics.sync()
            raise Killed
        result = real(self, now, *rest)
        if dies:
            raise Killed
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, dying)
        with pytest.raises(Killed):
            yield


@contextmanager
def killed_at_the_handover(written: bool) -> Iterator[None]:
    real = preparation._send_tensors

    def dying(*given: Any) -> None:
        if written:
            real(*given)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "_send_tensors", dying)
        with pytest.raises(Killed):
            yield


PLACES = {
    "in the train phase": lambda: killed_in("train", "computed", 0),
    "in an ask round": lambda: killed_in("ask", "computed", 1),
    "between phases": lambda: killed_in("train", "published", 0),
    "before the handover": lambda: killed_at_the_handover(written=False),
    "right after the handover": lambda: killed_at_the_handover(written=True),
    "in training": lambda: killed_in("", "computed", 1),
}


@pytest.mark.slow  # the next test goes through all of them in one run
@pytest.mark.parametrize("place", PLACES)
def test_killed_and_resumed_it_is_the_run_that_never_stopped(place: str, unstopped: Whole, tmp_path: Path) -> None:
    with PLACES[place]():
        start(tiny(), tmp_path / "run")
    resume(tmp_path / "run")
    assert apart(unstopped, whole(tmp_path / "run")) == []


@pytest.mark.slow
def test_killed_everywhere_in_turn_it_is_the_run_that_never_stopped(unstopped: Whole, tmp_path: Path) -> None:
    """Every kind of moment of every phase, one after the other, each continuation killed again."""
    out = tmp_path / "run"
    with killed_in("train", "reserved", 0):
        start(tiny(), out)
    for phase, point, t in [
        ("train", "computed", 0),
        ("train", "written", 0),
        ("train", "kept", 0),
        ("train", "published", 0),
        ("ask", "reserved", 0),
        ("ask", "kept", 0),
        ("ask", "written", 1),
        ("ask", "published", 1),
    ]:
        with killed_in(phase, point, t):
            resume(out)
        rows = rows_of(out)
        assert len({(row["phase"], row["round"]) for row in rows}) == len(rows)  # none twice
    for written in (False, True):
        with killed_at_the_handover(written):
            resume(out)
    for point, t in (("reserved", 0), ("published", 0), ("computed", 1), ("published", 1)):
        with killed_in("", point, t):
            resume(out)
    resume(out)
    assert apart(unstopped, whole(out)) == []
    assert verify(out) == []
    resume(out)  # a finished run resumes to itself
    assert apart(unstopped, whole(out)) == []


@pytest.mark.slow
def test_a_device_is_asked_for_features_through_the_model_that_it_trained(once: Path) -> None:
    """What clients keep goes from phase to phase: every prototype again, from the checkpoint of the phase before."""
    train, ask = simulated(config.load(once / "experiment.toml")).preparation
    before, after = (
        checkpoint.load(once / "preparation" / mine.setup.phase / "checkpoints", mine.setup.state)
        for mine in (train, ask)
    )
    assert before is not None
    assert after is not None
    server, states = after.trees["server"], train.setup.states(None, before.trees)
    shards, found = ask.site("run").shards, 0
    for slot in torch.nonzero(server.state == 1).flatten().tolist():
        label = int(server.slots[slot])
        k = int(server.order[server.place[slot], label])
        x, y = shards[k]
        order = keys.permutation(keys.fold(keys.root(0), "split"), len(y))
        held = order[round(0.7 * len(y)) :]
        mine = x[held][y[held] == label]
        assert len(mine) == int(server.counts[slot]) >= 2
        z = ask.setup.task.features(states[k].model, mine).mean(0)
        assert torch.allclose(server.prototypes[slot], z, atol=1e-5)
        model = {name: leaf[server.place[slot], label] for name, leaf in server.models.items()}
        assert all(torch.allclose(model[name], states[k].model[name], atol=1e-6) for name in model)  # as it was sent
        found += 1
    assert found > CLASSES // 2


@pytest.mark.slow
def test_the_law_catches_a_preparation_that_forgets_what_clients_keep(
    unstopped: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_in("ask", "reserved", 0):
        start(tiny(), tmp_path / "run")
    monkeypatch.setattr(PhaseSetup, "states", lambda self, folder=None, trees=None: _fresh(self))
    resume(tmp_path / "run")
    assert "tensors" in apart(unstopped, whole(tmp_path / "run"))


def _fresh(setup: PhaseSetup) -> Any:
    from sordino.engine.client_states import States

    return States(setup.algorithm.init_client(setup.task), None)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["loop", "processes"])
def test_kill_9(executor: str, unstopped: Whole, tmp_path: Path) -> None:
    """Real processes and a real signal, at moments of every phase that nobody chose."""
    file, out = tmp_path / "e.toml", tmp_path / "run"
    file.write_text(tiny(engine={"executor": executor, "workers": 2}).toml())
    for number in range(5):
        begun = (out / "environment.json").is_file()
        words = ["resume", str(out)] if begun else ["run", str(file), "--out", str(out)]
        process = warm.Process([sys.executable, "-m", "sordino", *words, "-q"])
        deadline = time.monotonic() + 60
        while _written(out) < number + 1 and time.monotonic() < deadline and os.path.exists(f"/proc/{process.pid}"):
            time.sleep(0.002)
        time.sleep(0.02 * number)
        process.kill()
        assert process.wait() in (-signal.SIGKILL, 0)
    resume(out)
    assert apart(unstopped, whole(out)) == []


def _written(out: Path) -> int:
    return sum(
        len(f.read_text().splitlines()) for name in ("preparation", "metrics") if (f := out / f"{name}.jsonl").exists()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "times", "played"),
    [
        ("train", 1, ["train"]),
        ("ask", 1, ["train", "ask"]),
        ("ask", 2, ["train"]),
    ],
)
def test_after_ctrl_c_the_preparation_goes_on_where_it_stopped(
    phase: str, times: int, played: list[str], unstopped: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pressed once it ends after the round, pressed twice at once."""
    out, real = tmp_path / "run", FederatedServer.reserve

    def pressed(self: FederatedServer, *rest: Any) -> Any:
        granted = real(self, *rest)
        for _ in range(times if self.run.endswith(phase) else 0):
            os.kill(os.getpid(), signal.SIGINT)
        return granted

    with monkeypatch.context() as patch:
        patch.setattr(FederatedServer, "reserve", pressed)
        ended = start(tiny(), out)
    assert ended.interrupted
    assert ended.metrics == []
    assert [(row["phase"], row["round"]) for row in rows_of(out)] == [(name, 1) for name in played]
    assert not (out / "model.safetensors").exists()
    assert verify(out) == []  # a receipt of what was spent so far
    again = resume(out)
    assert not again.interrupted
    assert apart(unstopped, whole(out)) == []


# executors ------------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_clients_in_other_processes_say_the_same_bytes(
    unstopped: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message, "subprocess", warm.stand_in())
    out, apart_ = tmp_path / "run", {"executor": "processes", "workers": 2}
    with killed_in("ask", "published", 0):
        start(tiny(engine=apart_), out)
    resume(out)
    assert apart(unstopped, whole(out)) == []
    assert len(list(out.glob("preparation/*/checkpoints/clients-*"))) == 4  # two workers in each of two phases


@pytest.mark.slow
def test_ranks_say_the_same_bytes(unstopped: Whole, tmp_path: Path) -> None:
    """Every phase is played by the same ranks; what they kept in one, the next one finds, also after a crash."""
    out = tmp_path / "run"
    (tmp_path / "e.toml").write_text(tiny(engine={"executor": "ranks"}).toml())
    killed = forked(2, "killed", "run", tmp_path / "e.toml", "--out", out, module="tests.runs.watched_workers")
    assert killed.returncode != 0
    assert (out / "preparation" / "ask").is_dir()
    assert not (out / "public.safetensors").exists()
    resumed = forked(2, "resume", out)
    assert resumed.returncode == 0, resumed.stderr
    assert apart(unstopped, whole(out)) == []
    assert len(list(out.glob("preparation/*/checkpoints/clients-*"))) == 4  # two ranks in each of two phases


@pytest.mark.slow
def test_one_rank_prepares_and_hands_out(one_rank: None, tmp_path: Path) -> None:
    handing = TINY | {"algorithm": {"name": "vhl", "per_class": 1, "width": 4}}
    loop = finished(config.validate(handing), tmp_path / "loop")
    rank = finished(config.validate(handing | {"engine": {"executor": "ranks"}}), tmp_path / "rank")
    assert [paid(entry) for entry in loop.ledger] == [paid(entry) for entry in rank.ledger]
    assert models_apart(tmp_path / "loop", tmp_path / "rank") < CLOSE
