"""Where the real image data sets are, if anywhere: tests that need them skip otherwise, and say why."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def real(name: str) -> Path:
    """The directory of mnist, cifar10 or cifar100; $SORDINO_DATA first, else shared/data beside the repository."""
    place = Path(os.environ.get("SORDINO_DATA") or Path(__file__).parents[3] / "shared" / "data") / name
    if not any(place.glob("train*.parquet")):
        pytest.skip(f"no {name} parquet files in {place}; set SORDINO_DATA to the directory that holds {name}/")
    return place
