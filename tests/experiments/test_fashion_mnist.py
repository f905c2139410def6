"""The idx files of Fashion-MNIST become parquet files that the library reads, pixel for pixel."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import fashion_mnist
import numpy as np
import pytest
from numpy.typing import NDArray

from sordino.data import images


def write_idx(file: Path, array: NDArray[np.uint8], packed: bool) -> None:
    data = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
    if packed:
        file = file.with_name(f"{file.name}.gz")
        data = gzip.compress(data)
    file.write_bytes(data)


def idx_files(place: Path, packed: bool = True) -> dict[str, tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    draw, made = np.random.default_rng(0), {}
    for part, many in (("train", 20), ("t10k", 12)):
        x, y = draw.integers(256, size=(many, 28, 28), dtype=np.uint8), np.arange(many, dtype=np.uint8) % 10
        write_idx(place / f"{part}-images-idx3-ubyte", x, packed)
        write_idx(place / f"{part}-labels-idx1-ubyte", y, packed)
        made[part] = x, y
    return made


@pytest.mark.parametrize("packed", [True, False])
def test_the_images_are_the_same(packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = idx_files(tmp_path, packed)
    monkeypatch.setattr("sys.argv", ["fashion_mnist.py", str(tmp_path), str(tmp_path / "made")])
    assert fashion_mnist.main() == 0
    found = images.load(tmp_path / "made", cache=tmp_path / "cache")
    for split, part in ((found.train, "train"), (found.test, "t10k")):
        x, y = given[part]
        assert np.array_equal(np.asarray(split.x)[..., 0], x)
        assert np.array_equal(split.y, y)
    assert found.names == fashion_mnist.CLASSES


def test_labels_that_are_too_few_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idx_files(tmp_path)
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(3, np.uint8), packed=True)
    monkeypatch.setattr("sys.argv", ["fashion_mnist.py", str(tmp_path), str(tmp_path / "made")])
    with pytest.raises(ValueError, match="do not fit each other"):
        fashion_mnist.main()
