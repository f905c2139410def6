"""Client code in other processes: frames, workers that die, refuse or outlive their server, and checkpoints of several
parts.
"""

from __future__ import annotations

import io
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.engine import checkpoint, wire
from sordino.engine.commands import Keep
from sordino.engine.executor import Answers
from sordino.engine.site import Site
from sordino.engine.wire import Header
from sordino.errors import OwnCodeError, RunError, WireError
from sordino.ledger.ledger import State
from sordino.receipts.private import new_key
from sordino.receipts.receipt import opened
from sordino.runs.new_folder import create_folder, environment_of, would_write
from sordino.runs.run import resume, start
from sordino.runs.simulation import Simulation, in_processes, simulated
from sordino.transport.message import FRAME, LARGEST, Arrived, Pipes, Signer, read, write
from sordino.transport.sites import Patience, Sites, _scores
from sordino.types import Terms
from tests.helpers.in_process import InProcess
from tests.laws import warm
from tests.laws.cases import BY_NAME, Case
from tests.laws.traces import Killed, differences, finished, killed_at, trace

CASE = BY_NAME["scaffold"]  # the one with the richest client state
TWO = {"executor": "processes", "workers": 2}


# frames ---------------------------------------------------------------------------------------------------------------


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.lists(st.binary(max_size=50), max_size=5), st.integers(0, 60))
def test_frames_come_back_and_cut_ones_are_none(frames: list[bytes], cut: int) -> None:
    stream = io.BytesIO()
    for frame in frames:
        write(stream, frame)
    stream.seek(0)
    assert [read(stream) for _ in frames] == frames
    assert read(stream) is None
    whole = stream.getvalue()
    short = io.BytesIO(whole[: max(0, len(whole) - 1 - cut)])
    found = list(iter(lambda: read(short), None))
    assert found == frames[: len(found)]
    assert len(found) < len(frames) or not frames


def test_a_length_beyond_reason_allocates_nothing() -> None:
    for length in (LARGEST + 1, (1 << 64) - 1):
        assert read(io.BytesIO(length.to_bytes(8, "little") + b"x")) is None


# workers --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_real_workers_do_what_the_loop_does(tmp_path: Path) -> None:
    """The one fast test with an interpreter of its own, started as in a user's run."""
    loop = finished(CASE.experiment(), tmp_path / "loop")
    one = {"executor": "processes", "workers": 1}
    assert differences(loop, finished(CASE.experiment(engine=one), tmp_path / "apart")) == []


@pytest.mark.slow
@pytest.mark.parametrize("workers", [3, 7])
def test_the_number_of_workers_does_not_matter(workers: int, tmp_path: Path, quick_workers: None) -> None:
    """7 workers for 5 clients: two of them hold nobody."""
    loop = finished(CASE.experiment(), tmp_path / "loop")
    engine = {"executor": "processes", "workers": workers}
    with killed_at("published", 2):
        start(CASE.experiment(engine=engine), tmp_path / "apart")
    resume(tmp_path / "apart")
    assert differences(loop, trace(tmp_path / "apart")) == []


def executor(folder: Path) -> tuple[Simulation, Sites]:
    simulation = simulated(made := CASE.experiment(engine=TWO), new_key())
    key = simulation.population.data_key
    create_folder(folder, simulation.setup, simulation.agreement(), environment_of(made), key)
    return simulation, in_processes(simulation.setup, folder, folder, "run")


def processes_of(sites: Sites) -> list[Any]:
    assert isinstance(sites.carrier, Pipes)
    return list(sites.carrier._processes.values())


def asked(parts: Simulation, t: int) -> tuple[Any, dict[int, Terms]]:
    federation = parts.federation(":memory:", "run")
    with federation.ledger:
        return parts.setup.algorithm.broadcast(parts.setup.state("server")), {
            k: federation.terms(k, None) for k in range(5)
        }


@pytest.mark.slow
def test_a_worker_that_dies_is_told_and_the_run_goes_on_later(tmp_path: Path, quick_workers: None) -> None:
    parts, workers = executor(tmp_path / "run")
    with workers:
        down, terms = asked(parts, 0)
        assert [k for k, _ in workers(0, down, terms).uploads] == [0, 1, 2, 3, 4]
        processes_of(workers)[1].kill()
        with pytest.raises(RunError) as refusal:
            list(workers(1, down, terms).uploads)
        with pytest.raises(RunError):  # whoever asks once more does not wait for ever
            workers.carrier.came(20)
    assert refusal.value.code == "client-process-ended"
    assert "resume" in refusal.value.fix


@pytest.mark.slow
def test_what_a_worker_refuses_is_told_in_its_words(tmp_path: Path, quick_workers: None) -> None:
    """A message of another round: the worker's wire refuses it, and the worker is still there afterwards."""
    parts, workers = executor(tmp_path / "run")
    with workers:
        down, terms = asked(parts, 0)
        only, header = {0: terms[0]}, workers.header
        workers.header = lambda t: header(0)
        with pytest.raises(RunError, match="round 0 came where round 3 was expected") as refusal:
            list(workers(3, down, only).uploads)
        workers.header = header
        assert refusal.value.code == "client-refused"
        assert [k for k, _ in workers(0, down, only).uploads] == [0]


@pytest.mark.slow
def test_workers_end_with_their_server(tmp_path: Path) -> None:
    """SIGKILL leaves no time to say goodbye: the closed pipe is enough, and nobody complains."""
    (file := tmp_path / "e.toml").write_text(CASE.experiment(rounds=3000, engine=TWO).toml())
    arguments = [sys.executable, "-m", "sordino", "run", str(file), "--out", str(tmp_path / "run"), "-q"]
    with open(tmp_path / "stderr", "wb") as complained:
        server = warm.Process(arguments, stderr=complained)
        metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 90
        while not (metrics.exists() and metrics.read_text().count("\n") > 2):
            assert time.monotonic() < deadline - 30, (tmp_path / "stderr").read_text()
            time.sleep(0.002)
        held = warm.complaining(tmp_path / "stderr")
        assert len(held) == 3  # the server and two workers
        server.kill()
        assert server.wait() == -signal.SIGKILL
        while warm.complaining(tmp_path / "stderr") and time.monotonic() < deadline:
            time.sleep(0.02)
        assert warm.complaining(tmp_path / "stderr") == []
    assert "Traceback" not in (tmp_path / "stderr").read_text()


TALKATIVE = """
from dataclasses import dataclass
from sordino.algorithms.fedavg import FedAvg

@dataclass(frozen=True)
class Talkative(FedAvg):
    def local(self, task, down, c, shard, key):
        print("x" * 9000)
        return super().local(task, down, c, shard, key)
"""


def test_what_client_code_prints_is_no_message(
    tmp_path: Path, quick_workers: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """More than a pipe's buffer of it: it goes to the standard error, and the frames stay whole."""
    (tmp_path / "talkative.py").write_text(TALKATIVE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    case = Case("talkative", {"name": "talkative:Talkative"})
    made = case.experiment(rounds=1, engine={"executor": "processes", "workers": 1})
    assert len(start(made, tmp_path / "run").metrics) == 1
    assert capfd.readouterr().err.count("x" * 9000) == 2  # the cohort of one round


# checkpoints in parts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["clients-0", "clients-1", "checkpoints"])
@pytest.mark.slow
def test_a_checkpoint_of_which_only_some_parts_were_written(
    part: str, tmp_path: Path, quick_workers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run stands where its server stands: client states that are a round ahead are set back."""
    loop = finished(CASE.experiment(), tmp_path / "loop")
    whole_save, whole_call = checkpoint.save, Sites.ask

    def dying_save(directory: Path, step: int, *rest: Any, **more: Any) -> Path:
        if directory.name == part and step == 3:
            raise Killed
        return whole_save(directory, step, *rest, **more)

    def dying_call(self: Sites, command: Any, message: bytes | None = None) -> Any:
        if command == Keep(3) and part.startswith("clients"):
            self.members = {peer: held for peer, held in self.members.items() if peer != part[-1]}
            whole_call(self, command, message)  # the other worker saves, then everything is gone
            raise Killed
        return whole_call(self, command, message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", dying_save)
        patch.setattr(Sites, "ask", dying_call)
        with pytest.raises(Killed):
            start(CASE.experiment(engine=TWO), tmp_path / "apart")
    assert checkpoint.latest(tmp_path / "apart" / "checkpoints") == 2
    assert 3 in [checkpoint.latest(tmp_path / "apart" / "checkpoints" / f"clients-{i}") for i in (0, 1)]
    resume(tmp_path / "apart")
    assert differences(loop, trace(tmp_path / "apart")) == []


@pytest.mark.slow
def test_what_clients_keep_lies_among_what_is_not_shown(tmp_path: Path, quick_workers: None) -> None:
    """With real noise: their own gradients, and who of a hidden cohort was drawn. Whatever is left is foretold."""
    case = BY_NAME["dp_scaffold"]
    made, run = case.experiment(privacy=case.privacy | {"noise": "system"}, engine=TWO), tmp_path / "run"
    start(made, run)
    foretold = {path.name for path in would_write(run, simulated(made).setup)}
    assert {path.name for path in run.iterdir()} - foretold == {".lock", "ledger.sqlite-lock"}
    assert sorted(path.name for path in (run / "checkpoints").glob("clients-*")) == ["clients-0", "clients-1"]
    assert (run / "checkpoints").stat().st_mode & 0o077 == 0  # which the first client made


# messages -------------------------------------------------------------------------------------------------------------


@pytest.mark.one_fast
@pytest.mark.parametrize("name", ["scaffold", "gaussian_gdp"])
def test_a_damaged_answer_is_an_absent_client_and_is_told(name: str, tmp_path: Path) -> None:
    case = BY_NAME[name]
    call = Site.__call__

    def answered(self: Site, t: int, down: Any, terms: Mapping[int, Terms], *, damaged: bool) -> Any:
        answers = {k: wire.encode(self.header(t, k), upload) for k, upload in call(self, t, down, terms).uploads}
        if t == 2:
            first = min(answers)
            whole = answers.pop(first)
            if damaged:
                answers[first] = whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:]
        return Answers(sorted(answers.items()))

    ended = {}
    for damaged in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Site, "__call__", partialmethod(answered, damaged=damaged))
            ended[damaged] = start(case.experiment(), tmp_path / str(damaged))
    assert [note for note in ended[True].notes if "counts as absent" in note and "(message-damaged)" in note]
    assert not [note for note in ended[False].notes if "counts as absent" in note]
    assert "counts as absent" in (tmp_path / "True" / "log.txt").read_text()
    assert trace(tmp_path / "True").model == trace(tmp_path / "False").model
    _, federation = opened(tmp_path / "True")
    with federation.ledger as ledger:  # what was reserved for it stays spent
        assert {entry.state for entry in ledger.entries()} == {State.PUBLISHED}


def test_what_one_client_is_told_goes_to_it_alone() -> None:
    """The broadcast of a phase may hold a part for each client: nobody else's part is in a client's message. The twin
    sends all of it to all."""
    labels = torch.tensor([1111111, 2222222, 3333333])
    header = Header("run", "0" * 64, 0, -1, "down")

    def sent(told: Any) -> list[bytes]:
        messages: list[bytes] = []
        encoded: list[int] = []

        def handler(message: bytes) -> bytes:
            messages.append(message)
            assert len(encoded) == (1 if told is None else len(messages))  # not all before the first is sent
            return Signer("0", "run").write("", 0, {"do": "answered", "clients": []})

        def head(t: int) -> Header:
            encoded.append(t)
            return header

        own = Signer("", "run")
        sites = Sites(InProcess({"0": handler}), own, 0, {"0": range(3)}, head, told, most=1)
        list(sites(0, {"labels": labels}, {0: Terms(), 2: Terms()}).uploads)
        return [bytes(body) for message in messages for body in Signer("0", "run").read(message).bodies]

    own = sent(lambda down, k: {"labels": down["labels"][k : k + 1]})
    for message, k in zip(own, (0, 2), strict=True):
        _, held = wire.decode(message, header, {"labels": labels[:1]})
        assert held["labels"].tolist() == [labels[k].item()]
        assert all(other.numpy().tobytes() not in message for i, other in enumerate(labels) if i != k)
    assert all(label.numpy().tobytes() in message for message in sent(None) for label in labels)


# processes that say what they should not ------------------------------------------------------------------------------


def spoken(data: bytes) -> Pipes:
    """A process that says these bytes, whatever it hears."""
    program = "import os, sys; os.write(1, bytes.fromhex(sys.argv[1])); sys.stdin.read()"
    return Pipes([[sys.executable, "-c", program, data.hex()]])


def framed(*frames: bytes) -> bytes:
    return b"".join(FRAME.pack(len(frame)) + frame for frame in frames)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"3", b"{}", b'{"do": "refused"}', b"\xff", b"null"])
def test_the_text_of_a_failure_is_shown_and_not_believed(text: bytes) -> None:
    with pytest.raises(RunError) as refusal, spoken(framed(text)):
        pass
    assert refusal.value.code == "client-refused"


def test_a_process_at_work_keeps_no_message_from_the_others(tmp_path: Path) -> None:
    """Messages larger than a pipe holds: the first process reads none until the second has answered its own."""
    signal = tmp_path / "answered"
    begin = "import os, sys, time; from pathlib import Path; ready = bytes.fromhex(sys.argv[1]); os.write(1, ready)"
    waits = "Path(sys.argv[2]).exists() or time.sleep(0.02)"
    first = f"{begin}\nfor _ in range(500):\n    if {waits}: break\nelse: sys.exit()"
    large = bytes(1 << 20)
    answers = "\nfor _ in range(2): os.write(1, ready if len(sys.stdin.buffer.read(8 + (1 << 20))) > 8 else b'')\nsys.stdin.read()"
    programs = [first + answers, begin + answers]
    with Pipes([[sys.executable, "-c", program, framed(b"ready").hex(), str(signal)] for program in programs]) as pipes:
        tickets = [pipes.send(to, lambda: large) for to in ("0", "0", "1", "1")]
        came = [one.ticket for _ in range(2) for one in pipes.came(20)]
        signal.touch()
        came += [one.ticket for _ in range(2) for one in pipes.came(20)]
    assert came == [*tickets[2:], *tickets[:2]]


def test_a_message_that_cannot_be_made_is_an_error_where_its_answer_is_waited_for() -> None:
    def refuses() -> bytes:
        raise WireError("too long", fix="shorten it", code="no-message")

    with spoken(framed(b"ready")) as pipes:
        pipes.send("0", refuses)
        with pytest.raises(WireError, match="too long"):
            pipes.came(20)


def ended(pipes: Pipes) -> Pipes:
    """Its process reads the end of its messages, and ends."""
    stream = pipes._processes["0"].stdin
    assert stream is not None
    stream.close()
    return pipes


@pytest.mark.parametrize(
    "data", [FRAME.pack(LARGEST + 1), framed(b"ready", b"asked by nobody"), framed(b"ready") + b"x"]
)
def test_what_is_no_frame_or_was_not_asked_for_ends_the_process(data: bytes) -> None:
    pipes = spoken(data)
    with pytest.raises(RunError) as refusal, pipes:
        ended(pipes).came(20)
    assert refusal.value.code == "client-process-ended"


def test_what_comes_late_is_thrown_away_unless_it_is_a_failure(quick_workers: None) -> None:
    """A round goes on without a process that is silent; it is asked nothing until it has answered."""
    own, there = Signer("", "run"), Signer("0", "run")
    answer = there.write("", 0, {"do": "answered", "clients": []})
    refusal = there.write("", 0, {"do": "refused", "what": "it failed", "own": True})
    for late, error in ((answer, None), (refusal, OwnCodeError)):
        carrier = Slow({"0": lambda message: b""})
        sites = Sites(carrier, own, 0, {"0": [0]}, lambda t: HEADER, None, Patience(timeout=0.02))
        assert list(sites(0, {}, {0: Terms()}).uploads) == []
        assert sites.away(0)
        carrier.arrived = [late]
        if error is None:
            assert not sites.away(0)
        else:
            with pytest.raises(error, match="it failed"):
                sites.away(0)


HEADER = Header("run", "0" * 64, 0, -1, "down")


class Slow(InProcess):
    """Answers when it is told to."""

    arrived: Sequence[bytes] = ()

    def came(self, seconds: float) -> list[Arrived]:
        time.sleep(min(seconds, 0.02))
        found, self.arrived = [Arrived(1, message) for message in self.arrived], []
        return found


def test_scores_may_be_infinite_but_no_client_has_two() -> None:
    """A model may diverge at one client: its loss is then reported, and ends no run."""
    assert _scores("a", [memoryview(b'{"0": [0.5], "1": [Infinity]}')], [0, 1]) == {0: [0.5], 1: [float("inf")]}
    with pytest.raises(WireError, match="cannot be read"):
        _scores("a", [memoryview(b'{"0": [0.5], "0": [0.7]}')], [0])
