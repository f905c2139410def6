"""Names of table files, and what they alone tell: no file is read, and no large package is imported."""

from __future__ import annotations

import glob
from pathlib import Path

TABLES = (".csv", ".tsv", ".parquet")  # suffixes of files that are read as tables; .gz may follow


def kind_of(file: Path) -> str:
    """The suffix that gives a file's format, without a compression suffix after it."""
    return _unpacked(file).suffix.lower()


def stem_of(file: Path) -> str:
    """The name of a file without its suffixes."""
    return _unpacked(file).stem


def _unpacked(file: Path) -> Path:
    return file.with_suffix("") if file.suffix == ".gz" else file


def is_pattern(path: str) -> bool:
    return glob.has_magic(path) and not Path(path).exists()


def is_one_file(path: object) -> bool:
    """True if a path looks like the name of a single table file, not of a folder or pattern."""
    return isinstance(path, str) and not glob.has_magic(path) and kind_of(Path(path)) in TABLES
