"""What a table teaches before the noise: with a schema nothing.

Two neighbouring tables give models of one shape, one scale and one split; twins without a schema do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.data import inferred_columns, schema, tabular
from tests.data.tables import DECLARED, Row, declared, refused, saved, table
from tests.helpers.command_line import Said


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_are_what_was_declared(suffix: str, tmp_path: Path) -> None:
    rows = table()
    rows[0] |= {"age": -40, "ward": "C", "status": "unheard of"}
    rows[1] |= {"age": 999}
    file = saved(tmp_path, rows)
    if suffix == ".parquet":
        typed = [row | {"smokes": row["smokes"] == "true", "age": float(row["age"])} for row in rows]
        file = tmp_path / "visits.parquet"
        pq.write_table(pa.Table.from_pylist([dict(reversed(row.items())) for row in typed]), file)
    data = tabular.load(file, "outcome", "clinic", schema=declared())
    assert (data.shape, data.classes, data.class_names) == ((8,), 3, ("well", "ill", "worse"))
    x = np.zeros((40, 8), np.float32)
    y, group = np.zeros(40, int), np.zeros(40, int)
    for split in (data.train, data.test):
        at = split.x[:, 0].astype(int)
        x[at], y[at], group[at] = split.x, split.y, split.group
    assert x[:3, 1].tolist() == [0, 120, 22]  # beyond the range: its nearer end
    assert x[:2, 2:5].tolist() == [[0, 0, 1], [0, 1, 0]]  # other = "rest"
    assert x[:3, 5:7].tolist() == [[0, 0], [1, 0], [0, 1]]  # no other: nothing
    assert x[:4, 7].tolist() == [1, 1, 1, 0]
    assert y[:4].tolist() == [0, 0, 1, 1]
    assert group[:2].tolist() == [1, 0]  # South comes first, as declared
    scaled = (x - np.array(data.mean)) / np.array(data.std)
    assert scaled[:, [0, 1, 7]].min() == -1
    assert scaled[:, [1, 7]].max() == 1
    assert np.array_equal(scaled[:, 2:7], x[:, 2:7])


def test_both_formats_are_the_same_data(tmp_path: Path) -> None:
    rows = table()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "visits.parquet")
    found = [
        tabular.load(f, "outcome", schema=declared()) for f in (saved(tmp_path, rows), tmp_path / "visits.parquet")
    ]
    assert found[0].fingerprint() == found[1].fingerprint()
    assert found[0].train.group is None  # a group that the experiment does not name is neither feature nor client


def test_a_declaration_is_part_of_the_fingerprint_its_wording_is_not(tmp_path: Path) -> None:
    file = saved(tmp_path, table())

    def fingerprint(text: str) -> str:
        return tabular.load(file, "outcome", schema=declared(text)).fingerprint()

    same = "# a remark\ndraft = true\n" + DECLARED.replace("range = [0, 120]", "range = [0.0, 120]")
    assert fingerprint(DECLARED) == fingerprint(same) != fingerprint(DECLARED.replace("120", "121"))


BAD_SCHEMAS = {
    'x = { kind = "words" }': "must be one of number, levels",
    "x = 3": "must be one of number, levels",
    'x = { kind = "number" }': "range = None is not",
    'x = { kind = "number", range = [3, 3] }': "the first is smaller",
    'x = { kind = "number", range = [0, inf] }': "two numbers",
    'x = { kind = "number", range = [false, true] }': "two numbers",
    'x = { kind = "number", range = [0, 1], levels = ["a"] }': "'levels' says nothing of kind 'number'",
    'x = { kind = "levels", levels = ["a", "a"] }': "different words",
    'x = { kind = "levels", levels = [] }': "different words",
    'x = { kind = "levels", levels = [0.5] }': "different words",
    'x = { kind = "levels", levels = ["a"], other = "b" }': "other = 'b' is not among its levels",
    'x = { kind = "boolean" }\ny = { kind = "label", classes = ["a"] }': "list of 2 or more",
    'x = { kind = "boolean" }\ny = { kind = "key" }\nz = { kind = "key" }': "only one column can be the key",
    'y = { kind = "label", classes = ["a", "b"] }': "no column is a feature",
    "": "no table [columns]",
}


@pytest.mark.parametrize("text", BAD_SCHEMAS)
def test_what_is_no_schema_is_refused_by_what_is_wrong(text: str, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(f"[columns]\n{text}\n")
    error = refused(lambda: schema.read(tmp_path / "s.toml"))
    assert error.code == "bad-schema"
    assert BAD_SCHEMAS[text] in error.why


def test_other_files_are_no_schemas(tmp_path: Path) -> None:
    for text, said in (
        ("[columns", "Expected"),
        ("rounds = 3", "no key 'rounds'"),
        ("draft = 1\n[columns]\na={kind='key'}", "draft = 1"),
    ):
        (tmp_path / "s.toml").write_text(text)
        error = refused(lambda: schema.read(tmp_path / "s.toml"))
        assert (error.code, said in error.why) == ("bad-schema", True)
    assert refused(lambda: schema.read(tmp_path / "none.toml")).code == "missing-schema"
    assert refused(lambda: schema.read(tmp_path)).code == "bad-schema"


ROWS_THAT_DO_NOT_FIT: list[tuple[Row, str]] = [
    ({"outcome": "dead"}, "outcome = 'dead' is not a class that the schema declares: well, ill, worse (row 5 after"),
    ({"clinic": "Elsewhere"}, "clinic = 'Elsewhere' is not a group"),
    ({"age": "unknown"}, "age = 'unknown' is not a number (row 5 after"),
    ({"age": "inf"}, "age = 'inf' is not finite (row 5 after"),
    ({"smokes": "perhaps"}, "smokes = 'perhaps' is neither true"),
]


@pytest.mark.parametrize(("change", "said"), ROWS_THAT_DO_NOT_FIT)
def test_a_row_that_does_not_fit_is_refused_by_name(change: Row, said: str, tmp_path: Path) -> None:
    rows = table()
    rows[4] |= change
    error = refused(lambda: tabular.load(saved(tmp_path, rows), "outcome", "clinic", schema=declared()))
    assert error.code == "row-does-not-fit"
    assert said in error.what


COLUMNS_THAT_DO_NOT_FIT: dict[str, tuple[Row, Row, str]] = {  # code: (of the table, of load, what is said)
    "undeclared-column": ({"name": "Ann"}, {}, 'name = { kind = "ignored" }'),
    "missing-values": ({"ward": ""}, {}, "column ward has no value (row 1 after"),
    "schema-disagrees": ({}, {"label": "ward"}, "kind 'levels'"),
    "one-column-two-roles": ({}, {"group": "outcome"}, "both the label and the group"),
}


@pytest.mark.parametrize("code", COLUMNS_THAT_DO_NOT_FIT)
def test_a_column_that_does_not_fit_is_refused(code: str, tmp_path: Path) -> None:
    changes, more, said = COLUMNS_THAT_DO_NOT_FIT[code]
    file = saved(tmp_path, table(**changes))
    error = refused(lambda: tabular.load(file, **{"label": "outcome", "schema": declared(), **more}))
    assert error.code == code
    assert said in str(error)


def test_a_declared_column_that_is_missing_is_refused(tmp_path: Path) -> None:
    rows = [{name: value for name, value in row.items() if name != "note"} for row in table()]
    error = refused(lambda: tabular.load(saved(tmp_path, rows), "outcome", schema=declared()))
    assert (error.code, "lacks note" in error.what) == ("missing-declared-column", True)
    dated = pa.table({"x": [date(2020, 1, 1)] * 9, "y": ["a", "b", "c"] * 3})
    pq.write_table(dated, tmp_path / "dates.parquet")
    said = declared(
        '[columns]\nx = { kind = "number", range = [0, 1] }\ny = { kind = "label", classes = ["a", "b", "c"] }'
    )
    error = refused(lambda: tabular.load(tmp_path / "dates.parquet", "y", schema=said))
    assert error.code == "unsupported-column-type"


def test_label_and_group_are_two_columns_without_a_schema_too(tmp_path: Path) -> None:
    file = saved(tmp_path, table())
    for more in ({"group": "outcome"}, {"key": "outcome"}):
        assert refused(partial(tabular.load, file, "outcome", **more)).code == "one-column-two-roles"


# the draft ------------------------------------------------------------------------------------------------------------
def test_a_draft_fits_its_table_and_says_that_it_is_one(cli: Callable[..., Said], tmp_path: Path) -> None:
    odd = {'the "odd" column': "a'b\"c\\d", "größe": 1.5, "code": 7}
    rows = [row | odd | {"größe": 1.5 + i / 7} for i, row in enumerate(table())]
    file = saved(tmp_path, rows)
    words = ("data", "schema", file, "--label", "outcome", "--group", "clinic")
    printed = cli(*words).out
    found = declared(printed)
    assert found.draft
    assert "40 rows of 11 columns" in printed
    kinds = {name: said.kind for name, said in found.columns.items()}
    assert kinds == {
        "place": "number", "age": "number", "ward": "levels", "status": "levels", "smokes": "boolean", "note": "levels",
        "clinic": "group", "outcome": "label", 'the "odd" column': "levels", "größe": "number", "code": "number",
    }  # fmt: skip
    assert found.columns["outcome"].words == ("ill", "well")
    data = tabular.load(file, "outcome", "clinic", schema=found)
    plain = tabular.load(file, "outcome", "clinic")
    assert np.array_equal(data.train.x, plain.train.x)
    assert np.array_equal(data.test.y, plain.test.y)
    ends = {(said.low, said.high) for said in plain.columns.values() if said.kind == "number"}
    assert ends == {(-math.inf, math.inf)}  # the lowest and the highest row are told to nobody

    out = tmp_path / "visits.schema.toml"
    said = cli(*words, "--out", out)
    assert (said.code, out.read_text(encoding="utf-8")) == (0, printed)
    again = cli(*words, "--out", out)
    assert (again.code, "file-exists" in again.err) == (6, True)
    assert out.read_text(encoding="utf-8") == printed
    assert cli(*words, "--out", tmp_path / "no" / "folder.toml").code == 6
    assert "did you mean 'outcome'" in cli("data", "schema", file, "--label", "outcom").err


def test_identifiers_dates_and_gaps_are_left_to_a_person(tmp_path: Path) -> None:
    rows = [
        {
            "id": f"p{i}",
            "day": f"2020-01-{1 + i % 28:02}",
            "gap": "" if i % 2 else i,
            "key": i,
            "y": i % 2,
            "flag": i % 2,
        }
        for i in range(80)
    ]
    found = declared(inferred_columns.draft(saved(tmp_path, rows), "y", key="key"))
    assert {name: said.kind for name, said in found.columns.items()} == {
        "id": "ignored", "day": "ignored", "gap": "number", "key": "key", "y": "label", "flag": "boolean",
    }  # fmt: skip
    nothing = saved(tmp_path, [{"y": i % 2} for i in range(9)], "n.csv")
    assert refused(lambda: inferred_columns.draft(nothing, "y")).code == "no-features"


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_a_drafted_range_holds_the_rows_and_is_round(low: float, width: float) -> None:
    high = low + width
    first, last = inferred_columns.outwards(low, high)
    assert first <= low <= high <= last
    assert last - first <= 3.001 * max(width, 2)  # no wider than a step at each end
    assert first < last
