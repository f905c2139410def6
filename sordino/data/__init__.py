"""What exists: loaders that return a `Dataset`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sordino.data import digits, images, quadratic, tabular
from sordino.data.dataset import Dataset, Split

__all__ = ["SOURCES", "Dataset", "Split"]

SOURCES: Mapping[str, Callable[..., Dataset]] = {
    "digits": digits.load,
    "images": images.load,
    "tabular": tabular.load,
    "quadratic": quadratic.load,
}
