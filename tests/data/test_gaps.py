"""Rows that lack a value: refused, left out or filled, each decided from the row itself and what was declared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sordino import config
from sordino.data import tabular
from sordino.data.frames import as_text
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
    assert len(held(files[1], "fill", noise="counter", **natural).public.sizes) == told[0]


CODED = """
[columns]
code = { kind = "levels", levels = ["10000000001", "10000000002", "rest"], other = "rest", missing = "rest" }
sign = { kind = "levels", levels = ["0", "1", "-1"], missing = "0" }
smokes = { kind = "boolean", missing = false }
visit = { kind = "key" }
outcome = { kind = "label", classes = ["0", "1"] }
"""


def coded(gap: bool) -> dict[str, list[int | None]]:
    """Codes of 40 rows, of which the fourth may lack all."""
    whole = {"code": [10_000_000_001 + i % 2 for i in range(40)], "sign": [i % 2 for i in range(40)]}
    whole |= {"smokes": [i // 2 % 2 for i in range(40)]}
    held = {name: [None if gap and i == 3 else cell for i, cell in enumerate(of)] for name, of in whole.items()}
    return held | {"visit": [10_000_000_007 * i for i in range(40)], "outcome": [i % 2 for i in range(40)]}


def as_frame(rows: dict[str, list[int | None]], folder: Path) -> object:
    """With a gap, a column is one of floats, as in pandas."""
    floats = {name: pa.array(of, pa.float64() if None in of else pa.int64()) for name, of in rows.items()}
    return pa.table(floats | {"visit": pa.array(rows["visit"], pa.float64() if None in rows["code"] else pa.int64())})


def as_pandas_writes(rows: dict[str, list[int | None]], folder: Path) -> Path:
    """With a gap, every other cell of the column has a point."""
    gaps = {name for name, of in rows.items() if None in of}
    told = [
        {name: "" if of[i] is None else f"{of[i]}.0" if name in gaps else of[i] for name, of in rows.items()}
        for i in range(40)
    ]
    return saved(folder, told, f"{len(gaps)}.csv")


def as_two_files(rows: dict[str, list[int | None]], folder: Path) -> list[str]:
    """Of two clinics; the gap makes floats of the codes of one."""
    files = [folder / f"{name}-{None in rows['code']}.parquet" for name in ("north", "south")]
    frame = as_frame(rows, folder)
    assert isinstance(frame, pa.Table)
    pq.write_table(frame.slice(0, 20), files[0])
    rest = {name: pa.array(of[20:], pa.int64()) for name, of in rows.items()}
    pq.write_table(pa.table(rest), files[1])
    return list(map(str, files))


@pytest.mark.parametrize("written", [as_frame, as_pandas_writes, as_two_files])
def test_a_gap_in_one_row_changes_how_no_other_is_read(
    written: Callable[[dict[str, list[int | None]], Path], Any], tmp_path: Path
) -> None:
    """As it was, all codes of a column with one gap became the level `other`, and all keys other keys."""
    found = []
    for gap in (False, True):
        source, schema = written(coded(gap), tmp_path), declared(CODED)
        data = tabular.load(source, "outcome", key="visit", schema=schema, missing="fill")
        assert data.misfit is None
        found.append([[*part.x.tolist(), part.y.tolist()] for part in (data.train, data.test)])
    (trained, tested), (gap_trained, gap_tested) = found
    assert len(trained) == len(gap_trained)
    differing = [pair for pair in zip(trained + tested, gap_trained + gap_tested, strict=True) if pair[0] != pair[1]]
    assert differing == [([0, 1, 0, 0, 1, 0, 1], [0, 0, 1, 1, 0, 0, 0])]


def test_codes_that_floats_have_no_digits_for_are_refused() -> None:
    codes = [2.0**53 + 2 * i for i in range(4)]
    frame = pa.table({"code": pa.array(codes, pa.float64()), "outcome": [0, 1, 0, 1]})
    schema = declared(
        '[columns]\ncode = { kind = "levels", levels = ["1"] }\noutcome = { kind = "label", classes = ["0", "1"] }'
    )
    assert refused(lambda: tabular.load(frame, "outcome", schema=schema)).code == "unsupported-column-type"
    assert as_text(pa.array([2.0**53 - 1, -0.0, 1.5, None, float("inf")])).to_pylist() == [
        "9007199254740991", "0", "1.5", None, "inf"
    ]  # fmt: skip


def test_a_byte_in_an_ignored_column_changes_how_no_number_is_read(tmp_path: Path) -> None:
    """As it was, all columns stayed bytes, and decimal commas commas."""
    schema = declared(
        '[columns]\nage = { kind = "number", range = [0, 120] }\nnote = { kind = "ignored" }\n'
        'outcome = { kind = "label", classes = ["0", "1"] }'
    )
    text = "age;note;outcome\n" + "".join(f"{20 + i},5;x;{i % 2}\n" for i in range(40))
    found = []
    for byte in (b"x", b"\xff"):
        (tmp_path / "ages.csv").write_bytes(text.encode().replace(b"23,5;x", b"23,5;" + byte))
        found.append(tabular.load(tmp_path / "ages.csv", "outcome", schema=schema).fingerprint())
    assert found[0] == found[1]
