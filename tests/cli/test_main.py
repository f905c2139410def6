"""The command line: what it prints, what it exits with, what it does when the disk is full, and how little it loads."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

from sordino import errors
from sordino.algorithms import all_algorithms
from sordino.cli.program import app
from sordino.config import parameters
from sordino.errors import SordinoError
from sordino.receipts.verify import verify
from sordino.version import __version__
from tests.helpers.command_line import Said
from tests.laws import warm
from tests.laws.traces import differences, trace
from tests.receipts.test_verify import resealed

SMALL = ("rounds=3", "partition=iid", "partition.clients=3", "evaluation.final=1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    from sordino.config import load
    from sordino.runs.run import start

    folder = tmp_path_factory.mktemp("cli") / "run"
    start(load(None, SMALL), folder)
    return folder


# loading --------------------------------------------------------------------------------------------------------------

HELP = """
import sys, typer.main
from typer.testing import CliRunner
from sordino.cli.program import app
def verbs(command, path=()):
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from verbs(inner, (*path, name))
for path in verbs(typer.main.get_command(app)):
    said = CliRunner().invoke(app, [*path, "--help"])
    assert said.exit_code == 0 and "Usage" in said.output, path
    print(" ".join(path))
loaded = {"torch", "numpy", "scipy", "sklearn", "dp_accounting", "pyarrow", "safetensors"} & set(sys.modules)
assert not loaded, loaded
"""


@pytest.mark.slow
def test_help_of_every_verb_loads_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    listed = done.stdout.split("\n")
    assert {"run", "resume", "show", "algorithms", "privacy plan", "privacy spent", "privacy verify"} <= set(listed)


def test_the_version(cli: Callable[..., Said]) -> None:
    assert cli("--version") == (0, f"{__version__}\n", "")


@pytest.mark.parametrize("arguments", [("rn",), ("run", "--no-such-option"), ("privacy", "plan", "--epsilon", "x")])
def test_a_wrong_command_is_a_usage_error(arguments: tuple[str, ...], cli: Callable[..., Said]) -> None:
    said = cli(*arguments)
    assert said.code == 2
    assert "Usage" in said.err
    assert "Traceback" not in said.err


# run, resume, show ----------------------------------------------------------------------------------------------------


def test_json_is_one_object_and_nothing_else(cli: Callable[..., Said], tmp_path: Path) -> None:
    said = cli("run", *SMALL, "--out", tmp_path / "run", "--json")
    assert said.code == 0
    assert said.err == ""
    answer = json.loads(said.out)
    assert answer["folder"] == str(tmp_path / "run")
    assert [row["round"] for row in answer["metrics"]] == [1, 2, 3]
    receipt = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert answer["privacy"] == receipt

    shown = json.loads(cli("show", tmp_path / "run", "--json").out)
    assert shown["metrics"] == answer["metrics"]
    assert shown["privacy"] == receipt
    resumed = json.loads(cli("resume", tmp_path / "run", "--json").out)
    assert resumed["metrics"] == answer["metrics"]
    assert resumed["privacy"] == receipt


def test_quiet_is_quiet(cli: Callable[..., Said], tmp_path: Path) -> None:
    assert cli("run", *SMALL, "--out", tmp_path / "run", "-q") == (0, "", "")
    assert cli("resume", tmp_path / "run", "--quiet") == (0, "", "")


def test_a_run_says_where_it_is_what_it_reached_and_what_it_promised(
    cli: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    said = cli("run", *SMALL, "--seed", 3)
    folder = next((tmp_path / "runs").iterdir())
    assert said.code == 0
    assert folder.name.endswith("-digits")
    assert f"runs/{folder.name}" in said.out
    for word in ("accuracy", "epsilon", "proved", "∞", "simulation"):
        assert word in said.out
    assert "seed = 3" in (folder / "experiment.toml").read_text()
    assert cli("run", *SMALL, "-q").code == 0  # the same day again
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {folder.name, f"{folder.name}-2"}
    shown = cli("show", folder)
    assert shown.code == 0
    assert "accuracy" in shown.out
    assert "epsilon" in shown.out


@pytest.mark.parametrize("verb", [("show",), ("resume",), ("privacy", "spent"), ("privacy", "verify")])
def test_what_is_no_run_is_said_to_be_none(verb: tuple[str, ...], cli: Callable[..., Said], tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        said = cli(*verb, folder)
        assert said.code == 6
        assert "Traceback" not in said.err
        assert len(said.err.splitlines()) <= 10
        assert said.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_not_touched(cli: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    said = cli("run", *SMALL, "--out", tmp_path / "mine")
    assert said.code == 6
    assert "run-exists" in said.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_an_output_below_a_file_is_refused(cli: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = cli("run", *SMALL, "--out", tmp_path / "file" / "run")
    assert said.code == 6
    assert "not-writable" in said.err


# algorithms, privacy --------------------------------------------------------------------------------------------------


def test_algorithms_are_listed_a_line_each(cli: Callable[..., Said]) -> None:
    listed = json.loads(cli("algorithms", "--json").out)
    assert set(listed) == set(all_algorithms())
    for name, made in all_algorithms().items():
        assert set(listed[name]["parameters"]) == set(parameters(made))
        assert listed[name]["summary"]
    rows = [line.rstrip().split(maxsplit=1) for line in cli("algorithms").out.splitlines()]
    assert rows == [["algorithm", "what"], *([name, entry["summary"]] for name, entry in listed.items())]


def test_what_was_spent(run: Path, cli: Callable[..., Said]) -> None:
    found = json.loads(cli("privacy", "spent", run, "--json").out)
    assert [row["participations"] for row in found["by_client"]] == [3] * 3
    assert all(row["spent"] == pytest.approx(row["granted"]) for row in found["by_client"])
    assert found["guarantees"] == json.loads((run / "privacy.json").read_text())["guarantees"]
    shown = cli("privacy", "spent", run, "--by-client").out
    assert "Spent, client by client" in shown


def test_what_was_spent_is_told_by_the_ledger_whatever_the_receipt_says(
    run: Path, cli: Callable[..., Said], tmp_path: Path
) -> None:
    """Also one that was edited and sealed again: the entries of the rounds say what was spent."""
    whole = cli("privacy", "spent", run).out
    text = ((forged := shutil.copytree(run, tmp_path / "forged")) / "privacy.json").read_text()
    for other in (text.replace('"none"', '"proved"', 1), text.replace('"rounds": 3', '"rounds": 2'), "{}", ""):
        assert other != text
        (forged / "privacy.json").write_text(other)
        assert cli("privacy", "spent", forged).out == whole
    (forged / "privacy.json").write_text(text)
    cheap = [{**row, "epsilon": 0.01} for row in json.loads(text)["guarantees"]]
    assert cli("privacy", "spent", resealed(forged, guarantees=cheap)).out == whole
    (forged / "privacy.json").unlink()
    assert cli("privacy", "spent", forged).out == whole


LIGHT = """
import sys
from sordino.cli.program import app
for words in ("algorithms", "algorithms fedprox", "schema", "list {place}", "show {run}", "data list"):
    app(words.split(), standalone_mode=False)
    assert not {{"torch", "scipy", "sklearn", "dp_accounting", "pyarrow", "safetensors", "pandas"}} & set(sys.modules)
"""
PLANS = """
for words in (["privacy", "verify", "{run}"], ["privacy", "spent", "{run}"], ["report", "{run}"]):
    app(words, standalone_mode=False)  # they make the plan again, and train nothing
    assert not {{"torch", "sklearn", "pandas"}} & set(sys.modules), words
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", [LIGHT, pytest.param(LIGHT + PLANS, marks=pytest.mark.slow)], ids=["show", "plan"])
def test_verbs_that_only_look_load_nothing_heavy(program: str, run: Path, tmp_path: Path) -> None:
    program = program.format(place=tmp_path, run=shutil.copytree(run, tmp_path / "run"))  # a report binds its page
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_verify_says_yes_and_no(run: Path, cli: Callable[..., Said], tmp_path: Path) -> None:
    said = cli("privacy", "verify", run)
    assert said.code == 0
    assert "holds" in said.out
    told = json.loads(cli("privacy", "verify", run, "--json").out)
    assert (told["holds"], told["disagreements"]) == (True, [])
    assert any("--key" in line for line in told["not_looked_at"])
    forged = shutil.copytree(run, tmp_path / "forged")
    text = (forged / "privacy.json").read_text()
    (forged / "privacy.json").write_text(text.replace('"none"', '"proved"', 1))
    said = cli("privacy", "verify", forged)
    assert said.code == 5
    assert "does not hold" in said.err
    answer = cli("privacy", "verify", forged, "--json")
    assert answer.code == 5
    assert json.loads(answer.out)["holds"] is False
    for broken in ("", "[]", "{}", '{"guarantees": 3}', '{"guarantees": [3]}', "\x00"):
        (forged / "privacy.json").write_text(broken)
        said = cli("privacy", "verify", forged)
        assert said.code in (5, 6)
        assert "Traceback" not in said.err


# exit codes -----------------------------------------------------------------------------------------------------------


def test_exit_codes_are_those_of_the_documentation() -> None:
    documented = {
        "ConfigError": 2,
        "DataError": 3,
        "PartitionError": 3,
        "PrivacyError": 4,
        "LedgerError": 5,
        "RunError": 6,
        "WireError": 7,
        "SecureError": 8,
    }
    for name, code in documented.items():
        assert getattr(errors, name).exit_code == code
        assert f"{name}" in (errors.__doc__ or "")
    for kind in SordinoError.__subclasses__():
        assert documented[kind.__name__] == kind.exit_code


def test_every_verb_has_words_of_its_own() -> None:
    command: Any = typer.main.get_command(app)
    assert all(verb.help for verb in command.commands.values())


# the disk -------------------------------------------------------------------------------------------------------------

ROUNDS = 12
LIMITS = [300, pytest.param(2_000, marks=pytest.mark.slow), 10_000, pytest.param(30_000, marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sordino.config import load
    from sordino.runs.run import start

    folder = tmp_path_factory.mktemp("whole") / "run"
    start(load(None, [*SMALL, f"rounds={ROUNDS}"]), folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS)
def test_a_full_disk_stops_a_run_that_can_go_on(limit: int, whole: Path, tmp_path: Path) -> None:
    """No file may grow beyond `limit` bytes. Either nothing is left, or, with room again, the run ends as if nothing
    had been.
    """
    out = tmp_path / "run"
    arguments = ["run", *SMALL, f"rounds={ROUNDS}", "--out", str(out), "-q"]
    read_end, write_end = os.pipe()  # no file may grow, so the complaint comes through a pipe
    with os.fdopen(write_end, "wb") as stderr:
        process = warm.Process([sys.executable, "-m", "sordino", *arguments], limit=limit, stderr=stderr)
    with os.fdopen(read_end, "rb") as heard:
        text = heard.read().decode()
    code = process.wait()
    assert code in (5, 6), text
    assert "Traceback" not in text
    assert "free some space" in " ".join(text.split())
    assert len(text.splitlines()) <= 10
    if not out.exists():
        assert list(tmp_path.iterdir()) == []
        return
    again = warm.Process([sys.executable, "-m", "sordino", "resume", str(out), "-q"])
    assert again.wait() == 0
    assert differences(trace(whole), trace(out)) == []
    assert verify(out) == []


def test_a_disk_that_fills_between_checkpoints_is_said_to_be_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metrics are synced before each checkpoint: that may fail like everything else."""
    from sordino.config import load
    from sordino.runs.play import Progress
    from sordino.runs.run import resume, start

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def fill(step: Progress) -> None:
        monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(errors.RunError, match="free some space"):
        start(load(None, [*SMALL, f"rounds={ROUNDS}"]), tmp_path / "run", fill)
    monkeypatch.undo()
    resume(tmp_path / "run")
    start(load(None, [*SMALL, f"rounds={ROUNDS}"]), tmp_path / "whole")
    assert differences(trace(tmp_path / "whole"), trace(tmp_path / "run")) == []


def test_metrics_are_synced_before_the_checkpoint_that_counts_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut a checkpoint says how long the metrics are: bytes that were not synced would be missing."""
    from sordino.config import load
    from sordino.runs.run import start

    synced: dict[str, int] = {}
    counted: list[tuple[int, int]] = []
    fsync, replace = os.fsync, os.replace

    def syncing(descriptor: int) -> None:
        synced[os.readlink(f"/proc/self/fd/{descriptor}")] = os.fstat(descriptor).st_size
        fsync(descriptor)

    def replacing(source: Path, target: Path) -> None:
        if Path(target).suffix == ".ckpt":
            metrics = tmp_path / "run" / "metrics.jsonl"
            counted.append((synced.get(str(metrics), 0), _counted(Path(source))))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "replace", replacing)
    start(load(None, [*SMALL, "engine.checkpoint_every=2"]), tmp_path / "run")
    assert len(counted) == 2
    assert all(synced_bytes >= wanted > 0 for synced_bytes, wanted in counted)


def _counted(checkpoint: Path) -> int:
    data = checkpoint.read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    return int(json.loads(metadata["state"])["meta"]["metrics_bytes"])


@pytest.mark.parametrize("depth", ["run", "a/b/run"])
def test_a_run_folder_is_durable_under_its_name_before_the_first_round(
    depth: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename is durable when the folder around it is synced, and a new folder when the one around that is."""
    from sordino.config import load
    from sordino.runs.play import Progress
    from sordino.runs.run import start

    out, calls = tmp_path / depth, list[str]()
    fsync, rename = os.fsync, Path.rename

    def syncing(descriptor: int) -> None:
        calls.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def renaming(self: Path, target: Path) -> Path:
        calls.append(f"-> {target}")
        return rename(self, target)

    class Reached(BaseException):
        pass

    def reach(step: Progress) -> None:
        raise Reached

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(Path, "rename", renaming)
    with pytest.raises(Reached):
        start(load(None, SMALL), out, reach)
    begun = calls.index(f"-> {out}")
    parents = [str(parent) for parent in out.parents if parent.is_relative_to(tmp_path)]
    assert calls[begun + 1 : begun + 1 + len(parents)] == parents
    written = [Path(name).name.split(".")[1] for name in calls[:begun] if name.endswith(".tmp")]
    assert written == ["experiment", "environment", "agreement"]
