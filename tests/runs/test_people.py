"""A person with several rows: what is said where rows are protected one by one, and how each becomes a client."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.tables import saved
from tests.helpers.command_line import Said

WHOLE = "a person with several rows (those of one patient) is not protected as a whole"
SCHEMA = """
[columns]
patient = { kind = "KIND" }
age = { kind = "number", range = [0, 110] }
died = { kind = "label", classes = ["0", "1"] }
"""


@pytest.fixture
def visits(tmp_path: Path) -> list[str]:
    """Sixty visits of twenty patients, of whom one came four times and one came twice."""
    came = [i % 20 + (1 if i == 0 else 0) for i in range(60)]
    rows = [{"patient": f"p{who}", "age": 20 + i, "died": i % 2} for i, who in enumerate(came)]
    file = saved(tmp_path, rows)
    for kind in ("key", "group"):
        (tmp_path / f"{kind}.toml").write_text(SCHEMA.replace("KIND", kind))
    return [
        "rounds=1", "model=logistic", "data.source=tabular", f"data.path={file}", "data.label=died", "data.key=patient",
        "privacy.noise=system", "privacy.epsilon=8",
    ]  # fmt: skip


def test_where_a_key_repeats_everybody_is_told_whom_it_does_not_protect_and_the_owner_how_often(
    tmp_path: Path, visits: list[str], cli: Callable[..., Said]
) -> None:
    words = [*visits, f"data.schema={tmp_path / 'key.toml'}", "partition={scheme='iid',clients=3}"]
    run = tmp_path / "run"
    said = " ".join(cli("run", *words, "--out", run).out.split())
    assert WHOLE in said
    assert "patient: 20 of 20 values stand in several rows, at most in 4" in said
    assert WHOLE in " ".join(cli("show", run).out.split())
    assert cli("report", run).code == 0
    assert cli("privacy", "export", run, "--as", "card", "--out", tmp_path / "card.md").code == 0
    for file in (run / "privacy.json", run / "report.html", tmp_path / "card.md"):
        assert "is not protected as a whole" in file.read_text()
    public = [file for file in run.rglob("*") if file.is_file() and run / "private" not in file.parents]
    assert not [file for file in public if b"at most in 4" in file.read_bytes()]
    assert "at most in 4" in (run / "private" / "log.txt").read_text()
    assert cli("privacy", "verify", run).code == 0


def test_each_patient_can_be_a_client_whose_visits_all_train_or_all_test(
    tmp_path: Path, visits: list[str], cli: Callable[..., Said]
) -> None:
    from sordino import config
    from sordino.runs.population import Population

    words = [
        *visits, f"data.schema={tmp_path / 'group.toml'}", "data.group=patient", "partition=natural",
        "algorithm=dp_fedavg",
    ]  # fmt: skip
    held = Population(config.load(None, words)).dataset
    train, test = set(held.train.group.tolist()), set(held.test.group.tolist())
    assert train
    assert test
    assert not train & test
    said = " ".join(cli("run", *words, "--out", tmp_path / "run").out.split())
    assert "stand in several rows" not in said
    assert WHOLE not in said
    assert "one client" in said
    drafted = cli(
        "data", "schema", tmp_path / "visits.csv", "--label", "died", "--group", "patient", "--key", "patient"
    )
    assert 'patient = { kind = "group" }' in drafted.out


@pytest.mark.slow
def test_where_rows_are_declared_a_receipt_has_a_row_for_a_person(
    tmp_path: Path, visits: list[str], cli: Callable[..., Said]
) -> None:
    (tmp_path / "rows.toml").write_text(SCHEMA.replace('"KIND"', '"key", rows = 4'))
    words = [*visits, f"data.schema={tmp_path / 'rows.toml'}", "partition={scheme='iid',clients=3}"]
    words = [*words, "privacy.epsilon=1"]
    shown = " ".join(cli("run", *words, "--dry-run", "--out", tmp_path / "no").out.split())
    run = tmp_path / "run"
    said = " ".join(cli("run", *words, "--out", run).out.split())
    assert "person" in shown
    assert "4 examples of one person" in said
    assert WHOLE not in said
    assert "stand in several rows" not in said
    receipt = json.loads((run / "privacy.json").read_text())
    rows = {(row["unit"], row["adversary"]): row for row in receipt["guarantees"]}
    example, person = rows["example", "server"], rows["person", "server"]
    assert 4 * example["epsilon"] < person["epsilon"] < 8 * example["epsilon"]
    assert person["delta"] <= 1e-5
    assert cli("privacy", "verify", run).code == 0
    assert cli("report", run).code == 0
    for kind, name in (("card", "card.md"), ("annex", "annex.html"), ("registry", "registry.yaml")):
        assert cli("privacy", "export", run, "--as", kind, "--out", tmp_path / name).code == 0
        assert "person" in (tmp_path / name).read_text()
        assert "not protected as a whole" not in (tmp_path / name).read_text()
    # who edits the number of rows is noticed: the twin promises a person with two rows only
    agreed = run / "agreement.json"
    agreed.write_text(agreed.read_text().replace('"rows_per_key": 4', '"rows_per_key": 2'))
    assert cli("privacy", "verify", run).code != 0


def test_more_rows_of_one_person_than_are_declared_are_refused(
    tmp_path: Path, visits: list[str], cli: Callable[..., Said]
) -> None:
    (tmp_path / "rows.toml").write_text(SCHEMA.replace('"KIND"', '"key", rows = 3'))
    words = [*visits, f"data.schema={tmp_path / 'rows.toml'}", "partition={scheme='iid',clients=3}"]
    said = cli("run", *words, "--out", tmp_path / "run")
    assert said.code != 0
    assert "is in 4 rows, and the schema allows 3" in " ".join(said.err.split())
    assert not (tmp_path / "run" / "privacy.json").exists()


def test_a_draft_counts_the_rows_of_a_person(tmp_path: Path, visits: list[str], cli: Callable[..., Said]) -> None:
    drafted = cli("data", "schema", tmp_path / "visits.csv", "--label", "died", "--key", "patient").out
    assert 'patient = { kind = "key", rows = 4 }' in drafted


@pytest.mark.slow
def test_a_unit_of_patients_is_answered_with_the_way_to_get_it(cli: Callable[..., Said]) -> None:
    said = cli("privacy", "plan", "--unit", "patient", "--epsilon", 2)
    assert said.code == 2
    assert "data.group" in said.err
    assert cli("privacy", "plan", "--unit", "example", "--epsilon", 2, "--delta", 1e-7).code == 0
