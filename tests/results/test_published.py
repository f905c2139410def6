"""Tables of published numbers: what their folders declare, and that pages say what was run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sordino import config
from sordino.errors import ConfigError, DataError, NonFiniteModel, RunError
from sordino.results.published import running, tables, written
from tests.helpers.command_line import spoken

ROOT = Path(__file__).parents[2] / "experiments"
NAMES = [file.parent.name for file in sorted(ROOT.glob(f"*/{tables.ROWS}"))]
HEAD = 'source = "nobody"\nquick = { row = "one", set = ["rounds=1"] }\n'
ONE = '[[row]]\nname = "one"\nset = []\nseeds = 2\n'
TWO = '[[row]]\nname = "two"\nset = ["algorithm.lr=0.5"]\nseeds = 1\n'
CLAIM = '[[claim]]\nasks = "is it so"\nrows = ["one"]\n'
PROGRAM = '[[program]]\nfile = "count.py"\nwrites = "count.md"\nshows = "How many"\nminutes = 1\n'
STATED = {
    "unit": "example",
    "adversary": "server",
    "neighbours": "replace",
    "epsilon": "inf",
    "delta": 0.0,
    "status": "none",
}


def table(place: Path, text: str) -> tables.PublishedTable:
    place.mkdir(exist_ok=True)
    (place / tables.ROWS).write_text(text)
    (place / "small.toml").write_text("rounds = 1\n")
    return tables.read(place)


def found(accuracy: float) -> dict[str, Any]:
    """What a run says of itself."""
    sent = {"bytes_up": 1, "bytes_down": 1, "payload": 1, "model_norm": 1.0}
    metrics = [{"round": 1, "accuracy": accuracy, "loss": 1.0, **sent}]
    return {"metrics": metrics, "preparation": [], "privacy": {"guarantees": [STATED], "budget": None}}


@pytest.mark.parametrize("name", NAMES)
def test_every_number_on_the_pages_is_that_of_a_kept_run(name: str) -> None:
    one = tables.named(ROOT, name)
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    first, last = written.marks(name)
    assert page.count(first + written.block(one) + last) == 1
    if one.rows:
        assert (ROOT / name / "table.md").read_text(encoding="utf-8") == written.everything(one)
    asked = {(row.name, seed) for row in one.rows for seed in range(row.seeds)}
    assert {(run.name, run.seed) for run in one.runs} <= asked
    assert not one.unwritten()
    assert all((one.folder / program.file).exists() for program in one.sheet.program)


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_an_experiment(name: str) -> None:
    one = tables.named(ROOT, name)
    tune = one.sheet.tune
    for row in one.rows:
        for value in (None,) if tune is None else tune.values:
            words = row.set if tune is None else (*row.set, f"{tune.key}={value}")
            assert config.load(one.experiment(), words).algorithm.get("lr") == value or value is None
    if (quick := one.quick()) is not None:
        config.load(one.experiment(), (*quick[0].set, *quick[1]))


def test_every_folder_of_results_is_listed() -> None:
    assert {file.parent.name for file in ROOT.glob("*/*.py")} | {file.parent.name for file in ROOT.glob("*/*.md")} <= {
        *NAMES
    }


def test_a_number_that_was_changed_by_hand_is_noticed() -> None:
    """The negative control."""
    one = tables.named(ROOT, "cuag")
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    wrong = page.replace("| 91.28 |", "| 92.28 |")
    assert wrong != page
    assert written.with_block(wrong, one) == page
    assert written.with_block("a page without marks", one) == "a page without marks"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (HEAD + ONE.replace("seeds = 2", "seeds = 2\npublished = [90.0]"), "number-without-source"),
        (HEAD + ONE.replace("seeds = 2", "seeds = 2\nyardstick = [90.0]"), "number-without-source"),
        (HEAD + ONE + ONE, "row-twice"),
        (HEAD + TWO, "unknown-row"),
        (HEAD + ONE.replace("seeds", "sedes"), "wrong-type"),
        (HEAD + ONE + "becuase = 'x'\n", "unknown-key"),
        (ONE, "wrong-type"),
        (HEAD + "[[row", "bad-toml"),
        ('source = "nobody"\n', "empty-table"),
        ('source = "nobody"\n' + ONE, "no-quick"),
        (HEAD + ONE + CLAIM.replace('"one"', '"two"'), "unknown-row"),
        (HEAD + ONE + CLAIM + 'minus = "two"\n', "unknown-row"),
        (HEAD + ONE + CLAIM + "becuase = 'x'\n", "unknown-key"),
    ],
)
def test_what_a_folder_declares_wrongly_is_refused(text: str, code: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        table(tmp_path, text)
    assert refused.value.code == code
    assert refused.value.fix
    assert tables.ROWS in refused.value.what


def kept(name: str, seed: int, last: float, **more: Any) -> str:
    facts = {"name": name, "seed": seed, "final": last, "last": last, "epsilon": "inf", "status": "none"}
    return json.dumps(facts | {"subject": "example, server", "bytes_up": 1} | more) + "\n"


def test_a_claim_compares_seed_by_seed(tmp_path: Path) -> None:
    text = HEAD + ONE + TWO.replace("seeds = 1", "seeds = 3") + CLAIM + 'minus = "two"\n' + CLAIM
    lines = (
        kept("one", 0, 50.0),
        kept("one", 1, 60.0),
        kept("two", 1, 61.0),
        kept("two", 0, 53.0),
        kept("two", 2, 9.0),
    )
    (tmp_path / tables.RESULTS).write_text("".join(lines))
    one = table(tmp_path, text)
    assert [written.shown(one, claim) for claim in one.sheet.claim] == ["-2.0 ± 1.4 (n = 2)", "55.0 ± 7.1"]
    assert "| is it so | - | -2.0 ± 1.4 (n = 2) | - |" in written.block(one)
    (tmp_path / tables.RESULTS).write_text(lines[0])
    one = table(tmp_path, text)
    assert [written.shown(one, claim) for claim in one.sheet.claim] == ["not run", "50.0"]


def test_seeds_that_promise_differently_are_all_told(tmp_path: Path) -> None:
    """The first seed's epsilon is not everybody's."""
    more = {"neighbours": "replace", "delta": 1e-5}
    lines = (kept("one", 0, 1.0, **more | {"epsilon": 2.0}), kept("one", 1, 1.0, **more | {"epsilon": 1.0}))
    (tmp_path / tables.RESULTS).write_text("".join(lines))
    told = written.block(table(tmp_path, HEAD + ONE))
    assert "| 1.000 to 2.000 | example, server | replace, 1e-05 | none |" in told


def test_a_run_that_is_kept_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / tables.RESULTS).write_text(kept("one", 0, 1.0) + kept("one", 1, 1.0) + kept("one", 0, 2.0))
    with pytest.raises(RunError, match="'one', seed 0, twice"):
        table(tmp_path, HEAD + ONE)


def test_a_loss_without_bound_is_left_out() -> None:
    one = tables.named(ROOT, "dp_prox")
    wild = found(0.5)
    wild["metrics"][0] |= {"loss": float("nan"), "model_norm": float("inf")}
    run = running.measured(wild, one.rows[0].name, 0, one, None, 1.0)
    assert (run.loss, run.norm, run.final) == (None, None, 50.0)


def test_a_program_is_run_where_its_file_is_missing(tmp_path: Path) -> None:
    text, program, heard = 'source = "nobody"\n' + PROGRAM, tmp_path / "mine" / "count.py", list[str]()
    one = table(tmp_path / "mine", text)
    program.write_text("raise SystemExit('nothing to count')")
    with pytest.raises(RunError, match=r"count.py ended with 1") as refused:
        running.run_missing(one, 1, None, heard.append)
    assert "nothing to count" in refused.value.why
    program.write_text("from pathlib import Path; Path(__file__).with_name('count.md').open('a').write('1')")
    for _ in range(2):
        running.run_missing(tables.read(tmp_path / "mine"), 1, None, heard.append)
    assert heard[0] == "count.py has written count.md"
    assert [line.partition(",")[0] for line in heard[1:]] == ["Nothing was missing"]
    assert (tmp_path / "mine" / "count.md").read_text() == "1"
    assert list(running.run_quick([one], 1, None)) == []
    assert "[mine/count.md](mine/count.md) in about 1 minute" in written.block(one)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / tables.RESULTS).write_text('{"name": "one"}\n')
    with pytest.raises(RunError, match=r"results.jsonl, line 1"):
        table(tmp_path, HEAD + ONE)


def test_one_experiment_beside_the_rows(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("")
    with pytest.raises(ConfigError) as refused:
        table(tmp_path, HEAD + ONE).experiment()
    assert refused.value.code == "which-experiment"
    assert table(tmp_path, 'experiment = "other.toml"\n' + HEAD + ONE).experiment() == tmp_path / "other.toml"


def test_first_seeds_first_and_what_is_kept_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def run(one: object, row: tables.PublishedRow, words: object, seed: int, data: object) -> dict[str, Any]:
        asked.append((row.name, seed))
        if asked == [("one", 0), ("two", 0)]:
            raise RunError("the power failed")
        return found(0.5)

    monkeypatch.setattr(running, "_found", run)
    one = table(tmp_path / "mine", HEAD + ONE + TWO)
    (tmp_path / "README.md").write_text("before\n{}{}after\n".format(*written.marks("mine")))
    with pytest.raises(RunError, match="power"):
        running.run_missing(one, 1, None, lambda line: None)
    done = running.run_missing(tables.read(tmp_path / "mine"), 1, None, lambda line: None)
    assert asked == [("one", 0), ("two", 0), ("two", 0), ("one", 1)]
    assert not done.missing()
    assert (
        "| one | 2 | 50.00 ± 0.00 | 50.00 ± 0.00 | inf | example, server | - | none |"
        in (tmp_path / "README.md").read_text()
    )
    (line, *_) = (tmp_path / "mine" / tables.RESULTS).read_text().splitlines()
    assert json.loads(line)["neighbours"] == "replace"
    assert json.loads(line)["seconds"] >= 0


def test_each_row_takes_the_step_that_was_best_with_another_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[tuple[str, ...], int]] = []

    def run(one: object, row: object, words: tuple[str, ...], seed: int, data: object) -> dict[str, Any]:
        asked.append((words, seed))
        return found({"algorithm.lr=0.01": 0.3, "algorithm.lr=0.1": 0.6}[words[-1]])

    monkeypatch.setattr(running, "_found", run)
    text = HEAD + 'tune = { key = "algorithm.lr", values = [0.01, 0.1], seed = 100 }\n' + ONE
    done = running.run_missing(table(tmp_path, text), 1, None, lambda line: None)
    best = ("algorithm.lr=0.1",)
    assert asked == [(("algorithm.lr=0.01",), 100), (best, 100), (best, 0), (best, 1)]
    assert {run.tuned for run in done.runs} == {0.1}
    assert "| 0.1 |" in written.everything(done)
    running.run_missing(done, 1, None, lambda line: None)
    assert len(asked) == 4


def test_a_row_that_says_its_step_chooses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[tuple[str, ...], int]] = []

    def run(one: object, row: object, words: tuple[str, ...], seed: int, data: object) -> dict[str, Any]:
        asked.append((words, seed))
        return found(0.3)

    monkeypatch.setattr(running, "_found", run)
    text = HEAD + 'tune = { key = "algorithm.lr", values = [0.01, 0.1], seed = 100 }\n' + TWO.replace("two", "one")
    done = running.run_missing(table(tmp_path, text), 1, None, lambda line: None)
    assert asked == [(("algorithm.lr=0.5",), 0)]
    assert done.untuned() == []
    assert [run.tuned for run in done.runs] == [None]


def test_a_step_at_which_the_model_diverges_is_not_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(one: object, row: object, words: tuple[str, ...], seed: int, data: object) -> dict[str, Any]:
        if words[-1] == "algorithm.lr=0.1":
            raise NonFiniteModel("the model is no longer finite")
        return found(0.3)

    monkeypatch.setattr(running, "_found", run)
    text = HEAD + 'tune = { key = "algorithm.lr", values = [0.1, 0.01], seed = 100 }\n' + ONE
    done = running.run_missing(table(tmp_path, text), 1, None, lambda line: None)
    assert {run.tuned for run in done.runs} == {0.01}
    assert [run.status for run in done.tuning] == ["diverged", "none"]
    monkeypatch.undo()
    failed = type("Done", (), {"returncode": 6, "stdout": '{"error": {"what": "", "code": "model-not-finite"}}'})
    monkeypatch.setattr(running.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(NonFiniteModel):
        running._found(done, done.rows[0], (), 0, None)


def test_a_run_of_other_settings_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_found", lambda *_: found(0.5))
    running.run_missing(table(tmp_path, HEAD + TWO.replace("two", "one")), 1, None, lambda line: None)
    with pytest.raises(RunError, match="'one', seed 0, was run with other settings") as refused:
        table(tmp_path, HEAD + TWO.replace("two", "one").replace("0.5", "0.6"))
    assert refused.value.code == "row-changed"


def test_how_long_the_rest_takes(tmp_path: Path) -> None:
    (tmp_path / tables.RESULTS).write_text(kept("one", 0, 1.0, seconds=90.0))
    assert table(tmp_path, HEAD + ONE).left() == 1.5
    assert table(tmp_path, HEAD + ONE + TWO).left() is None
    one = table(tmp_path, "minutes = 160\n" + HEAD + ONE + TWO)
    assert "runs the 2 runs that are missing, about 2.7 hours on one core." in written.block(one)


def test_images_are_looked_for_where_the_reader_says(tmp_path: Path) -> None:
    one = tables.named(ROOT, "lc_fl")
    words = next(row.set for row in one.rows if row.name == "CIFAR-10 IID: FedAvg")
    assert running._moved(one, (), tmp_path) == (f'data.path="{tmp_path}/mnist"',)
    assert running._moved(one, words, tmp_path) == (f'data.path="{tmp_path}/cifar10"',)
    assert running._moved(tables.named(ROOT, "dp_prox"), (), tmp_path) == ()


def test_a_cut_row_that_cannot_be_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*asked: object) -> dict[str, Any]:
        raise DataError("there is no directory here")

    monkeypatch.setattr(running, "_found", run)
    (result,) = running.run_quick([tables.named(ROOT, "lc_fl")], 1, None)
    assert (result.refused, result.exit_code, result.accuracy) == ("there is no directory here", 3, None)


def test_the_command_lists_what_there_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said = spoken(capsys, monkeypatch, "reproduce", "--json")
    listed = {one["name"]: one for one in json.loads(said.out)}
    assert list(listed) == NAMES
    assert listed["cuag"]["rows"][0]["published"] == [92.12]
    shown = spoken(capsys, monkeypatch, "reproduce", "cuag", "--dry-run").out
    assert "92.12" in shown
    assert "91.28" in shown
    assert spoken(capsys, monkeypatch, "reproduce", "cuga").code == 2
    assert spoken(capsys, monkeypatch, "reproduce", "--quick", "--dry-run").code == 2
    shown = spoken(capsys, monkeypatch, "reproduce", "robust", "--dry-run").out
    assert "attack.py writes table.md, there; about 30 minutes" in shown


def test_an_installed_package_says_where_the_tables_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "__file__", str(tmp_path / "a" / "b" / "c" / "tables.py"))
    with pytest.raises(ConfigError, match="source") as refused:
        tables.place()
    assert refused.value.code == "no-tables"


@pytest.mark.slow
def test_one_cut_row_of_each_table_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two to three minutes on one core; without the images only the tables that need none."""
    before = {file: file.read_bytes() for file in ROOT.rglob("*") if file.is_file()}
    monkeypatch.chdir(ROOT.parent)
    rows = json.loads(spoken(capsys, monkeypatch, "reproduce", "--quick", "--jobs", 1, "--json").out)["rows"]
    assert [row["table"] for row in rows if row["accuracy"] is None and row["exit_code"] != DataError.exit_code] == []
    assert next(row["accuracy"] for row in rows if row["table"] == "dp_prox") > 0
    assert {file: file.read_bytes() for file in ROOT.rglob("*") if file.is_file()} == before
