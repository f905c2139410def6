"""Files of a table: their dialect, and their rows with file and row number.

The dialect of a text file follows from its name and its first line alone: the names of columns are public, the contents
of rows are not, and one row must not change how another is read. Settings override what the first line shows.
"""

from __future__ import annotations

import codecs
import glob
import gzip
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

from sordino.data import TABLES, is_pattern, kind_of
from sordino.data.frames import as_text
from sordino.errors import DataError

IN_MEMORY = Path("data in memory")
HEAD = 2**20  # bytes in which a first line must end
MARKS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}  # byte order marks
SEPARATORS = (",", ";", "\t", "|")
SPELLED = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}


class Dialect(NamedTuple):
    """Separator, decimal mark and encoding of a text file."""

    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"

    def __str__(self) -> str:
        return f"separator {SPELLED[self.separator]}, decimal {SPELLED.get(self.decimal, 'point')}, {self.encoding}"


@dataclass(frozen=True)
class GivenDialect:
    """Dialect settings for all files; a None is inferred from the first line."""

    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None

    def dialect(self, file: Path, first: bytes) -> Dialect:
        encoding = self.encoding or next((name for mark, name in MARKS.items() if first.startswith(mark)), None)
        if encoding is None:
            try:
                first.decode()
                encoding = "utf-8"
            except UnicodeDecodeError:
                encoding = "cp1252"  # usual on Windows for Western languages; its letters are those of latin-1
        outside = "".join(first.decode(encoding, "replace").split('"')[::2])  # of quotes
        counts = {mark: outside.count(mark) for mark in SEPARATORS}
        likely = "\t" if kind_of(file) == ".tsv" else max(counts, key=lambda mark: counts[mark])  # else the first
        separator = self.separator or likely
        # semicolons separate mostly where commas are decimal marks
        return Dialect(separator, self.decimal or ("," if separator == ";" else "."), encoding)


AS_SEEN = GivenDialect()


class TableFile(NamedTuple):
    """A file of a table: its number of rows, and how it is written."""

    path: Path
    rows: int
    dialect: Dialect | None  # None: the format declares its columns, as parquet does


@dataclass(frozen=True)
class TableRows:
    """The rows of one or several files in sequence."""

    table: pa.Table
    files: tuple[TableFile, ...]
    alone: bool  # one file was named, and no folder, pattern or list

    @property
    def name(self) -> str:
        """A description for messages: the file, or the folder and the number of files."""
        return str(self.files[0].path) if self.alone else f"{self.files[0].path.parent} ({len(self.files)} files)"

    @property
    def starts(self) -> list[int]:
        found = [0]
        for file in self.files:
            found.append(found[-1] + file.rows)
        return found

    def place(self, at: int) -> tuple[Path, int]:
        """The file of a row, and the row's number in it, from 1."""
        which = bisect_right(self.starts, at) - 1
        return self.files[which].path, at - self.starts[which] + 1

    def column(self, name: str) -> pa.Array:
        column = self.table.column(name).combine_chunks()
        return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def found_files(path: str | Path | Sequence[str | Path]) -> tuple[Path, ...]:
    """Files of a table given by a path: a single file, the files of a folder or pattern in the order of names, or those
    of a list in its order."""
    if not isinstance(path, str | Path):
        files = [file for one in path for file in found_files(one)]
        if not files:
            raise _nothing("data.path is an empty list")
    elif is_pattern(str(place := Path(path).expanduser())):
        files = sorted(file for file in map(Path, glob.glob(str(place))) if kind_of(file) in TABLES)
        if not files:
            raise _nothing(f"no table fits {path}")
    elif place.is_dir():
        files = sorted(file for file in place.iterdir() if kind_of(file) in TABLES and file.name[0] not in ".~")
        if not files:
            raise _nothing(f"no table is in the folder {path}")
    else:
        files = [place]
    if len({file.resolve() for file in files}) < len(files):
        raise DataError(
            f"a file is named twice among {', '.join(map(str, files))}",
            why="its rows would count twice",
            fix="name every file once",
            code="file-named-twice",
        )
    return tuple(files)


def _nothing(what: str) -> DataError:
    return DataError(
        what,
        why=f"tables are files that end in {', '.join(TABLES)}, or in one of these and .gz",
        fix="set data.path to a file, a folder, a pattern like 'clinics/*.csv', or a list of files",
        code="no-files",
    )


def read(
    path: str | Path | Sequence[str | Path] | pa.Table,
    as_text: Sequence[str] = (),
    written: GivenDialect = AS_SEEN,
    numbers: Sequence[str] = (),
    ignored: Sequence[str] = (),
) -> TableRows:
    """The rows of all files. In text files the columns `as_text` are not parsed; decimal commas of those in `numbers`
    become points, and those in `ignored` may hold bytes in any encoding.
    """
    if isinstance(path, pa.Table):
        _check_table(IN_MEMORY, path.num_rows, path.column_names)
        return TableRows(path, (TableFile(IN_MEMORY, path.num_rows, None),), alone=True)
    files = found_files(path)
    alone = isinstance(path, str | Path) and files == (Path(path).expanduser(),)
    read_each = [_read_one(file, tuple(as_text), written, tuple(numbers), tuple(ignored)) for file in files]
    first = read_each[0][0]
    for file, (table, _) in zip(files, read_each, strict=True):
        if differing := set(table.column_names) ^ set(first.column_names):
            one = sorted(differing)[0]
            has, lacks = (file, files[0]) if one in table.column_names else (files[0], file)
            raise DataError(
                f"{has} has a column {one!r} that {lacks} lacks",
                why="one model must fit all files, so all have the same columns",
                fix="add the column, or remove it, so that all files have the same; or leave a file out of data.path",
                code="columns-differ",
            )
    tables = [table.select(first.column_names) for table, _ in read_each]
    table_files = tuple(TableFile(file, t.num_rows, how) for file, (t, how) in zip(files, read_each, strict=True))
    return TableRows(tables[0] if len(tables) == 1 else _joined(tables), table_files, alone)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """The tables concatenated. A column that is text in any of them becomes text in all."""
    for name in tables[0].column_names:
        types = {table.schema.field(name).type for table in tables}
        if len(types) > 1 and any(pa.types.is_string(kind) for kind in types):
            at = tables[0].column_names.index(name)
            tables = [table.set_column(at, name, as_text(table.column(name))) for table in tables]
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(
            "the files cannot be combined",
            why=str(error),
            fix="give a column the same type in every file",
            code="columns-differ",
        ) from None


def _read_one(
    file: Path, as_text: tuple[str, ...], written: GivenDialect, numbers: tuple[str, ...], ignored: tuple[str, ...]
) -> tuple[pa.Table, Dialect | None]:
    if kind_of(file) not in TABLES and (file.suffix or file.exists()):
        raise DataError(
            f"{file}: sordino does not read {file.suffix or 'files without a suffix'}",
            why="the suffix of a file says how to read it",
            fix=f"use a file that ends in {', '.join(TABLES)}, or in one of these and .gz",
            code="unknown-table-format",
        )
    if not file.is_file():
        raise DataError(f"there is no file or folder {file}", fix="check the path", code="missing-file")
    dialect = None
    try:
        if kind_of(file) == ".parquet":  # which declares its columns
            table = pq.read_table(file)
        else:
            dialect = written.dialect(file, _first_line(file))
            _check_encoding(file, dialect)
            table = _read_text(file, dialect, as_text)
        names = table.column_names  # which may hold bytes that the encoding does not know
    except (pa.ArrowException, OSError, EOFError, UnicodeError) as error:
        dialect_text = "" if dialect is None else f" It was read with {dialect}."
        raise DataError(
            f"{file} cannot be read",
            why=f"{error}.{dialect_text}",
            fix="check that the file is complete and of the kind that its name says"
            + (dialect_text and "; or say how it is written: data.separator, data.decimal, data.encoding"),
            code="corrupt-table",
        ) from None
    _check_table(file, table.num_rows, names)
    if dialect is not None:
        table = _without(table, ignored)
        table = _with_letters(file, table, dialect)
        if dialect.decimal == ",":
            table = _with_points(file, table, [name for name in numbers if name in table.column_names])
    return table, dialect


def _check_table(file: Path, rows: int, names: Sequence[str]) -> None:
    if not rows:
        raise DataError(
            f"{file} holds no rows",
            fix="check that the file is complete",
            why="a data set needs at least one row",
            code="empty-table",
        )
    if len(set(names)) < len(names):
        raise DataError(
            f"{file}: two columns have the same name",
            why="a column is found by its name",
            fix="rename one of them",
            code="repeated-column-name",
        )


def _first_line(file: Path) -> bytes:
    with gzip.open(file) if file.suffix == ".gz" else open(file, "rb") as opened:
        return opened.readline(HEAD)


def _check_encoding(file: Path, dialect: Dialect) -> None:
    """Refuses a UTF-8 file that would be read in a one-byte encoding: there every byte is a valid character, so no
    later check would notice."""
    if dialect.encoding.lower().replace("_", "-").startswith(("utf-", "utf8")):
        return
    decoder, plain = codecs.getincrementaldecoder("utf-8")(), True
    with gzip.open(file) if file.suffix == ".gz" else open(file, "rb") as opened:
        try:
            while block := opened.read(HEAD):
                plain &= block.isascii()
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return
    if not plain:
        raise DataError(
            f"{file} is written in utf-8, and would be read in {dialect.encoding}",
            why="its letters would be misread, so levels and names would be unknown; one encoding applies to all "
            "files that are read together",
            fix="leave the encoding out, and write files that are not in utf-8 anew: "
            f"iconv -f {dialect.encoding} -t utf-8 OLD > NEW",
            code="wrong-encoding",
        )


def _read_text(file: Path, dialect: Dialect, as_text: Sequence[str]) -> pa.Table:
    read_ = csv.ReadOptions(encoding=dialect.encoding)
    parse = csv.ParseOptions(delimiter=dialect.separator, newlines_in_values=True)

    def options(kind: pa.DataType) -> csv.ConvertOptions:
        # an empty text is a missing value, not a level of its own
        return csv.ConvertOptions(
            strings_can_be_null=True, column_types=dict.fromkeys(as_text, kind), decimal_point=dialect.decimal
        )

    try:
        return csv.read_csv(file, read_, parse, options(pa.string()))
    except pa.ArrowInvalid as error:
        if "UTF8" not in str(error):
            raise
        return csv.read_csv(file, read_, parse, options(pa.binary()))  # `_with_letters` finds the bad cell


def _without(table: pa.Table, ignored: Sequence[str]) -> pa.Table:
    """The table with ignored columns emptied."""
    for at, name in enumerate(table.column_names):
        if name in ignored:
            table = table.set_column(at, name, pa.nulls(table.num_rows, pa.string()))
    return table


def _with_letters(file: Path, table: pa.Table, dialect: Dialect) -> pa.Table:
    """The table with its bytes as text; refuses those that are no text in the encoding of the file."""
    for place, name in enumerate(table.column_names):
        if not pa.types.is_binary(table.column(name).type):
            continue
        for at, cell in enumerate(table.column(name).to_pylist()):
            try:
                _ = cell is None or cell.decode()
            except UnicodeDecodeError:
                raise DataError(
                    f"{file}: {name} = {cell.decode('cp1252', 'replace')!r} is not written in {dialect.encoding} "
                    f"(row {at + 1} after the header)",
                    why="the encoding is read off the first line alone, so that no row changes how another is read",
                    fix='say how all files are written: data.encoding = "cp1252", for example (`predict`: --encoding '
                    "cp1252); or write this one anew: iconv -f cp1252 -t utf-8 OLD > NEW",
                    code="wrong-encoding",
                ) from None
        table = table.set_column(place, name, pc.cast(table.column(name), pa.string()))
    return table


def _with_points(file: Path, table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Decimal commas converted to points. A cell with a point is refused, because 1.234 may be a thousand or one."""
    for name in names:
        column = table.column(name)
        if not pa.types.is_string(column.type):
            continue
        dotted = pc.fill_null(pc.match_substring(column, "."), False)
        if (at := pc.index(dotted, True).as_py()) >= 0:
            raise DataError(
                f"{file}: {name} = {column[at].as_py()!r} has a point, and this file a decimal comma "
                f"(row {at + 1} after the header)",
                why="a point may stand for thousands or for decimals, and sordino does not guess values",
                fix='say how the file is written: data.decimal = ".", or correct the cell',
                code="wrong-decimal",
            )
        column = pc.replace_substring(column, ",", ".")
        table = table.set_column(table.column_names.index(name), name, column)
    return table
