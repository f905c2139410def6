"""The names of clients: shown wherever a client is, told only where somebody said that they may be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sordino
from sordino import budget, config, keys
from sordino.data.tabular import overview
from sordino.errors import EmptyClient, InvalidBudget
from sordino.planning import Agreement, PublicNumbers
from sordino.planning.prices import check_everybody_has_data
from sordino.receipts.receipt import spending
from sordino.report.run_facts import gather
from sordino.runs.population import Population
from tests.data.tables import DECLARED, refused, saved, table
from tests.helpers.command_line import Said

NAMES = ("Nord", "Süd", "West")


@pytest.fixture(scope="module")
def clinics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clinic to a file, and a schema beside them."""
    folder = tmp_path_factory.mktemp("clinics")
    for name, rows in zip(NAMES, (30, 40, 2), strict=True):
        saved(folder, [{k: v for k, v in row.items() if k != "clinic"} for row in table(rows)], f"{name}.csv")
    lines = [line for line in DECLARED.splitlines() if not line.startswith("clinic")]
    (folder / "schema.toml").write_text("\n".join(lines))
    return folder


def data(clinics: Path, **more: object) -> dict[str, object]:
    schema = str(clinics / "schema.toml")
    return {"source": "tabular", "path": str(clinics), "label": "outcome", "schema": schema, **more}


def test_files_name_clients_everywhere(cli: Callable[..., Said], clinics: Path, tmp_path: Path) -> None:
    budgets = {"clients": {"West": 4.0, "Nord": 1.0, "Süd": 2.0}}
    table = {"data": data(clinics), "rounds": 1, "privacy": {"epsilon": budgets, "delta": 1e-3}}
    result = sordino.run(table, out=tmp_path / "run")
    assert result.clients["name"].tolist() == [*NAMES]
    assert Agreement.read(result.folder).public.clients == NAMES
    assert [client.name for client in gather(result.folder).spent.by_client] == [*NAMES]
    assert all(row.majority is not None and 0.5 <= row.majority <= 1 for row in result.metrics)
    granted = {client.name: client.epsilon for client in spending(result.folder).by_client}
    assert granted == {"Nord": 1.0, "Süd": 2.0, "West": 4.0}
    spent = cli("privacy", "spent", result.folder, "--by-client").out
    assert all(f" {name} " in spent for name in NAMES)


def test_the_owner_sees_columns_and_what_is_odd_about_them(cli: Callable[..., Said], clinics: Path) -> None:
    words = [f"data.{key}={value}" for key, value in data(clinics).items()]
    found = json.loads(cli("data", "list", *words, "--json").out)
    age = next(column for column in found["columns"] if column["name"] == "age")
    assert (age["kind"], age["can_be"], age["holds"]) == ("number", "0 to 120", "20 to 59")
    assert next(c for c in found["columns"] if c["name"] == "status")["holds"].startswith("positive: 38")
    assert [file["rows"] for file in found["files"]] == [30, 40, 2]
    assert any("West (2)" in remark for remark in found["remarks"])
    parts = json.loads(cli("data", "partition", *words, "--json").out)
    assert [client["client"] for client in parts["clients"]] == [*NAMES]
    shown = " ".join(cli("data", "partition", *words).out.split())
    assert "1 of 3 clients hold 3 training examples or fewer: West" in shown


def test_a_rare_class_and_several_labels_at_once_are_remarked(tmp_path: Path) -> None:
    rows = [{"x": i, "y": "ill" if i == 7 else "a|b" if i % 9 == 0 else "ab"[i % 2]} for i in range(300)]
    said = " ".join(overview(str(saved(tmp_path, rows)), "y").remarks)
    assert "class ill has 1 of 300 rows (0.33%)" in said
    assert "the label a|b looks like several labels at once" in said
    assert overview(str(saved(tmp_path, rows[8:])), "x").remarks[-1].startswith("292 classes")


def test_a_clinic_without_a_row_to_train_on_is_told_to_those_who_hold_the_data(
    cli: Callable[..., Said], tmp_path: Path
) -> None:
    """Which row is held back is drawn, so one draw takes the only row of a clinic and another leaves it. With real
    noise how many rows it has stays in the private folder.
    """
    rows = [{**row, "clinic": "North" if i < 39 else "South"} for i, row in enumerate(table(40))]
    (tmp_path / "s.toml").write_text(DECLARED)
    told = {"source": "tabular", "path": str(saved(tmp_path, rows)), "label": "outcome", "group": "clinic"}
    read = {**told, "schema": str(tmp_path / "s.toml")}

    def held(seed: int) -> Population:
        return Population(config.validate({"data": read, "seed": seed}))

    said = "1 client takes no part, as no row is left to train on: South (1 held back)"
    lost = next(seed for seed in range(100) if held(seed).clients == ("North",))
    kept = next(seed for seed in range(100) if len(held(seed).clients) == 2)
    assert (held(lost).left_out, held(kept).left_out) == ((said,), ())
    (tmp_path / "s.toml").write_text(DECLARED.replace('["South", "North"]', '["South", "North", "West"]'))
    absent = "1 client takes no part, as no row is left to train on: West (0 held back)"
    assert held(kept).left_out == (absent,)
    (tmp_path / "s.toml").write_text(DECLARED)
    words = [f"data.{name}={value}" for name, value in read.items()]
    assert json.loads(cli("data", "partition", *words, f"seed={lost}", "--json").out)["remarks"] == [said]
    dry = cli("run", *words, f"seed={lost}", "algorithm=fedavg", "rounds=1", "--dry-run", "--json").out
    assert json.loads(dry)["remarks"] == [said]
    for noise, place in (("counter", ""), ("system", "private")):
        folder, privacy = tmp_path / noise, {"epsilon": 1.0, "delta": 1e-3, "noise": noise}
        asked = {"data": read, "seed": lost, "rounds": 1, "algorithm": {"name": "gaussian_gdp"}, "privacy": privacy}
        assert said in sordino.run(asked, out=folder).notes
        elsewhere = [path for path in folder.rglob("*") if path.is_file() and b"no part" in path.read_bytes()]
        assert elsewhere == [folder / place / "log.txt"]


def test_with_real_noise_a_group_has_a_name_only_if_somebody_said_it(tmp_path: Path) -> None:
    """A group may be a person. Control: in a simulation, and where the schema lists them, they have."""
    file = saved(tmp_path, table(40))
    undeclared = DECLARED.replace(', names = ["South", "North"]', "")
    found = {}
    for text in (DECLARED, undeclared):
        for noise in ("system", "counter"):
            (tmp_path / "s.toml").write_text(text)
            told = {"source": "tabular", "path": str(file), "label": "outcome", "group": "clinic"}
            table_ = {"data": told | {"schema": str(tmp_path / "s.toml")}, "privacy": {"noise": noise}}
            found[text, noise] = Population(config.validate(table_)).public.clients
    assert found == {
        (DECLARED, "system"): ("South", "North"),
        (DECLARED, "counter"): ("South", "North"),
        (undeclared, "system"): (),
        (undeclared, "counter"): ("North", "South"),
    }
    dealt = config.validate({"data": told, "partition": {"scheme": "iid", "clients": 2}})
    assert Population(dealt).public.clients == ()  # what is dealt out is nobody's


def test_budgets_take_names_and_numbers_that_cannot_be_mistaken() -> None:
    def granted(table: dict[str, float], names: tuple[str, ...] = NAMES) -> list[float]:
        return budget.personal({"clients": table}, 3, keys.root(1), names).tolist()

    by_name = {"Süd": 2.0, "Nord": 1.0, "West": 4.0}
    assert granted(by_name) == [1, 2, 4]
    numbered = ("2", "0", "ward 7")  # clinics that are called by numbers
    assert granted({"2": 1.0, "0": 2.0, "ward 7": 4.0}, numbered) == [1, 2, 4]
    mistakes = {
        "lists client 'Sud', which does not exist": ({**by_name, "Sud": 1.0}, NAMES),
        "lists client '1', which": ({"1": 2.0, "Nord": 1.0, "2": 4.0}, NAMES),  # a number is nobody's name there
        "lists client '1', which does not exist": ({"2": 1.0, "1": 2.0, "ward 7": 4.0}, numbered),
        "the first is West": ({"Süd": 2.0, "Nord": 1.0}, NAMES),
        "the budget of client Süd": ({**by_name, "Süd": 0.0}, NAMES),
    }
    for said, (table_, names) in mistakes.items():
        error = refused(lambda t=table_, n=names: granted(t, n))  # type: ignore[misc]
        assert isinstance(error, InvalidBudget)
        assert said in error.what
        assert "which does not exist" not in said or ", ".join(names) in error.why


def test_errors_name_a_client_and_names_are_one_for_each(tmp_path: Path) -> None:
    with pytest.raises(EmptyClient, match="client Süd has no training examples"):
        check_everybody_has_data([3, 0, 1], NAMES)
    agreed: dict[str, Any] = {"kind": "table", "shape": (2,), "classes": 2, "named": 2, "sizes": (3, 3)}
    assert PublicNumbers(**agreed, clients=("a", "b")).clients == ("a", "b")
    for wrong in (("a",), ("a", "a"), ("a", "b", "c")):
        with pytest.raises(ValueError, match="one name for each"):
            PublicNumbers(**agreed, clients=wrong)


def test_a_group_or_several_files_are_natural_clients_unless_somebody_says_otherwise() -> None:
    def scheme(**more: object) -> object:
        table_: dict[str, Any] = {"data": {"source": "tabular", "label": "y", "path": "a.csv", **more}}
        return config.validate(table_).partition["scheme"]

    assert scheme() == "dirichlet"
    natural: list[dict[str, object]] = [
        {"group": "clinic"}, {"path": "clinics"}, {"path": "c/*.csv"}, {"path": ["a.csv", "b.csv"]}
    ]  # fmt: skip
    assert [scheme(**more) for more in natural] == ["natural"] * 4
    asked = {"data": {"source": "tabular", "path": "clinics"}, "partition": {"scheme": "iid", "clients": 2}}
    assert config.validate(asked).partition["scheme"] == "iid"
    for source, settings in (("images", {"path": ["a", "b"]}), ("digits", {"path": "a.csv", "missing": "drop"})):
        error = refused(lambda s=source, g=settings: config.validate({"data": {"source": s, **g}}))  # type: ignore[misc]
        assert (error.code, "data.source=tabular" in error.fix) == ("setting-of-another-source", True)
