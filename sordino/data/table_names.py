"""What the name of a table's file says. Nothing is read, and nothing heavy is imported."""

from __future__ import annotations

import glob
from pathlib import Path

TABLES = (".csv", ".tsv", ".parquet")  # suffixes of files that are read as tables; .gz may follow


def kind_of(file: Path) -> str:
    """The suffix that says what is in a file; one for compression behind it is left away."""
    return _unpacked(file).suffix.lower()


def stem_of(file: Path) -> str:
    """The name of a file without what says its kind."""
    return _unpacked(file).stem


def _unpacked(file: Path) -> Path:
    return file.with_suffix("") if file.suffix == ".gz" else file


def is_pattern(path: str) -> bool:
    return glob.has_magic(path) and not Path(path).exists()


def is_one_file(path: object) -> bool:
    """Is this the path of one file, as far as its name tells?"""
    return isinstance(path, str) and not glob.has_magic(path) and kind_of(Path(path)) in TABLES
