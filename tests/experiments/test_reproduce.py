"""The program that runs tables: what is missing is run and kept, what is kept can be run again and compared."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pages
import pytest
import reproduce
import tables

from sordino.errors import ConfigError, DataError, NonFiniteModel, RunError
from sordino.receipts.folder import RunFolder
from tests.experiments.small_tables import HEAD, ONE, PROGRAM, TWO, found, table
from tests.helpers.command_line import Said

TUNE = HEAD + 'tune = { key = "algorithm.lr", values = [0.01, 0.1], seed = 100 }\n'
Asked = Callable[..., Said]


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Asked:
    """`python experiments/reproduce.py ...` in this process."""

    def spoken(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["reproduce.py", *map(str, words)])
        try:
            code = reproduce.main()
        except SystemExit as end:  # of the parser
            code = int(end.code or 0)
        return Said(code, *capsys.readouterr())

    return spoken


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one table, "mine", that the program finds."""
    table(tmp_path / "mine", HEAD + ONE.replace("2", "1") + TWO.replace("seeds = 1", "seeds = 2"))
    (tmp_path / "README.md").write_text("before\n{}{}after\n".format(*pages.marks("")))
    (tmp_path / "mine" / "README.md").write_text("before\n{}{}after\n".format(*pages.marks("mine")))
    monkeypatch.setattr(reproduce, "ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[str, ...], int]]:
    """The rows that were run, with their words and seeds; a step of 0.1 learns best, and one of 9 diverges."""
    asked: list[tuple[str, tuple[str, ...], int]] = []

    def run(one: tables.Table, row: tables.Row, words: tuple[str, ...], seed: int, data: object) -> dict[str, Any]:
        asked.append((row.name, words, seed))
        if "algorithm.lr=9.0" in words:
            raise NonFiniteModel("the model is no longer finite")
        return found(0.6 if "algorithm.lr=0.1" in words else 0.5)

    monkeypatch.setattr(reproduce, "run_row", run)
    return asked


def run_all(one: tables.Table) -> tables.Table:
    reproduce.run_missing(one, one.sheet.row, None, 1, None)
    return tables.read(one.folder)


def test_a_loss_without_bound_is_left_out(tmp_path: Path) -> None:
    wild = found(0.5)
    wild["metrics"][0] |= {"loss": float("nan"), "model_norm": float("inf")}
    facts = reproduce.measured(wild, table(tmp_path, HEAD + ONE))
    assert (facts["loss"], facts["norm"], facts["final"]) == (None, None, 50.0)


def test_a_program_is_run_where_its_file_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "mine" / "count.py"
    one = table(tmp_path / "mine", 'source = "nobody"\n' + PROGRAM)
    program.write_text("raise SystemExit('nothing to count')")
    with pytest.raises(RunError, match=r"count.py ended with 1") as refused:
        run_all(one)
    assert "nothing to count" in refused.value.why
    program.write_text("from pathlib import Path; Path(__file__).with_name('count.md').open('a').write('1')")
    for _ in range(2):
        one = run_all(one)
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in told] == ["count.py has written count.md", "Nothing was missing"]
    assert (tmp_path / "mine" / "count.md").read_text() == "1"
    assert reproduce.quick([one], 1, None) == 0
    assert "[count.md](count.md) in about 1 minute" in pages.block(one)


def test_a_program_is_given_the_folder_of_its_images(tmp_path: Path) -> None:
    one = table(tmp_path / "mine", 'source = "nobody"\n' + PROGRAM + 'images = "mnist"\n')
    (tmp_path / "mine" / "count.py").write_text(
        "import sys; from pathlib import Path; Path(__file__).with_name('count.md').write_text(' '.join(sys.argv[1:]))"
    )
    with pytest.raises(ConfigError, match="needs images of mnist") as refused:
        run_all(one)
    assert refused.value.fix == reproduce.WHERE
    reproduce.run_missing(one, (), None, 1, tmp_path / "images")
    assert (tmp_path / "mine" / "count.md").read_text() == str(tmp_path / "images" / "mnist")


def test_first_seeds_first_and_what_is_kept_is_not_run_again(
    here: Path, asked: Asked, runs: list[tuple[str, tuple[str, ...], int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    works = reproduce.run_row

    def fails(*words: Any) -> Any:
        if len(runs) == 1:
            runs.append(("no power", (), 0))
            raise RunError("the power failed")
        return works(*words)

    monkeypatch.setattr(reproduce, "run_row", fails)
    failed = asked("mine", "--jobs", 1)
    assert (failed.code, "the power failed" in failed.err) == (RunError.exit_code, True)
    assert asked("mine", "--jobs", 1).code == 0
    assert [(name, seed) for name, _, seed in runs] == [("one", 0), ("no power", 0), ("two", 0), ("two", 1)]
    assert not tables.read(here / "mine").missing()
    page = (here / "mine" / "README.md").read_text()
    assert "| two | 2 | 50.00 ± 0.00 | 50.00 ± 0.00 | inf | example, server | - | none |" in page
    (line, *_) = (here / "mine" / tables.RESULTS).read_text().splitlines()
    assert json.loads(line)["neighbours"] == "replace"
    assert json.loads(line)["seconds"] >= 0


def test_a_run_names_its_commit_and_its_accelerator(
    tmp_path: Path, runs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "commit", lambda: "abc1234")
    monkeypatch.setattr(reproduce, "device_of", lambda name: "cuda")
    monkeypatch.setattr(reproduce.torch.cuda, "get_device_name", lambda: "a GPU")
    (one, _) = run_all(table(tmp_path, HEAD + "traffic = true\n" + ONE)).runs
    assert (one.commit, one.accelerator) == ("abc1234", f"a GPU, torch {reproduce.torch.__version__}")
    assert "| abc1234 | a GPU, torch" in (tmp_path / "table.md").read_text()


def test_each_row_takes_the_step_that_was_best_with_another_seed(tmp_path: Path, runs: list[Any]) -> None:
    done = run_all(table(tmp_path, TUNE + ONE))
    best = ("algorithm.lr=0.1",)
    assert [one[1:] for one in runs] == [(("algorithm.lr=0.01",), 100), (best, 100), (best, 0), (best, 1)]
    assert {run.tuned for run in done.runs} == {0.1}
    assert "| 0.1 |" in pages.measured(done)
    run_all(done)
    assert len(runs) == 4


def test_a_row_that_says_its_step_chooses_none(tmp_path: Path, runs: list[Any]) -> None:
    done = run_all(table(tmp_path, TUNE + TWO.replace("two", "one")))
    assert runs == [("one", ("algorithm.lr=0.5",), 0)]
    assert done.untuned() == []
    assert [run.tuned for run in done.runs] == [None]


def test_a_step_at_which_the_model_diverges_is_not_chosen(tmp_path: Path, runs: list[Any]) -> None:
    done = run_all(table(tmp_path, TUNE.replace("0.1]", "9]") + ONE))
    assert {run.tuned for run in done.runs} == {0.01}
    assert [run.status for run in done.tuning] == ["none", "diverged"]


@pytest.mark.slow
def test_a_run_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = table(tmp_path, HEAD + ONE)
    row = one.sheet.row[0]
    with pytest.raises(NonFiniteModel, match="'one', seed 0: "):
        reproduce.run_row(one, row, ("algorithm.lr=1e38", "rounds=3"), 0, None)
    with pytest.raises(DataError) as refused:
        reproduce.run_row(one, row, ('data={source="images", path="there/mnist"}',), 0, tmp_path / "images")
    assert str(tmp_path / "images" / "mnist") in str(refused.value)  # looked for where the reader says
    assert refused.value.fix == reproduce.WHERE
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))  # a process that says nothing of itself
    with pytest.raises(RunError, match=r"'one', seed 0: .*\w"):
        reproduce.run_row(one, row, (), 0, None)


@pytest.mark.slow
def test_a_run_that_is_stopped_goes_on_and_one_that_ends_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = table(tmp_path, HEAD + ONE)
    row, stopped, real = one.sheet.row[0], one.folder / "stopped", subprocess.run
    whole = reproduce.run_row(one, row, ("rounds=40",), 0, None)
    assert not list(stopped.glob("*"))

    def interrupted(words: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
        if words[0] == "git":
            return real(words, **more)
        with subprocess.Popen(words, env=more["env"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            while not any(file.stat().st_size for file in stopped.glob("*/metrics.jsonl")):
                time.sleep(0.01)
            process.terminate()
            return subprocess.CompletedProcess(words, process.wait(), "", "")

    with monkeypatch.context() as patched:
        patched.setattr(reproduce.subprocess, "run", interrupted)
        with pytest.raises(RunError):
            reproduce.run_row(one, row, ("rounds=40",), 0, None)
    (metrics,) = stopped.glob("*/metrics.jsonl")
    with RunFolder(metrics.parent).locked(), pytest.raises(RunError, match="in use") as at_work:  # as if it still were
        reproduce.run_row(one, row, ("rounds=40",), 0, None)
    assert str(metrics.parent) in at_work.value.fix
    assert metrics.stat().st_size
    later = reproduce.run_row(one, row, ("rounds=40",), 0, None)
    assert (whole["continued"], later["continued"]) == (False, True)
    scores = ([m.get("accuracy") for m in found["metrics"]] for found in (whole, later))
    assert len(set(map(tuple, scores))) == 1
    assert not list(stopped.glob("*"))


def test_a_cut_row_that_cannot_be_run_says_why(here: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> dict[str, Any]:
        raise DataError("there is no directory here")

    monkeypatch.setattr(reproduce, "run_row", run)
    said = asked("--quick")
    assert (said.code, said.out.splitlines()[0]) == (
        DataError.exit_code,
        "not run mine, one, cut to rounds=1: there is no directory here",
    )


def test_the_program_lists_what_there_is(asked: Asked) -> None:
    listed = asked().out
    assert "cuag: Li, Xiao and Chen" in listed
    assert "attack.py writes table.md, there; about 30 minutes" in listed
    shown = asked("cuag", "--dry-run").out
    assert "| 92.12 | 91.28 |" in shown


def test_a_dry_run_and_a_new_page_run_nothing(here: Path, asked: Asked, runs: list[Any]) -> None:
    said = asked("mine", "--dry-run")
    assert said.out.splitlines()[-3:] == [f"missing: {row}" for row in ("one, seed 0", "two, seed 0", "two, seed 1")]
    assert not (here / "mine" / "table.md").exists()
    asked("--rewrite")
    assert (here / "mine" / "table.md").exists()
    assert "runs what is missing: 3 of its runs" in (here / "mine" / "README.md").read_text()
    assert runs == []


@pytest.mark.slow
def test_one_row_is_run_and_then_compared_with_itself(
    here: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole runs, each in a process of its own; after two that agree, what the second said is said again."""
    run, rows = reproduce.run_row, []

    def once_more(*words: Any) -> dict[str, Any]:
        rows.append(json.dumps(run(*words) if len(rows) < 2 else json.loads(rows[-1])))
        return dict(json.loads(rows[-1]))

    monkeypatch.setattr(reproduce, "run_row", once_more)
    kept = here / "mine" / tables.RESULTS
    assert asked("mine", "--row", "two", "--seed", 1).code == 0
    assert [(run["name"], run["seed"]) for run in map(json.loads, kept.read_text().splitlines())] == [("two", 1)]
    told = asked("mine", "--row", "two", "--seed", 1)
    assert "Nothing was missing, so nothing was run." in told.out
    before = {file: file.read_bytes() for file in here.rglob("*") if file.is_file()}
    again = asked("mine", "--row", "two", "--again")
    assert (again.code, "two, seed 1: the same" in again.out) == (0, True)
    kept.write_text("".join(json.dumps(json.loads(line) | {"curve": []}) + "\n" for line in kept.open()))
    assert "two, seed 1: the same" in asked("mine", "--row", "two", "--again").out  # the oldest rows have no curve
    kept.write_text(kept.read_text().replace('"final": ', '"final": 1'))
    differs = asked("mine", "--row", "two", "--seed", 1, "--again")
    assert (differs.code, "two, seed 1: differs, kept " in differs.out) == (1, True)
    assert len(rows) == 4
    kept.write_bytes(before[kept])
    assert {file: file.read_bytes() for file in here.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("mien",), "invalid choice: 'mien'"),
        (("mine", "--row", "tow"), "mine has no row 'tow'\nfix: one of: one; two"),
        (("mine", "--row", "one", "--again"), "no such run of 'one' is kept"),
        (("mine", "--again"), "belong to one --row"),
        (("mine", "--seed", 0), "belong to one --row"),
        (("--row", "one"), "--row belongs to one NAME"),
        (("--quick", "--dry-run"), "not allowed with"),
    ],
)
def test_what_cannot_be_done_is_said(words: tuple[object, ...], said: str, here: Path, asked: Asked) -> None:
    answer = asked(*words)
    assert (answer.code, said in answer.err) == (2, True), answer.err


def test_where_nothing_is_finite_a_row_says_the_best_that_is_claimed() -> None:
    def row(unit: str, adversary: str, epsilon: object, status: str) -> dict[str, object]:
        return {"unit": unit, "adversary": adversary, "epsilon": epsilon, "status": status}

    nothing, nominal = row("example", "server", "inf", "none"), row("client", "participants", "inf", "nominal")
    assert reproduce.strongest([nothing, nominal]) == nominal
    assert reproduce.strongest([nothing]) == nothing
    assert reproduce.strongest([nothing, nominal, row("example", "public", 3.0, "proved")])["epsilon"] == 3.0


@pytest.mark.slow
def test_one_cut_row_of_each_table_runs(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two to three minutes on one core; without the images only the tables that need none."""
    root = reproduce.ROOT
    before = {file: file.read_bytes() for file in root.rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    monkeypatch.chdir(root.parent)
    said = asked("--quick", "--jobs", 1)
    assert said.code in (0, DataError.exit_code), said.out
    (line,) = (line for line in said.out.splitlines() if line.startswith("dp_prox, "))
    assert float(line.rpartition("% after")[0].rpartition(": ")[2]) > 0
    assert {file: file.read_bytes() for file in before} == before
