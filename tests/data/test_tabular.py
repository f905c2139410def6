"""Tables come back raw with the statistics of their training rows, or are refused each for what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from sordino.data import tabular
from sordino.data.dataset import apart
from sordino.partition import Natural
from tests.data.files import refused

# ---- tables
TABLE: dict[str, list[Any]] = {
    "age": [30, 40, 50, 60] * 5,
    "income": [1.5, 2.5, 3.5, 4.5] * 5,
    "colour": ["red", "blue", "red", "green"] * 5,
    "member": [True, False, False, True] * 5,
    "site": ["oslo", "bergen"] * 10,
    "outcome": ["yes", "no"] * 10,
}


FORMATS: dict[str, Callable[[pa.Table, Path], None]] = {".csv": csv.write_csv, ".parquet": pq.write_table}


def save(folder: Path, columns: dict[str, Any], suffix: str = ".parquet") -> Path:
    FORMATS[suffix](pa.table(columns), folder / f"people{suffix}")
    return folder / f"people{suffix}"


@pytest.mark.parametrize("suffix", FORMATS)
def test_tables_come_back_raw_with_training_statistics(suffix: str, tmp_path: Path) -> None:
    data = tabular.load(save(tmp_path, TABLE, suffix), "outcome", group="site")
    assert (data.name, data.kind, data.classes, data.shape) == ("people", "table", 2, (6,))
    assert [len(data.train.y), len(data.test.y)] == [len(rows) for rows in apart([20], None, 0.2, 0)]
    assert data.train.x.dtype == np.float32
    for x, y, group in (data.train, data.test):
        assert group is not None
        first = x[:, 0].astype(int) // 10 - 3  # age tells which of the four kinds of rows it was
        assert np.array_equal(x[:, 1], 1.5 + first)
        levels = np.array([[0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 0]])  # blue, green, red
        assert np.array_equal(x[:, 2:5], levels[first])
        assert np.array_equal(x[:, 5], np.isin(first, [0, 3]))
        assert np.array_equal(y, np.array([1, 0])[first % 2])  # no, yes
        assert np.array_equal(group, np.array([1, 0])[first % 2])  # bergen, oslo
    assert data.mean[:2] == pytest.approx(data.train.x[:, :2].mean(0))
    assert data.std[:2] == pytest.approx(data.train.x[:, :2].std(0), rel=1e-6)
    assert (data.mean[2:5], data.std[2:5]) == ((0, 0, 0), (1, 1, 1))
    assert len(Natural().assign(data.train.y, data.train.group, np.random.default_rng())) == 2


def test_whole_number_labels_and_dictionaries_and_constants(tmp_path: Path) -> None:
    columns = {"kind": pa.array(["a", "b"] * 10).dictionary_encode(), "flat": [3] * 20, "label": [7, -2] * 10}
    data = tabular.load(save(tmp_path, columns), "label")
    assert np.array_equal(data.train.y, data.train.x[:, 0])  # a is 7, which comes second, b is -2
    assert (data.mean[2], data.std[2]) == (3.0, 1.0)
    assert data.train.group is None


BAD_TABLES: dict[str, tuple[dict[str, Any], str, str]] = {  # code: (columns, label, what the message must say)
    "unknown-column": (TABLE, "outcom", "did you mean 'outcome'?"),
    "missing-values": (
        {**TABLE, "age": [None, 40, None, 60] * 5},
        "outcome",
        "column age has no value (row 1 after the header); so it is in 10 rows",
    ),
    "one-class": ({**TABLE, "outcome": ["yes"] * 20}, "outcome", "the same outcome"),
    "no-features": ({"outcome": ["yes", "no"] * 10}, "outcome", "no column is left"),
    "bad-label-type": (TABLE, "income", "label column income has type double"),
    "too-many-levels": (
        {"id": [f"p{i}" for i in range(65)], "y": [0, 1, 2, 3, 4] * 13},
        "y",
        "column id has 65 different strings",
    ),
    "empty-table": ({"a": pa.array([], pa.int64()), "y": pa.array([], pa.int64())}, "y", "holds no rows"),
    "unsupported-column-type": ({"a": [[1], [2]] * 5, "y": [0, 1] * 5}, "y", "column a has type list"),
}


@pytest.mark.parametrize("code", BAD_TABLES)
def test_bad_tables_are_refused_each_with_its_own_code(code: str, tmp_path: Path) -> None:
    columns, label, said = BAD_TABLES[code]
    error = refused(lambda: tabular.load(save(tmp_path, columns), label))
    assert error.code == code
    assert said in str(error)


@pytest.mark.parametrize("role", ["key", "group"])
@pytest.mark.parametrize("other", [" A17", "A17 ", "A\u00a017", "\uff2117", "\ufeffA17", "A\u200b17", "17.0", "17."])
def test_one_person_in_two_spellings_is_refused(role: str, other: str, tmp_path: Path) -> None:
    first = "17" if "." in other else "A 17" if "\u00a0" in other else "A17"
    columns = {"who": [first, other, "B2", "C3"] * 5, "a": np.arange(20.0), "y": [0, 1] * 10}
    error = refused(lambda: tabular.load(save(tmp_path, columns), "y", **{role: "who"}))
    assert error.code == "name-in-two-spellings"
    assert repr(first) in str(error)


def test_names_that_look_different_are_different_persons(tmp_path: Path) -> None:
    columns = {"who": ["A17", "a17", "A-17", "A 17"] * 5, "a": np.arange(20.0), "y": [0, 1] * 10}
    assert len(tabular.load(save(tmp_path, columns), "y", group="who").groups) == 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_must_be_finite(bad: float, tmp_path: Path) -> None:
    file = save(tmp_path, {"a": [1.0, bad, 2.0, 3.0] * 5, "y": [0, 1] * 10})
    assert "(row 2 after the header)" in str(refused(lambda: tabular.load(file, "y")))


@pytest.mark.parametrize("column", ["age", "colour", "outcome", "site"])
def test_an_empty_cell_of_a_csv_file_is_a_missing_value(column: str, tmp_path: Path) -> None:
    rows = [",".join(TABLE), *(",".join(map(str, row)) for row in zip(*TABLE.values(), strict=True))]
    cells = rows[4].split(",")
    cells[list(TABLE).index(column)] = ""
    file = tmp_path / "people.csv"
    file.write_text("\n".join([*rows[:4], ",".join(cells), *rows[5:]]))
    error = refused(lambda: tabular.load(file, "outcome", group="site"))
    assert (error.code, f"column {column} " in str(error)) == ("missing-values", True)


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    assert refused(lambda: tabular.load(tmp_path / "a.csv", "y")).code == "missing-file"
    assert refused(lambda: tabular.load(tmp_path / "a.xlsx", "y")).code == "unknown-table-format"
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no")
    assert refused(lambda: tabular.load(tmp_path / "b.parquet", "y")).code == "corrupt-table"
    (tmp_path / "c.csv").write_text("a,y\n1,2\n1,2,3\n")
    assert refused(lambda: tabular.load(tmp_path / "c.csv", "y")).code == "corrupt-table"
    (tmp_path / "d.csv").write_text("a,a,y\n1,2,3\n")
    assert refused(lambda: tabular.load(tmp_path / "d.csv", "y")).code == "repeated-column-name"
