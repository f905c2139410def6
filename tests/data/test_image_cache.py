"""The cache of decoded images: damage is seen, and nothing is left half built."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sordino.data import image_files as pixels
from sordino.data import images
from tests.data.files import PICTURE, encode, put, refused


def test_the_second_load_decodes_nothing(tiny: SimpleNamespace, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = images.load(tiny.root, cache).fingerprint()

    def forbidden(*_: Any, **__: Any) -> None:
        raise RuntimeError("an image was decoded")

    monkeypatch.setattr(Image, "open", forbidden)
    assert images.load(tiny.root, cache, verify=True).fingerprint() == first
    os.utime(tiny.root / "test.parquet", ns=(1, 1))  # another source file: now it must decode
    assert "an image was decoded" in str(refused(lambda: images.load(tiny.root, cache)))


def test_writing_to_the_images_never_reaches_the_cache(tiny: SimpleNamespace, cache: Path) -> None:
    data = images.load(tiny.root, cache)
    whole = train_file(cache).read_bytes()
    data.train.x[:] = 0
    data.train.x.flush()  # type: ignore[attr-defined]
    assert train_file(cache).read_bytes() == whole


def train_file(cache: Path) -> Path:
    (file,) = cache.glob("tiny-train-*.u8")
    return file


LABELS_AT, PIXELS_AT = 1024, 1024 + 8 * 12


SIZE = PIXELS_AT + 12 * 4 * 5 * 3


@pytest.mark.one_fast
@pytest.mark.parametrize("kept", [0, 1, 7, 8, 15, 47, 48, 300, 1023, 1024, 1060, PIXELS_AT, 1500, SIZE - 1, SIZE + 1])
def test_a_truncated_cache_is_built_again(tiny: SimpleNamespace, cache: Path, kept: int) -> None:
    images.load(tiny.root, cache)
    whole = train_file(cache).read_bytes()
    assert len(whole) == SIZE
    train_file(cache).write_bytes((whole + b"\0")[:kept])
    assert np.array_equal(images.load(tiny.root, cache).train.x, tiny.x["train"])
    assert train_file(cache).read_bytes() == whole


@pytest.mark.parametrize("place", [0, 8, 12, 20, 47, 48, 60, 100, 200, 1023])
def test_any_flipped_bit_of_the_header_is_seen(tiny: SimpleNamespace, cache: Path, place: int) -> None:
    images.load(tiny.root, cache)
    file = train_file(cache)
    damaged = bytearray(whole := file.read_bytes())
    damaged[place] ^= 1
    file.write_bytes(damaged)
    assert pixels.read(file) is None
    images.load(tiny.root, cache)
    assert file.read_bytes() == whole


@pytest.mark.parametrize("place", [LABELS_AT, PIXELS_AT, SIZE - 1])
def test_a_flipped_bit_of_the_payload_is_seen_when_asked(tiny: SimpleNamespace, cache: Path, place: int) -> None:
    images.load(tiny.root, cache)
    file = train_file(cache)
    damaged = bytearray(whole := file.read_bytes())
    damaged[place] ^= 1
    file.write_bytes(damaged)
    assert pixels.read(file) is not None  # opening checks the header and the size only
    images.load(tiny.root, cache, verify=True)
    assert file.read_bytes() == whole


def test_a_valid_header_of_another_version_is_not_read(
    tiny: SimpleNamespace, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images.load(tiny.root, cache)
    assert pixels.read(train_file(cache)) is not None
    monkeypatch.setattr(pixels, "_VERSION", 2)
    assert pixels.read(train_file(cache)) is None


def test_a_failed_build_leaves_nothing_behind(tiny: SimpleNamespace, cache: Path) -> None:
    encoded = [encode(image) for image in tiny.x["train"]]
    put(tiny.root / "train.parquet", [*encoded[:-1], b"\x89PNG\r\n\x1a\nrubbish"], label=tiny.y["train"])
    error = refused(lambda: images.load(tiny.root, cache))
    assert error.code == "corrupt-image"
    assert "train.parquet, row 11" in str(error)
    assert list(cache.iterdir()) == []


def test_a_build_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise OSError("killed before the file was moved into place")

    monkeypatch.setattr(os, "replace", killed)
    batch = pixels.PixelBatch(PICTURE[None], jpegs=0)
    assert refused(lambda: pixels.write(tmp_path / "a.u8", np.array([1]), [batch])).code == "cache-not-writable"
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_says_how_to_move_it(tiny: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    error = refused(lambda: images.load(tiny.root, tmp_path / "file"))
    assert error.code == "cache-not-writable"
    assert "SORDINO_CACHE" in error.fix


def test_the_cache_directory_comes_from_the_environment(
    tiny: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path / "elsewhere"))
    images.load(tiny.root)
    assert len(list((tmp_path / "elsewhere").glob("tiny-*.u8"))) == 2
