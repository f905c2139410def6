"""Files of tables: which ones a path names, how they are written, and what is said of each mistake."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sordino.data import tabular
from sordino.data.dataset import Dataset
from sordino.data.label_kinds import Numbers
from sordino.data.table_files import Dialect, GivenDialect, found_files, read
from sordino.data.tabular import overview
from sordino.partition import Natural
from tests.data.tables import declared, refused, saved

ROWS = [(150.5 + i, i % 90, "ja" if i % 3 else "nein", "krank" if i % 2 else "gesund") for i in range(40)]
SCHEMA = declared(
    """
[columns]
"Größe" = { kind = "number", range = [100, 250] }
age = { kind = "number", range = [0, 120] }
smokes = { kind = "levels", levels = ["ja", "nein"] }
outcome = { kind = "label", classes = ["gesund", "krank"] }
"""
)


def text(separator: str = ",", decimal: str = ".", rows: Any = ROWS) -> str:
    lines = [["Größe", "age", "smokes", "outcome"], *([str(cell) for cell in row] for row in rows)]
    return "\n".join(separator.join(line[:1] + line[1:]) for line in lines).replace(".", decimal) + "\n"


WRITTEN: dict[str, tuple[str, bytes, Dialect]] = {
    "plain": ("a.csv", text().encode(), Dialect()),
    "german": ("a.csv", text(";", ",").encode("cp1252"), Dialect(";", ",", "cp1252")),
    "tabs": ("a.tsv", text("\t").encode(), Dialect("\t")),
    "bars": ("a.csv", text("|").encode(), Dialect("|")),
    "marked": ("a.csv", text().encode("utf-8-sig"), Dialect()),
    "wide": ("a.csv", text("\t").encode("utf-16"), Dialect("\t", ".", "utf-16")),
    "packed": ("a.csv.gz", gzip.compress(text(";", ",").encode()), Dialect(";", ",")),
}


@pytest.mark.parametrize("how", WRITTEN)
def test_every_way_of_writing_is_the_same_data(how: str, tmp_path: Path) -> None:
    name, content, dialect = WRITTEN[how]
    (tmp_path / name).write_bytes(content)
    (tmp_path / "plain.csv").write_text(text(), encoding="utf-8")
    assert read(tmp_path / name).files[0].dialect == dialect
    for schema in (None, SCHEMA):
        one, other = (tabular.load(tmp_path / file, "outcome", schema=schema) for file in (name, "plain.csv"))
        assert one.fingerprint() == other.fingerprint()
    assert Dialect(";", ",", "cp1252").__str__() == "separator semicolon, decimal comma, cp1252"


def test_the_first_line_alone_decides_how_a_file_is_read(tmp_path: Path) -> None:
    """A row with other bytes, other separators or other numbers changes nothing for the rest. Control: the header."""
    head, *rows = text().splitlines()
    for odd in ("1,5;1;1;1;1", "Größe;\t|"):
        (tmp_path / "a.csv").write_text("\n".join([head, f'"{odd}",1,ja,krank', *rows]), encoding="utf-8")
        assert read(tmp_path / "a.csv").files[0].dialect == Dialect()
    assert GivenDialect().dialect(Path("a.csv"), b'"a;b;c;d",e') == Dialect()  # what stands in quotes separates nothing
    assert GivenDialect().dialect(Path("a.csv"), b"a;b") == Dialect(";", ",")
    assert GivenDialect(decimal=".", encoding="latin-1").dialect(Path("a.csv"), b"a;b") == Dialect(";", ".", "latin-1")


MISTAKES: dict[str, tuple[str, bytes, dict[str, Any], str, str]] = {  # file, its bytes, settings, code, what is said
    "one word among numbers": (
        "a.csv", text(rows=[*ROWS, (1.5, "unknown", "ja", "krank")]).encode(), {},
        "row-does-not-fit", "a.csv: age = 'unknown' is not a number, as most cells of its column are (row 41 after",
    ),
    "commas among points": (
        "a.csv", text(";", ",").encode(), {"decimal": "."},
        "row-does-not-fit", 'Größe = \'150,5\' is not a number with the decimal mark of this file (row 1 after the header)',
    ),
    "points among commas": (
        "a.csv", text(";").encode(), {}, "row-does-not-fit", 'set data.decimal = "."',
    ),
    "points among commas, declared": (
        "a.csv", text(";").encode(), {"schema": SCHEMA}, "wrong-decimal", "Größe = '150.5' has a point",
    ),
    "commas among points, declared": (
        "a.csv", text(";", ",").encode(), {"schema": SCHEMA, "decimal": "."}, "row-does-not-fit", 'data.decimal = ","',
    ),
    "another separator": (
        "a.csv", text(";").encode(), {"separator": ","}, "unknown-column", "read with separator comma",
    ),
    "another separator, declared": (
        "a.csv", text(";").encode(), {"separator": ",", "schema": SCHEMA}, "missing-declared-column", "data.separator",
    ),
    "letters that only a row shows": (
        "a.csv", text().replace("Größe", "size").replace("ja", "jä").encode("cp1252"), {},
        "wrong-encoding", "a.csv: smokes = 'jä' is not written in utf-8 (row 2 after the header)",
    ),
    "the same, declared": (
        "a.csv", text().replace("ja", "jä").encode("cp1252"), {"schema": SCHEMA, "encoding": "utf-8"},
        "corrupt-table", "data.encoding",
    ),
    "bytes that are no letters": ("a.csv", "a,y\n\x81,1\n".encode("latin-1"), {"encoding": "cp1252"}, "corrupt-table", "data.encoding"),
    "more cells than names": ("a.csv", b"a,y\n1,2\n1,2,3\n", {}, "corrupt-table", "read with separator comma"),
    "no gzip": ("a.csv.gz", b"a,y\n", {}, "corrupt-table", "cannot be read"),
    "a number to predict": (
        "a.csv", b"x,outcome\n" + b"".join(b"%d,%d.5\n" % (i, i) for i in range(9)), {}, "bad-label-type", "regression",
    ),
    "a whole number to predict": (
        "a.csv", b"x,outcome\n" + b"".join(b"%d,%d\n" % (i, i) for i in range(121)), {},
        "too-many-classes", "the label outcome has 121 different values, more than 64",
    ),
    "a label that is the group": ("a.csv", text().encode(), {"group": "outcome"}, "one-column-two-roles", "both the label and the group"),
    "a gap": (
        "a.csv", text(rows=[*ROWS, (1.5, "", "ja", "krank")]).encode(), {},
        "missing-values", "a.csv: column age has no value (row 41 after the header)",
    ),
    "a gap to be filled with what nobody said": (
        "a.csv", text(rows=[*ROWS, (1.5, "", "ja", "krank")]).encode(), {"missing": "fill", "schema": SCHEMA},
        "missing-values", "declares no value for gaps",
    ),
    "a gap to be filled with what rows say": ("a.csv", text().encode(), {"missing": "fill"}, "fill-without-schema", "would be learned"),
    "nothing but gaps": ("a.csv", b"x,outcome\n,1\n,2\n", {"missing": "drop"}, "every-row-dropped", "no row has a value"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_named_with_what_to_do(mistake: str, tmp_path: Path) -> None:
    name, content, settings, code, said = MISTAKES[mistake]
    (tmp_path / name).write_bytes(content)
    error = refused(lambda: tabular.load(tmp_path / name, "outcome", **settings))
    assert error.code == code
    assert said in str(error)
    assert error.fix


# several files --------------------------------------------------------------------------------------------------------
def clinics(folder: Path) -> Path:
    """Three clinics in three formats; 40 rows each, whose ages tell where they are from."""
    folder.mkdir()
    for at, (name, separator, decimal) in enumerate((("Ost.tsv", "\t", "."), ("Süd.csv", ";", ","))):
        rows = [(size, age + 100 * at, *rest) for size, age, *rest in ROWS]
        (folder / name).write_text(text(separator, decimal, rows), encoding="cp1252")
    size, age, smokes, outcome = zip(*ROWS, strict=True)
    table = pa.table({"Größe": size, "age": [a + 200 for a in age], "smokes": smokes, "outcome": outcome})
    pq.write_table(table, folder / "Nord.parquet")
    (folder / "readme.txt").write_text("no table")
    return folder


def owners(data: Dataset) -> set[tuple[str, int]]:
    """(name of the client, hundreds of the ages of its rows)"""
    assert data.train.group is not None
    return {(data.groups[k], int(age) // 100) for k, age in zip(data.train.group, data.train.x[:, 1], strict=True)}


def test_a_folder_a_pattern_and_a_list_name_a_client_for_each_file(tmp_path: Path) -> None:
    folder = clinics(tmp_path / "clinics")
    names = [folder / name for name in ("Nord.parquet", "Ost.tsv", "Süd.csv")]
    wide = declared(SCHEMA_OF_ALL)
    for path in (folder, str(folder / "*"), [str(name) for name in names], [str(folder)]):
        assert found_files(path) == tuple(names)
        for schema in (None, wide):
            data = tabular.load(path, "outcome", schema=schema)
            assert data.groups == ("Nord", "Ost", "Süd")
            assert data.groups_declared
            assert owners(data) == {("Nord", 2), ("Ost", 0), ("Süd", 1)}
            assert data.train.group is not None
            shares = Natural().assign(data.train.y, data.train.group, np.random.default_rng())
            assert list(shares.sizes) == np.bincount(data.train.group).tolist()
    assert found_files([str(names[2]), str(names[0])]) == (names[2], names[0])  # a list keeps its order


SCHEMA_OF_ALL = """
[columns]
"Größe" = { kind = "number", range = [100, 250] }
age = { kind = "number", range = [0, 400] }
smokes = { kind = "levels", levels = ["ja", "nein"] }
outcome = { kind = "label", classes = ["gesund", "krank"] }
"""


def test_a_row_that_comes_in_one_file_moves_nobody_in_another(tmp_path: Path) -> None:
    """Control: in one file it moves those behind it."""
    folder = clinics(tmp_path / "clinics")

    def tested(data: Dataset) -> set[int]:
        return {int(age) for age in data.test.x[:, 1] if age >= 100}

    before = tested(tabular.load(folder, "outcome"))
    east = folder / "Ost.tsv"
    east.write_text(text("\t", ".", [(1.5, 99, "ja", "krank"), *ROWS]), encoding="cp1252")
    assert tested(tabular.load(folder, "outcome")) == before
    south = [(size, age + 100, *rest) for size, age, *rest in ROWS]
    (folder / "Süd.csv").write_text(text(";", ",", [(1.5, 99, "ja", "krank"), *south]), encoding="cp1252")
    assert tested(tabular.load(folder, "outcome")) != before


def test_files_that_do_not_go_together(tmp_path: Path) -> None:
    folder = clinics(tmp_path / "clinics")
    load = partial(tabular.load, label="outcome")
    said = {
        "no-files": [tmp_path / "x*.csv", [], tmp_path],
        "file-named-twice": [[str(folder), str(folder / "Ost.tsv")]],
        "missing-file": [tmp_path / "nowhere", [str(folder / "Ost.tsv"), str(folder / "Ozt.tsv")]],
    }
    for code, paths in said.items():
        for path in paths:
            assert refused(lambda p=path: load(p)).code == code  # type: ignore[misc]
    (folder / "Ost.csv").write_text(text(), encoding="utf-8")
    assert "'Ost'" in refused(lambda: load(folder)).what
    (folder / "Ost.csv").write_text("age,outcome\n1,krank\n", encoding="utf-8")
    error = refused(lambda: load([str(folder / "Süd.csv"), str(folder / "Ost.csv")]))
    assert (error.code, "Süd.csv has a column 'Größe'" in error.what) == ("columns-differ", True)
    bad = text("\t", ".", [*ROWS[:7], (1.5, "?", "ja", "krank")])
    (folder / "Ost.csv").unlink()
    (folder / "Ost.tsv").write_text(bad, encoding="cp1252")
    error = refused(lambda: load(folder, schema=declared(SCHEMA_OF_ALL)))
    assert error.what.endswith("Ost.tsv: age = '?' is not a number (row 8 after the header)")


def test_labels_that_are_whole_numbers_written_as_others(tmp_path: Path) -> None:
    """As pandas writes them beside a gap."""
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{i},{i % 2}.0\n" for i in range(20)))
    said = declared('[columns]\nx = { kind = "number", range = [0, 20] }\ny = { kind = "label", classes = [0, 1] }')
    for schema in (None, said):
        data = tabular.load(tmp_path / "a.csv", "y", schema=schema)
        assert data.class_names == ("0", "1")
        assert np.array_equal(data.train.y, data.train.x[:, 0] % 2)


def test_an_overview_reads_a_predicted_number_as_the_training_does(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age;stay\n30;2,5\n40;7,5\n", encoding="utf-8")
    said = 'age = { kind = "number", range = [0, 120] }\nstay = { kind = "label", range = [0, 10] }\n'
    held = overview(str(tmp_path / "a.csv"), "stay", schema=declared(f"[columns]\n{said}"), outcome=Numbers(0, 10))
    assert [(one.name, one.holds) for one in held.columns] == [("age", "30 to 40"), ("stay", "2.5 to 7.5")]


def test_a_note_of_several_lines_is_read_wherever_it_stands(tmp_path: Path) -> None:
    """A file is read in pieces of a megabyte; as it was, a piece that ended within a note stopped the run."""
    notes = ["line\n" * 20 + str(i) for i in range(12_000)]
    saved(tmp_path, [{"note": note, "outcome": 1} for note in notes])
    assert read(tmp_path / "visits.csv", ("note", "outcome")).table.column("note").to_pylist() == notes
