"""A kept run can be repeated and is then compared; where nothing is missing, nothing is run, and that is said."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sordino.results.published import tables, written
from sordino.results.published.running import strongest
from tests.helpers.command_line import Said

SHEET = """
source = "nobody"
quick = { row = "one", set = ["rounds=1"] }
[[row]]
name = "one"
set = []
seeds = 1
[[row]]
name = "two"
set = ["algorithm.lr=0.5"]
seeds = 2
"""
SMALL = """
rounds = 1
data = { train = 80, test = 40 }
partition = { scheme = "iid", clients = 2 }
algorithm = { name = "fedavg" }
privacy = {}
"""


@pytest.fixture
def experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / tables.ROWS).write_text(SHEET)
    (mine / "small.toml").write_text(SMALL)
    (tmp_path / "README.md").write_text("{}{}".format(*written.marks("mine")))
    monkeypatch.setattr(tables, "place", lambda: tmp_path)
    return tmp_path


def test_one_row_is_run_and_then_compared_with_itself(experiments: Path, cli: Callable[..., Said]) -> None:
    kept = experiments / "mine" / tables.RESULTS
    assert cli("reproduce", "mine", "--row", "two", "--seed", 1).code == 0
    assert [(run["name"], run["seed"]) for run in map(json.loads, kept.read_text().splitlines())] == [("two", 1)]
    told = cli("reproduce", "mine", "--row", "two", "--seed", 1)
    assert "Nothing was missing, so nothing was run." in told.err
    before = {file: file.read_bytes() for file in experiments.rglob("*") if file.is_file()}
    again = cli("reproduce", "mine", "--row", "two", "--again")
    assert (again.code, "two, seed 1: the same" in again.out) == (0, True)
    kept.write_text(kept.read_text().replace('"final": ', '"final": 1'))
    differs = cli("reproduce", "mine", "--row", "two", "--seed", 1, "--again", "--json")
    assert (differs.code, json.loads(differs.out)[0]["same"]) == (1, False)
    kept.write_bytes(before[kept])
    assert {file: file.read_bytes() for file in experiments.rglob("*") if file.is_file()} == before


def test_what_cannot_be_repeated_is_named(experiments: Path, cli: Callable[..., Said]) -> None:
    for words, code in (
        (("mine", "--row", "tow"), "unknown-row"),
        (("mine", "--row", "one", "--again"), "nothing-to-repeat"),
        (("mine", "--again"), "options-exclude"),
        (("--row", "one"), "options-exclude"),
        (("mine", "--seed", 0), "options-exclude"),
    ):
        said = cli("reproduce", *words)
        assert (said.code, code in said.err) == (2, True), words
    assert "did you mean 'two'" in cli("reproduce", "mine", "--row", "tow").err


def test_where_nothing_is_finite_a_row_says_the_best_that_is_claimed() -> None:
    def row(unit: str, adversary: str, epsilon: object, status: str) -> dict[str, object]:
        return {"unit": unit, "adversary": adversary, "epsilon": epsilon, "status": status}

    nothing, nominal = row("example", "server", "inf", "none"), row("client", "participants", "inf", "nominal")
    assert strongest([nothing, nominal]) == nominal
    assert strongest([nothing]) == nothing
    assert strongest([nothing, nominal, row("example", "public", 3.0, "proved")])["epsilon"] == 3.0


def test_the_oldest_rows_have_no_curve_to_compare(experiments: Path, cli: Callable[..., Said]) -> None:
    kept = experiments / "mine" / tables.RESULTS
    assert cli("reproduce", "mine", "--row", "one").code == 0
    kept.write_text("".join(json.dumps(json.loads(line) | {"curve": []}) + "\n" for line in kept.open()))
    assert "one, seed 0: the same" in cli("reproduce", "mine", "--row", "one", "--again").out
