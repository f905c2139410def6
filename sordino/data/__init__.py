"""Data sets and how they are loaded.

Loaders return a `Dataset`; their modules are imported on first use. Those that read parquet, CSV and image files need
the `data` extra. What the names of table files tell by themselves stands here, too: no file is read for it.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.errors import DataError, extra

if TYPE_CHECKING:
    from sordino.data.dataset import Dataset


def _loader(source: str, module: str | None = None, function: str = "load") -> Callable[..., Dataset]:
    def load(**settings: object) -> Dataset:
        with extra("data", f"data.source = {source!r}", "missing-data-extra", DataError):
            loader = import_module(f"sordino.data.{module or source}")
        loaded: Dataset = getattr(loader, function)(**settings)
        return loaded

    return load


SOURCES: Mapping[str, Callable[..., Dataset]] = {
    "digits": _loader("digits", "sources", "digits"),
    "folder": _loader("folder", "folders"),
    "images": _loader("images"),
    "tabular": _loader("tabular"),
    "quadratic": _loader("quadratic", "sources", "quadratic"),
    "synthetic": _loader("synthetic", "sources", "synthetic"),
}

# names of table files ------------------------------------------------------------------------------------------------

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
