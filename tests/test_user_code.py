"""A model or an algorithm of the user's own that fails, ends the program, never ends or makes a NaN: one message with
the place, in one process and in several."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sordino import config, user_code
from sordino.errors import ConfigError, NonFiniteModel, OwnCodeError, RunError, SordinoError
from sordino.runs.run import start
from sordino.transport import message
from tests.laws import warm

CODE = """
import os, sys, time
from dataclasses import dataclass

import torch

from sordino.algorithms.fedavg import FedAvg

LATE = {late}


class Bare(BaseException):
    pass


def fail(kind):
    if kind == "raises":
        raise RuntimeError("no luck")  # here
    if kind == "is bare":
        raise Bare("no luck")  # here
    if kind == "exits":
        sys.exit(0)  # here
    if kind == "stops":
        raise StopIteration  # here
    if kind == "is gone":
        os._exit(0)
    if kind == "never ends":
        while True:
            time.sleep(0.01)


@dataclass(frozen=True)
class Mine(FedAvg):
    kind: str = "raises"

    def local(self, task, down, c, shard, key):
        if int(down.round) >= LATE:
            fail(self.kind)
        upload, state = super().local(task, down, c, shard, key)
        if self.kind == "is not a number" and int(down.round) >= LATE and float(shard.size) == 11:
            upload = upload._replace(delta={{k: v * float("nan") for k, v in upload.delta.items()}})
        return upload, state


@dataclass(frozen=True)
class AtTheServer(Mine):
    def local(self, task, down, c, shard, key):
        return FedAvg.local(self, task, down, c, shard, key)

    def update(self, s, r, home):
        if int(s.round) >= LATE:
            fail(self.kind)
        return super().update(s, r, home)


class Net(torch.nn.Module):
    kind = "raises"

    def __init__(self):
        super().__init__()
        self.last, self.calls = torch.nn.Linear(64, 10), 0

    def forward(self, x):
        self.calls += 1
        if self.calls > 20:
            fail(self.kind)
        return self.last(x.flatten(1))
"""


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of a module of the user's own, another one for every test."""
    found = f"own_{abs(hash(request.node.name)) % 10**9}"
    (tmp_path / f"{found}.py").write_text(CODE.format(late=2))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return found


def experiment(algorithm: str, executor: str, **more: Any) -> config.Experiment:
    engine = {"executor": executor, **({"workers": 2} if executor == "processes" else {}), **more.pop("engine", {})}
    table = {
        "rounds": 4,
        "data": {"source": "digits", "train": 40, "test": 20},
        "partition": {"scheme": "iid", "clients": 4},
        "algorithm": {"name": algorithm, **more.pop("parameters", {})},
        "evaluation": {"every": 4, "final": 1},
        "engine": engine,
        **more,
    }
    return config.load(table)


TOLD = {
    "raises": "RuntimeError: no luck",
    "is bare": "Bare: no luck",
    "exits": "SystemExit: the program asks to end with status 0",
}


def told(error: SordinoError, name: str, kind: str) -> None:
    assert isinstance(error, OwnCodeError)
    assert (error.code, error.exit_code) == ("own-code", 2)
    line = next(
        i for i, text in enumerate(CODE.splitlines(), 1) if "# here" in text and TOLD[kind][:4] in _raised(text)
    )
    assert error.what == f"your own code failed: {TOLD[kind]} ({name}.py, line {line})"
    assert "resume" in error.fix


def _raised(text: str) -> str:
    return text.replace("sys.exit", "SystemExit").replace("raise ", "").strip()


@pytest.mark.one_fast
@pytest.mark.parametrize("kind", TOLD)
@pytest.mark.parametrize("where", ["Mine", "AtTheServer"])
def test_an_algorithm_that_fails_in_a_later_round_is_told_with_its_place(
    where: str, kind: str, name: str, tmp_path: Path
) -> None:
    with pytest.raises(OwnCodeError) as refusal:
        start(experiment(f"{name}:{where}", "loop", parameters={"kind": kind}), tmp_path / "run")
    told(refusal.value, name, kind)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2  # and the run is there to be resumed


@pytest.mark.one_fast
@pytest.mark.parametrize("kind", TOLD)
def test_so_it_is_in_a_client_process_and_nobody_is_left_behind(
    kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message, "subprocess", warm.stand_in())
    with pytest.raises(OwnCodeError) as refusal, _all_gone():
        start(experiment(f"{name}:Mine", "processes", parameters={"kind": kind}), tmp_path / "run")
    told(refusal.value, name, kind)


def test_a_model_that_asks_to_end_the_program_does_not_end_it_well(name: str, tmp_path: Path) -> None:
    made = experiment("fedavg", "loop", model={"name": f"{name}:Net"}, rounds=20)
    sys.modules.pop(name, None)
    user_code.load(f"{name}:Net", "model").kind = "exits"
    with pytest.raises(OwnCodeError) as refusal:
        start(made, tmp_path / "run")
    told(refusal.value, name, "exits")


@pytest.mark.one_fast
@pytest.mark.parametrize(("kind", "code"), [("is gone", "client-process-ended"), ("never ends", "deadline-passed")])
@pytest.mark.parametrize("timeout", [None, 0.2])
def test_a_process_that_is_gone_or_never_answers_ends_the_run_in_words(
    kind: str, code: str, timeout: float | None, name: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With a timeout too: a round goes on without who is silent, a run does not go on for ever without them."""
    monkeypatch.setattr(message, "subprocess", warm.stand_in())
    engine = {"deadline_s": 0.7, "network": {"timeout_s": timeout} if timeout else {}}
    made = experiment(
        f"{name}:Mine",
        "processes",
        parameters={"kind": kind},
        engine=engine,
        rounds=100_000,
        evaluation={"every": 10**6},
    )
    with pytest.raises(RunError) as refusal, _all_gone():
        start(made, tmp_path / "run")
    assert refusal.value.code == code
    assert "resume" in refusal.value.fix


@pytest.mark.one_fast
@pytest.mark.parametrize("executor", ["loop", "stack", "processes"])
def test_a_client_that_is_not_finite_stops_the_run_with_its_name_everywhere(
    executor: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message, "subprocess", warm.stand_in())
    partition = {"scheme": "iid", "clients": 4}
    made = experiment(
        f"{name}:Mine", executor, parameters={"kind": "is not a number"}, partition=partition,
        data={"source": "digits", "train": 43, "test": 20},
    )  # fmt: skip
    with pytest.raises(NonFiniteModel) as refusal:
        start(made, tmp_path / "run")
    assert refusal.value.code == "model-not-finite"
    assert refusal.value.what == "the update of client 0 is not finite in round 3"


def test_a_deadline_is_for_processes_only() -> None:
    for executor in ("auto", "loop", "stack", "pooled", "ranks"):
        with pytest.raises(ConfigError) as refusal:
            config.load(None, [f"engine.executor={executor}", "engine.deadline_s=3"])
        assert refusal.value.code == "deadline-needs-processes"
    with pytest.raises(ConfigError):
        config.load(None, ["engine.executor=processes", "engine.deadline_s=0"])


# what is blamed -------------------------------------------------------------------------------------------------------


def test_errors_of_the_library_and_ctrl_c_are_not_blamed_on_anybody(name: str) -> None:
    mine = user_code.load(f"{name}:Mine", "algorithm")
    for error in (RuntimeError("a bug"), KeyboardInterrupt(), ConfigError("refused")):
        with pytest.raises(type(error)) as same, user_code.blamed():
            raise error
        assert same.value is error
    with pytest.raises(KeyboardInterrupt), user_code.blamed():
        _called(mine, KeyboardInterrupt)
    with pytest.raises(OwnCodeError), user_code.blamed():
        _called(mine, KeyError)


def _called(mine: Any, kind: type[BaseException]) -> None:
    class Down:
        @property
        def round(self) -> int:
            raise kind

    mine().local(None, Down(), None, None, None)


@pytest.mark.parametrize("text", ["import sys; sys.exit(0)", "class B(BaseException): pass\nraise B('x')", "1 / 0"])
def test_a_module_that_ends_the_program_when_it_is_imported(text: str, name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}x.py").write_text(text)
    with pytest.raises(ConfigError) as refusal:
        user_code.load(f"{name}x:Net", "model")
    assert refusal.value.code == "own-import"
    assert f"({name}x.py, line" in refusal.value.what


@pytest.mark.parametrize("module", ["my-net", "2net", "ünet", "a b", ""])
def test_no_module_is_loaded_that_an_experiment_does_not_seem_to_name(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is a user's own is found by its name: who confirms code, and which promises rest on it, follow from it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{module}.py").write_text("class Net: pass")
    assert list(user_code.named({"name": f"{module}:Net"})) == []
    with pytest.raises(ConfigError) as refusal:
        user_code.load(f"{module}:Net", "model")
    assert refusal.value.code == "own-name"


def test_whatever_a_session_lends_is_somebodys_own() -> None:
    def loss() -> None: ...

    for made in (loss, lambda: None, type("A-B", (), {})):
        assert list(user_code.named([user_code.name_of(made)])) == [user_code.name_of(made)]


# a worker's streams ---------------------------------------------------------------------------------------------------


WORKER = """
import os, sys, time
from sordino.runs import site_process as worker

def endless(arguments, messages, answers):
    os.write(1, b"printed by a library\\n")
    print("printed", sys.stdin.read())
    answers.write(b"answer")
    answers.flush()
    while True:
        time.sleep(0.05)

worker._begin = endless
os.devnull = sys.argv[1]
worker.main([])
"""


@pytest.mark.slow
def test_what_any_library_prints_is_no_frame_and_an_endless_client_ends_with_its_server(tmp_path: Path) -> None:
    """Where /dev/null is a file that others have written to, it is not what a client's code reads."""
    (tmp_path / "null").write_text("of others")
    process = warm_worker(tmp_path / "null")
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.read(6) == b"answer"
    assert process.poll() is None
    process.stdin.close()  # as the kernel does when the server is killed
    assert process.wait(20) == 0
    assert process.stderr is not None
    said = process.stderr.read()
    assert b"printed by a library" in said
    assert b"of others" not in said


def warm_worker(null: Path) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", WORKER, str(null)], stdin=pipe, stdout=pipe, stderr=pipe)


class _all_gone:
    """Every process that was started inside is gone at the end."""

    def __enter__(self) -> None:
        self.made: list[Any] = []
        self.whole = message.Pipes.__init__

        def noting(pipes: message.Pipes, commands: Sequence[Sequence[str]]) -> None:
            self.whole(pipes, commands)
            self.made += pipes._processes.values()

        message.Pipes.__init__ = noting

    def __exit__(self, *_: object) -> None:
        message.Pipes.__init__ = self.whole
        assert self.made
        assert not {process.pid for process in self.made} & set(_alive())


def _alive() -> Iterator[int]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            yield int(pid)
