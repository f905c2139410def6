"""Rows that lack a value: refused, left out or filled, each decided from the row itself and what was declared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sordino import config
from sordino.data import tabular
from sordino.runs.population import Population
from tests.data.tables import DECLARED, Row, declared, refused, saved, table
from tests.data.test_neighbouring_tables import differing

FILLED = (
    DECLARED.replace("range = [0, 120] }", "range = [0, 120], missing = 30 }")
    .replace('levels = ["A", "B", "rest"], ', 'levels = ["A", "B", "rest"], missing = "B", ')
    .replace('kind = "boolean"', 'kind = "boolean", missing = true')
)
EMPTY: Row = {"age": "", "ward": "", "smokes": ""}


def held(
    path: Path, missing: str, text: str = FILLED, partition: dict[str, object] | None = None, **privacy: object
) -> Population:
    (path.parent / "s.toml").write_text(text)
    data = {"source": "tabular", "path": str(path), "label": "outcome", "group": "clinic", "missing": missing}
    data["schema"] = str(path.parent / "s.toml")
    divided = {} if partition is None else {"partition": partition}
    return Population(config.validate({"data": data, "privacy": {"noise": "system", **privacy}} | divided))


def test_a_gap_gets_what_was_declared_in_both_formats(tmp_path: Path) -> None:
    rows = [row | EMPTY if i in (3, 4) else row for i, row in enumerate(table())]
    told = [row | {"age": 30, "ward": "B", "smokes": "true"} if i in (3, 4) else row for i, row in enumerate(table())]
    typed = [{k: (float(v) if k == "age" else v) if v != "" else None for k, v in row.items()} for row in rows]
    pq.write_table(pa.Table.from_pylist(typed), tmp_path / "gaps.parquet")
    schema = declared(FILLED)
    files = saved(tmp_path, rows, "gaps.csv"), tmp_path / "gaps.parquet", saved(tmp_path, told, "told.csv")
    found = [tabular.load(file, "outcome", "clinic", schema=schema, missing="fill").fingerprint() for file in files]
    assert len(set(found)) == 1
    assert refused(lambda: tabular.load(files[0], "outcome", schema=schema)).code == "missing-values"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('x = { kind = "number", range = [0, 1], missing = 2 }', "is not a number in its range"),
        ('x = { kind = "number", range = [0, 1], missing = "0" }', "is not a number in its range"),
        ('x = { kind = "number", range = [0, 1], outside = "drop" }', "neither"),
        ('x = { kind = "levels", levels = ["a"], missing = "b" }', "not among its levels"),
        ('x = { kind = "boolean", missing = "perhaps" }', "neither true nor false"),
        ('y = { kind = "label", classes = ["a", "b"], missing = "a" }', "says nothing of kind 'label'"),
    ],
)
def test_what_a_gap_gets_must_fit_its_column(line: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        declared(f"[columns]\n{line}")


def test_a_value_beyond_its_range_is_refused_where_the_schema_says_so(tmp_path: Path) -> None:
    rows = [row | {"age": 140} if i == 5 else row for i, row in enumerate(table())]
    strict = declared(DECLARED.replace("range = [0, 120] }", 'range = [0, 120], outside = "refuse" }'))
    error = refused(lambda: tabular.load(saved(tmp_path, rows), "outcome", schema=strict))
    assert "age = 140.0 is not in the declared range [0, 120] (row 6 after" in error.what


def test_filling_is_decided_row_by_row(tmp_path: Path) -> None:
    """Neighbours under `replace`: a row that gets gaps changes itself alone."""
    first = [row | {"note": i} for i, row in enumerate(table())]
    second = [row | EMPTY if i == 7 else row for i, row in enumerate(first)]
    files = saved(tmp_path, first, "first.csv"), saved(tmp_path, second, "second.csv")
    one, two = (held(file, "fill") for file in files)
    assert differing(one, two, 7) == set()
    assert list(one.sizes) == list(two.sizes)
    assert one.disclosures.drawn_from_labels == (*two.disclosures.drawn_from_labels,)
    assert tabular.DROPPED not in one.disclosures.drawn_from_labels


def test_a_row_that_is_left_out_moves_no_other_and_changes_how_many_there_are(tmp_path: Path) -> None:
    """So with real noise it is refused, and in a simulation the receipt says it."""
    first = [row | {"note": i} for i, row in enumerate(table())]
    kept = int(tabular.apart([40], None, 0.2, 0)[0][5])
    second = [row | EMPTY if i == kept else row for i, row in enumerate(first)]
    files = saved(tmp_path, first, "first.csv"), saved(tmp_path, second, "second.csv")
    one, two = (held(file, "drop", public_sizes=False, noise="counter") for file in files)
    assert differing(one, two, kept) <= {"owners"}  # which lists places, of which one is gone

    def places(of: Population) -> list[set[float]]:
        return [set(of.dataset.train.x[rows, 0].tolist()) - {float(kept)} for rows in of.shares[0]]

    assert places(one) == places(two)
    assert sum(one.sizes) == sum(two.sizes) + 1  # what a told size would tell
    assert list(one.public.sizes) == list(two.public.sizes) == [1, 1]

    for more in ({}, {"public_sizes": False}):
        assert refused(lambda m=more: held(files[1], "drop", **m).dataset).code == "rows-dropped"  # type: ignore[misc]
    simulated = held(files[1], "drop", noise="counter")
    assert tabular.DROPPED in simulated.public.assumed
    # control: the same file without the row, where places shift, tells other rows from each other
    rest = saved(tmp_path, [row for i, row in enumerate(first) if i != kept], "rest.csv")
    assert places(held(rest, "drop", public_sizes=False, noise="counter")) != places(one)
    assert not np.array_equal(simulated.sizes, one.sizes)


def test_a_client_whose_rows_all_lack_a_value_would_be_missed(tmp_path: Path) -> None:
    """Neighbours that differ in one client: with its rows left out the agreement, which may be shown, has one client
    less. So no run with real noise leaves out rows, whoever is protected."""
    clinic = table()[0]["clinic"]
    first = table()
    second = [row | EMPTY if row["clinic"] == clinic else row for row in first]
    files = saved(tmp_path, first, "first.csv"), saved(tmp_path, second, "second.csv")
    natural = {"partition": {"scheme": "natural"}, "public_sizes": False}
    told = [len(held(file, "drop", noise="counter", **natural).public.sizes) for file in files]
    assert told[0] == told[1] + 1  # what a broken twin, which lets it pass, would tell
    for file in files:
        assert refused(lambda at=file: held(at, "drop", **natural).public).code == "rows-dropped"  # type: ignore[misc]
    assert len(held(files[1], "fill", **natural).public.sizes) == told[0]
