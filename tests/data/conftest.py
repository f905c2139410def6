"""What tests of data may ask for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.data.files import encode, put


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def tiny(tmp_path: Path) -> SimpleNamespace:
    """12 training and 5 test images in a directory of their own."""
    rng = np.random.default_rng(0)
    x = {name: rng.integers(0, 256, (n, 4, 5, 3), dtype=np.uint8) for name, n in (("train", 12), ("test", 5))}
    y = {"train": np.arange(12) % 3, "test": np.array([0, 1, 2, 2, 1])}
    root = tmp_path / "tiny"
    for split in x:
        put(root / f"{split}.parquet", [encode(image) for image in x[split]], label=y[split])
    return SimpleNamespace(root=root, x=x, y=y)
