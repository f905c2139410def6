"""Fixes lead somewhere: a user who follows one gets further."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.tables import saved
from tests.helpers.command_line import Said

SMALL = ("rounds=1", "partition.clients=2", "data.train=80", "data.test=40")
SCHEMA = """
[columns]
age = { kind = "number", range = [0, 110], missing = 50 }
case = { kind = "ignored" }
died = { kind = "label", classes = ["0", "1"] }
"""


@pytest.fixture
def visits(tmp_path: Path) -> Callable[..., list[str]]:
    """The words of a dry run on a table whose rows are as told."""

    def words(*rows: dict[str, object], schema: str | None = SCHEMA, **data: str) -> list[str]:
        file = saved(tmp_path, rows)
        if schema is not None:
            (tmp_path / "schema.toml").write_text(schema)
            data["schema"] = str(tmp_path / "schema.toml")
        told = {"source": "tabular", "path": str(file), "label": "died", **data}
        shared = ["rounds=1", "model=logistic", "partition={scheme='iid',clients=2}"]
        return ["run", *shared, *(f"data.{key}={value}" for key, value in told.items()), "--dry-run"]

    return words


def rows(count: int = 100) -> list[dict[str, object]]:
    return [{"age": 20 + i % 60, "case": f"c{i:03}", "died": i % 2} for i in range(count)]


def test_an_empty_label_is_not_told_to_be_filled(visits: Callable[..., list[str]], cli: Callable[..., Said]) -> None:
    empty = [row | ({"died": ""} if i == 7 else {}) for i, row in enumerate(rows())]
    for more in ({}, {"missing": "fill"}):
        said = cli(*visits(*empty, **more))
        assert (said.code, "missing-values" in said.err) == (3, True)
        assert "missing = VALUE" not in said.err
        assert "take these rows out of it" in said.err
    assert cli(*visits(*(row for row in empty if row["died"] != ""))).code == 0
    gap = [row | ({"age": ""} if i == 7 else {}) for i, row in enumerate(rows())]
    assert "missing = VALUE" in cli(*visits(*gap)).err
    assert cli(*visits(*gap, missing="fill")).code == 0


def test_a_column_that_numbers_cases_has_two_ways_out(
    visits: Callable[..., list[str]], cli: Callable[..., Said]
) -> None:
    said = cli(*visits(*rows(), schema=None))
    assert (said.code, "too-many-levels" in said.err) == (3, True)
    assert "data.key = 'case'" in said.err
    assert "data schema" in said.err
    assert cli(*visits(*rows(), schema=None, key="case")).code == 0
    assert cli(*visits(*rows())).code == 0


def test_a_column_that_is_ignored_may_be_written_in_any_letters(
    tmp_path: Path, visits: Callable[..., list[str]], cli: Callable[..., Said]
) -> None:
    words = visits(*(row | {"case": "Jörg" if i > 3 else "x"} for i, row in enumerate(rows())))
    file = tmp_path / "visits.csv"
    file.write_text(file.read_text(encoding="utf-8"), encoding="cp1252")
    assert cli(*words).code == 0
    assert cli("data", "list", *words[1:-1]).code == 0


def test_a_draft_of_several_files_names_all_of_them(tmp_path: Path, cli: Callable[..., Said]) -> None:
    for name in ("a.csv", "b.csv"):
        saved(tmp_path, rows(40), name)
    said = cli("data", "schema", tmp_path, "--label", "died")
    assert said.out.startswith(f"# A draft of a schema for {tmp_path} (2 files),")


@pytest.mark.parametrize(
    ("words", "says", "then"),
    [
        (("evaluation.metrics=['auroc']",), "evaluation.scores = ", ("evaluation.scores=['auroc']",)),
        (("privacy.epsilon=2,5",), "privacy.epsilon=2.5, with a decimal point", ("privacy.epsilon=2.5",)),
        (("privacy.unit=patient",), "follows from where the noise is", ()),
        (("seed=abc",), "for example seed=10", ("seed=10",)),
        (("rounds=1.5",), "for example rounds=10", ("rounds=10",)),
        (("privacy.noise=true",), "one of: counter, system", ("privacy.noise=counter",)),
    ],
)
def test_a_setting_that_is_none_says_what_is(
    words: tuple[str, ...], says: str, then: tuple[str, ...], cli: Callable[..., Said]
) -> None:
    refused = cli("run", *SMALL, *words, "--dry-run")
    assert (refused.code, says in refused.err) == (2, True)
    assert cli("run", *SMALL, *then, "--dry-run").code == 0


def test_a_part_of_images_in_parquet_is_a_number_of_them(tmp_path: Path, cli: Callable[..., Said]) -> None:
    said = cli("run", "data.source=images", f"data.path={tmp_path}", "data.fraction=0.1", "--dry-run")
    assert (said.code, "data.train = N" in said.err) == (2, True)
    assert "data.source=folder" not in said.err


def test_a_file_that_is_nearly_there_is_named(
    tmp_path: Path, cli: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text("rounds = 1\n")
    assert "did you mean study.toml?" in cli("run", "study.tml").err
    said = cli("privacy", "verify", "study.toml").err
    assert "give the folder of a run" in said
    assert "finish or resume" not in said


def test_words_of_others_are_understood(tmp_path: Path, cli: Callable[..., Said]) -> None:
    trained, attacked = cli("train", *SMALL), cli("attack", *SMALL, "--attack", "membership")
    assert (trained.code, attacked.code) == (2, 2)
    assert "write sordino run" in trained.err
    assert "choose loss_threshold or lira" in attacked.err


def test_to_resume_a_finished_run_runs_nothing_and_says_so(tmp_path: Path, cli: Callable[..., Said]) -> None:
    run = tmp_path / "run"
    assert cli("run", *SMALL, "--out", run, "-q").code == 0
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    assert "nothing was run, and nothing was spent" in cli("resume", run).out
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before
    assert "nothing was run" not in cli("show", run).out


@pytest.mark.slow
def test_a_list_shows_the_runs_of_a_comparison_and_says_what_adds_up(tmp_path: Path, cli: Callable[..., Said]) -> None:
    real = (*SMALL, "privacy.noise=system", "privacy.epsilon=8")
    assert cli("run", *real, "--out", tmp_path / "alone", "-q").code == 0
    assert "adds up" not in cli("list", tmp_path).out
    for seed in (0, 1):
        assert cli("run", *real, f"seed={seed}", "--out", tmp_path / "method" / f"seed-{seed}", "-q").code == 0
    said = " ".join(cli("list", tmp_path).out.split())
    assert "method/seed-1" in said
    assert "3 runs with real noise read the same data (digits)" in said
    seeded = tmp_path / "seeded"
    for seed in (0, 1):
        assert cli("run", *SMALL, f"seed={seed}", "--out", seeded / f"{seed}", "-q").code == 0
    assert "adds up" not in cli("list", seeded).out


def test_one_file_under_two_names_adds_up(
    tmp_path: Path, visits: Callable[..., list[str]], cli: Callable[..., Said]
) -> None:
    words = visits(*({"age": 40 + i % 9, "case": i, "died": i % 2} for i in range(60)))[:-1]
    file = next(word for word in words if word.startswith("data.path=")).removeprefix("data.path=")
    (same := tmp_path / "same.csv").symlink_to(file)
    one_step = ["algorithm={name='fedavg',local_steps=1,batch_size='full'}", "read={name='noisy_gradient',clip=1.0}"]
    private = [*words, *one_step, "privacy={epsilon=4.0,delta=1e-3,noise='system'}"]
    more = tmp_path / "more.csv"
    more.write_text(Path(file).read_text().splitlines()[0] + "\n41,60,0\n")
    for path, out in ((f"'{file}'", tmp_path / "runs" / "one"), (f"['{more}', '{same}']", tmp_path / "runs" / "two")):
        assert cli(*private, f"data.path={path}", "--out", out, "-q").code == 0
    assert "2 runs with real noise read the same data" in " ".join(cli("list", tmp_path / "runs").out.split())
    (out / "privacy.json").unlink()  # as of one that was killed, which has spent, too
    assert "2 runs with real noise read the same data" in " ".join(cli("list", tmp_path / "runs").out.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("privacy", "plan"),
        ("privacy", "plan", "--unit", "person"),
        ("run", "--chaos", "rain"),
        ("check", "a.py", "--inputs", "x"),
    ],
)
def test_a_word_that_means_nothing_is_answered_with_what_to_write(
    arguments: tuple[str, ...], cli: Callable[..., Said]
) -> None:
    said = cli(*arguments)
    assert said.code == 2
    assert "(wrong-usage)" in said.err
    assert " fix write " in said.err or " fix for persons, use " in said.err


def test_a_run_of_a_similar_name_is_suggested(cli: Callable[..., Said], tmp_path: Path) -> None:
    assert cli("run", *SMALL, "-q", "--out", tmp_path / "my-run") == (0, "", "")
    said = cli("show", tmp_path / "my-rnu")
    assert "(not-a-run)" in said.err
    assert f"did you mean {tmp_path / 'my-run'}?" in said.err
