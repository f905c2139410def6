"""Ends of a command: signals, output that cannot be written, missing folders and packages, words that mean something."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sordino
from sordino import config
from sordino.cli.program import ended as ended_by
from sordino.cli.progress import progress
from sordino.errors import ConfigError
from sordino.receipts.folder import RunFolder
from sordino.runs.play import Progress
from sordino.runs.run import resume, start
from tests.helpers.command_line import Said
from tests.laws import warm
from tests.laws.cases import BY_NAME
from tests.laws.traces import differences, trace

slow = pytest.mark.slow
Cli = Callable[..., Said]
SMALL = ("rounds=3", "partition=iid", "partition.clients=3", "evaluation.final=1", "data.train=60", "data.test=30")


# signals --------------------------------------------------------------------------------------------------------------


def begun(folder: Path, *more: str, rounds: int = 100_000, **options: Any) -> warm.Process:
    """A run that would take for ever, after its second round."""
    arguments = ["run", *SMALL, f"rounds={rounds}", "evaluation.every=1000000", *more, "--out", str(folder)]
    process = warm.Process([sys.executable, "-m", "sordino", *arguments], **options)
    metrics, deadline = folder / "metrics.jsonl", time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text().count("\n") > 2) and time.monotonic() < deadline:
        time.sleep(0.005)
    return process


@pytest.mark.one_fast
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=slow), pytest.param(signal.SIGHUP, marks=slow)]
)
def test_a_signal_ends_the_round_keeps_it_and_says_how_to_go_on(number: signal.Signals, tmp_path: Path) -> None:
    out, said = tmp_path / "my run", tmp_path / "stderr"
    with open(said, "wb") as stderr:
        process = begun(out, "-q", stderr=stderr)
        process.send_signal(number)
        assert process.wait(60) == 130
    again = "Ctrl-C" if number == signal.SIGINT else number.name
    assert said.read_text().splitlines() == [
        f"stopping after this round; {again} again stops at once",
        f"Stopped at a safe point. Continue with: sordino resume '{out}'",
    ]
    rows = RunFolder(out).metrics()
    assert len(rows) > 2
    assert (out / "privacy.json").exists()  # the receipt of what was done so far


@pytest.mark.slow
def test_a_run_that_was_told_to_end_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    made = BY_NAME["scaffold"].experiment(rounds=10)
    start(made, tmp_path / "whole")

    def tell(step: Progress) -> None:
        if step.round == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    ended = start(made, tmp_path / "run", tell)
    assert ended.interrupted
    assert len(ended.metrics) in (7, 8)
    resume(tmp_path / "run")
    assert differences(trace(tmp_path / "whole"), trace(tmp_path / "run")) == []
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # as it was before


def test_the_second_signal_does_not_wait(tmp_path: Path) -> None:
    def tell(step: Progress) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("the second one stops at once")

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever started these tests may have had it ignored
    try:
        ended = start(config.load(None, SMALL), tmp_path / "run", tell)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert ended.interrupted
    assert [row.round for row in ended.metrics] == [1]


def test_what_was_ignored_before(tmp_path: Path) -> None:
    """Who had the hangup ignored (nohup) is not stopped by it; who had the quit ignored (a shell's background) can
    still end a run at once."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGQUIT)}
    seen: list[Any] = []

    def hang_up(step: Progress) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        seen.append(signal.getsignal(signal.SIGQUIT))

    try:
        ended = start(config.load(None, SMALL), tmp_path / "run", hang_up)
        assert signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN
    finally:
        for number, action in before.items():
            signal.signal(number, action)
    assert not ended.interrupted
    assert seen == [signal.SIG_DFL] * 3


@slow
@pytest.mark.parametrize("engine", ["loop", "processes"])
def test_quit_ends_at_once_and_leaves_no_process(engine: str, tmp_path: Path) -> None:
    with open(tmp_path / "stderr", "wb") as stderr:
        process = begun(tmp_path / "run", f"engine.executor={engine}", "-q", stderr=stderr)
        process.send_signal(signal.SIGQUIT)
        assert process.wait(30) == -signal.SIGQUIT
    deadline = time.monotonic() + 20
    while warm.complaining(tmp_path / "stderr") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert warm.complaining(tmp_path / "stderr") == []


@slow
def test_a_terminal_that_is_gone_does_not_end_a_round(tmp_path: Path) -> None:
    """What hangs up takes the standard error with it: the word cannot be written, the round is finished all the
    same."""
    master, slave = pty.openpty()
    out = tmp_path / "run"
    with os.fdopen(slave, "wb") as stderr:
        process = begun(out, "-q", stderr=stderr)
    os.close(master)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 130
    assert (out / "privacy.json").exists()


# output that cannot be written ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    start(config.load(None, SMALL), place / "run")
    return place


PRINTING = [
    ("list", "."), ("list", ".", "--json"), ("show", "run"), ("show", "run", "--json"), ("report", "run"),
    ("watch", "run", "--once"), ("privacy", "spent", "run"), ("privacy", "verify", "run"), ("algorithms",),
    ("data", "list"), ("--version",), ("run", "--help"), ("resume", "run"),
]  # fmt: skip


@pytest.mark.one_fast
@pytest.mark.parametrize("words", PRINTING, ids=" ".join)
def test_what_cannot_be_printed_is_said_and_is_no_success(words: tuple[str, ...], runs: Path, tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full, open(tmp_path / "stderr", "wb") as stderr:
        process = warm.Process([sys.executable, "-m", "sordino", *words], cwd=runs, stdout=full, stderr=stderr)
        assert process.wait(60) == 6
    said = (tmp_path / "stderr").read_text()
    assert "the output could not be printed" in said
    assert "No space left on device" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("words", [("show", "run"), ("list", ".", "--json"), ("run", "--help")], ids=" ".join)
def test_a_closed_pipe_ends_a_verb_without_a_word(words: tuple[str, ...], runs: Path, tmp_path: Path) -> None:
    """As SIGPIPE ends other tools: 141 in a shell."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as pipe, open(tmp_path / "stderr", "wb") as stderr:
        process = warm.Process([sys.executable, "-m", "sordino", *words], cwd=runs, stdout=pipe, stderr=stderr)
        assert process.wait(60) == 141
    assert (tmp_path / "stderr").read_text() == ""


@slow
def test_a_real_process_ends_so_too(runs: Path) -> None:
    """Python flushes at its end and would complain."""
    for target, code in (("/dev/full", 6), ("|true", 141)):
        shell = f"{sys.executable} -m sordino list . {'> ' + target if target[0] == '/' else '| true'}; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", shell], cwd=runs, capture_output=True, text=True, check=False)
        assert done.stdout.strip().endswith(str(code))
        assert "Exception ignored" not in done.stderr


def test_a_run_does_not_end_because_its_progress_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    with progress(Console(file=Full())) as watch:
        ended = start(config.load(None, SMALL), tmp_path / "run", watch)
    assert len(ended.metrics) == 3


# what is not there ----------------------------------------------------------------------------------------------------


def test_a_folder_that_is_none_is_an_error_of_its_own(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "looping").symlink_to("looping")
    (tmp_path / "empty").mkdir()
    whats = {
        "absent": "there is nothing of that name",
        "file": "it is a file",
        "dangling": "it is a link that leads nowhere: to nowhere",
        "looping": "it is a link that leads nowhere: to looping",
    }
    for name, why in whats.items():
        said = cli("list", tmp_path / name)
        assert (said.code, said.out) == (6, "")
        assert why in said.err
        for verb in (("show",), ("resume",), ("report",), ("watch",), ("privacy", "spent"), ("privacy", "verify")):
            said = cli(*verb, tmp_path / name)
            assert said.code == 6, (verb, said)
            assert any(text in said.err for text in (why, "no readable receipt", "neither a run folder")), (verb, said)
    assert cli("list", tmp_path / "empty").code == 0
    said = cli("show", "/etc")
    assert said.code == 6
    assert "it has no experiment.toml and no environment.json" in said.err
    assert "resume" not in said.err


@slow
def test_without_torch_there_is_one_message(runs: Path) -> None:
    program = "import sys; sys.modules['torch'] = None; from sordino.cli import main; main()"
    for words in (["doctor"], ["run"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *words], cwd=runs, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "sordino needs torch, which is not installed here" in done.stderr
        assert "Traceback" not in done.stderr


# words that mean something else ---------------------------------------------------------------------------------------

MEANT: list[tuple[tuple[str, ...], str, str]] = [
    (("run", "--rounds", "3"), "option-is-a-key", "fix write rounds=3"),
    (("run", "--privacy.epsilon=2"), "option-is-a-key", "fix write privacy.epsilon=2"),
    (("audit", "--seed.x", "2"), "option-is-a-key", "fix write seed.x=2"),
    (("privacy", "plan", "--algorithm", "fedavg"), "option-is-a-key", "fix write algorithm=fedavg"),
    (("run", "rounds", "3"), "two-experiments", "fix write rounds=3"),
    (("data", "list", "a.toml", "b.toml"), "two-experiments", "compare"),
    (("run", "rounds"), "no-file", "rounds=VALUE"),
    (("run", 'algorithm={name="fedavg"'), "bad-override", "must be closed"),
    (("run", "cohort.size=5"), "unknown-key", "or one that takes it: cohort.name=round_robin or random"),
    (("run", "data=mnist"), "wrong-type", "fix one of: digits, images"),
    (("run", "data=digit"), "wrong-type", "did you mean 'digits'?"),
    (("run", "model=3"), "wrong-type", "why it must be a table"),
    (("run", "engine=fast"), "wrong-type", "engine={key = value}"),
    (("run", "evaluation.models=3"), "wrong-type", "why it must be a list"),
    (("run", "uplink=[[],[],[]]", "algorithm=fedavg"), "wrong-type", "a list of stages"),
    (("run", "uplink={server=3}", "algorithm=fedavg"), "wrong-type", "a list of stages"),
    (("run", "data.path=no.csv", "data.label=outcome", "data.group=clinic"), "setting-of-another-source", "fix set data.source=tabular"),
    (("run", "data.dim=3"), "setting-of-another-source", "fix set data.source=quadratic"),
    (("run", "algorithm=fedgen", "data=quadratic", "partition={scheme='natural'}"), "model-without-head", "use data with classes"),
    (("run", "algorithm=vhl", "data=quadratic", "partition={scheme='natural'}"), "not-images", "another data.source"),
    (("run", "RUN"), "no-file", "experiment.toml"),
    (("compare", "RUN", "RUN"), "no-file", "is a run folder, not an experiment file"),
    (("run", "--epsilon", "3"), "option-is-a-key", "fix write privacy.epsilon=3"),
    (("run", "epsilon=3"), "unknown-key", "fix write privacy.epsilon=..."),
    (("run", "privacy.total_eps=15"), "unknown-key", "epsilons cannot be added up"),
    (("run", "partition=3"), "wrong-type", "fix for example partition.KEY=VALUE"),
    (("run", "--out", ""), "empty-word", "error --out is empty"),
    (("run", "--out="), "empty-word", "error --out is empty"),
    (("compare", "a.toml", "--out", ""), "empty-word", "error --out is empty"),
    (("show", ""), "empty-word", "error a word is empty"),
    (("list", ""), "empty-word", "it needs a value"),
    (("serve", "x.toml", "--rounds", "3"), "option-is-a-key", "fix write rounds = 3 into the experiment's file"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "code", "said"), MEANT, ids=[" ".join(words) for words, *_ in MEANT])
def test_a_mistake_is_told_in_words_that_fit(
    words: tuple[str, ...], code: str, said: str, cli: Cli, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)
    found = cli(*(str(runs / "run") if word == "RUN" else word for word in words))
    assert found.code == 2
    assert f"({code})" in found.err
    assert said in " ".join(found.err.split())
    assert list(tmp_path.iterdir()) == []


def test_with_json_a_refusal_is_json_too(cli: Cli) -> None:
    for words, code in ((("run", "data=mnist"), "wrong-type"), (("list", "/nonexist"), "no-folder"), (("show", "--no"), "wrong-usage")):  # fmt: skip
        said = cli(*words, "--json")
        told = json.loads(said.err)
        assert said.out == ""
        assert (told["error"]["code"], told["exit_code"]) == (code, said.code)
        assert told["error"]["what"]
    assert "Traceback" not in cli("show", "--no").err


@pytest.mark.parametrize("group", [(), ("data",), ("privacy",), ("identity",)], ids=" ".join)
def test_no_verb_is_told_in_half_a_sentence(cli: Cli, group: tuple[str, ...]) -> None:
    assert "..." not in cli(*group, "--help").out.partition("Commands:")[2]


def test_h_is_help_everywhere(cli: Cli) -> None:
    for words in ((), ("run",), ("privacy",), ("privacy", "verify")):
        assert cli(*words, "-h") == cli(*words, "--help")


def test_a_pipe_gets_a_line_for_each_row_with_its_whole_name(runs: Path, cli: Cli, tmp_path: Path) -> None:
    name = "a-run-with-a-name-that-is-longer-than-a-terminal-is-wide-" * 3
    (tmp_path / name).symlink_to(runs / "run")
    rows = [line.split() for line in cli("list", tmp_path).out.splitlines()]
    assert rows[0][:3] == ["folder", "algorithm", "rounds"]
    assert rows[1][:4] == [name, "gaussian_gdp", "3/3", "finished"]
    (told,) = json.loads(cli("list", tmp_path, "--json").out)
    assert (told["folder"], told["rounds"], told["planned"], told["simulated"]) == (name, 3, 3, True)
    assert 0 < told["accuracy"] < 1
    assert told["guarantee"]["epsilon"] == pytest.approx(8)
    for words in (("show", runs / "run"), ("privacy", "spent", runs / "run"), ("data", "list"), ("show", "-h")):
        assert not set("│┃─━╭") & set(cli(*words).out), words


def test_a_key_that_may_be_set_for_one_source_is_not_ambiguous_for_another() -> None:
    """alpha is a key of synthetic data: an algorithm's own alpha is plain where the data are digits."""
    assert config.load({"algorithm": {"name": "lc_fl"}}, ["beta=0.5"]).algorithm["beta"] == 0.5
    with pytest.raises(ConfigError) as refusal:
        config.load({"algorithm": {"name": "lc_fl"}, "data": {"source": "synthetic"}}, ["beta=0.5"])
    assert refusal.value.code == "ambiguous-key"
    assert list(config._section({}, "data")) == list(config._section({"data": {"source": "digits"}}, "data"))
    assert "alpha" not in config._section({}, "data")
    assert "alpha" in config._section({"data": {"source": "synthetic"}}, "data")


OF_TABLES = {"missing": "drop", "separator": ";", "decimal": ",", "encoding": "latin-1"}


def test_every_key_of_data_belongs_to_some_source() -> None:
    from sordino import config

    assert {"source", *config.data_keys(None)} == set(config.Data.model_fields)
    for name in config.DATA_SOURCES:
        for key in set(config.Data.model_fields) - config.data_keys(name) - {"source"}:
            default = config.Data.model_fields[key].default
            other: Any = {bool: not default, float: 0.25, int: 7}.get(type(default), {"standardise": "fixed", "augment": "crop_flip", "options": {"x": 1}, **OF_TABLES}.get(key))  # fmt: skip
            if other is None:
                words = {"path": "x", "label": "x", "group": "x", "key": "x", "schema": "x", "classes": ["x", "y"]}
                other = words.get(key, {"test_fraction": 0.5, "colours": True}.get(key, 3))
            with pytest.raises(ConfigError) as refusal:
                config.load({"data": {"source": name, key: other}})
            assert refusal.value.code == "setting-of-another-source"


def test_what_is_no_experiment_cannot_be_compared_and_is_told_so() -> None:
    with pytest.raises(ConfigError) as refusal:
        sordino.compare(3, "a.toml")  # type: ignore[arg-type]
    assert refusal.value.code == "not-an-experiment-file"


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (MemoryError(), "out-of-memory"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), "out-of-memory"),
        (RecursionError("maximum recursion depth exceeded"), "nested-too-deeply"),
    ],
)
def test_what_is_too_large_is_said_in_words(
    raised: Exception, code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise raised

    monkeypatch.setenv("COLUMNS", "200")
    assert ended_by(fails) == 6
    assert f"({code})" in capsys.readouterr().err


def test_a_run_is_not_put_where_nobody_finds_it(cli: Cli, tmp_path: Path) -> None:
    found = cli("run", "rounds=1", "--out", tmp_path.joinpath(*["deep"] * 1200), "-q")
    assert (found.code, "out-too-deep" in found.err) == (6, True), found
    assert not any(tmp_path.iterdir())
