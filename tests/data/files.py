"""Small files of images, and how their loading is refused."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from PIL import Image

from sordino.errors import DataError

Array = NDArray[Any]


def refused(load: Callable[[], object]) -> DataError:
    with pytest.raises(DataError) as caught:
        load()
    return caught.value


# ---- images
PICTURE = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
PICTURE[:6] = 0  # so that compression has work to do


def encode(image: Array, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(out, kind)
    return out.getvalue()


def put(file: Path, encoded: Sequence[bytes | None], raw: bool = False, **columns: Any) -> Path:
    """A parquet file as the hub writes it: a struct of bytes and path (or raw bytes), and label columns."""
    file.parent.mkdir(parents=True, exist_ok=True)
    image = pa.array(encoded, pa.binary()) if raw else pa.array([{"bytes": b, "path": None} for b in encoded])
    pq.write_table(pa.table({"image": image, **columns}), file, row_group_size=3)
    return file
