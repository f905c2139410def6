"""Data sets and how they are loaded.

Loaders return a `Dataset`; their modules are imported on first use. Those that read parquet, CSV and image files need
the `data` extra.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
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
    "digits": _loader("digits", "built_in", "digits"),
    "folder": _loader("folder", "folders"),
    "images": _loader("images"),
    "tabular": _loader("tabular"),
    "quadratic": _loader("quadratic", "built_in", "quadratic"),
    "synthetic": _loader("synthetic", "built_in", "synthetic"),
}
