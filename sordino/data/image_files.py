"""Image files: untrusted ones are decoded (known formats only, one channel depth, a bounded size, one error for every
failure of a decoder), and decoded ones are cached: one raw file per split, written once, opened as a memory map.

    magic, version, header length | sha256 of the header | JSON header, padded | labels, int64 LE | pixels

A cache file that `read` finds damaged is rebuilt from the source.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from sordino.data.dataset import Array
from sordino.errors import DataError

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")  # no format whose decoder starts another program
MODES = {
    "1": "L",
    "L": "L",
    "LA": "L",
    "P": "RGB",
    "RGB": "RGB",
    "RGBA": "RGB",
    "CMYK": "RGB",
    "YCbCr": "RGB",
}
MODE = {True: "RGB", False: "L"}  # mode by whether images are declared to have colours
LARGEST = 50_000_000  # pixels; a small file may claim any number
JPEG = b"\xff\xd8\xff"  # how such a file begins


@contextmanager
def opened(data: bytes, where: str) -> Iterator[tuple[Image.Image, str]]:
    """An image with pixels not decoded yet, and its mode without alpha: L or RGB. Errors inside the block are reported
    as a corrupt image.
    """
    try:
        claims = Image.open(io.BytesIO(data), formats=FORMATS)
        if claims.width * claims.height > LARGEST:
            raise DataError(
                f"{where}: the image claims {claims.width}x{claims.height} pixels, more than {LARGEST:,}",
                why="decoding such a large image may fill the memory",
                fix="make the image smaller, or remove it",
                code="image-too-large",
            )
        claims.verify()  # the checksums of PNG, which decoding skips; after that it must be opened again
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            mode = MODES.get(image.mode)
            if mode is None:
                raise DataError(
                    f"{where}: pixel format {image.mode} is not 8 bits per channel",
                    why="only images with 8 bits per channel are read",
                    fix="convert the image to 8-bit grey or RGB",
                    code="unsupported-pixel-format",
                )
            yield image, mode
    except DataError:
        raise
    except Exception as error:  # a decoder fed with garbage raises almost anything
        raise DataError(
            f"{where}: the image cannot be decoded",
            why="Pillow does not know its format"
            if isinstance(error, UnidentifiedImageError)
            else f"{type(error).__name__}: {error}",
            fix="download or write the file again",
            code="corrupt-image",
        ) from error


def channels_last(image: Image.Image, mode: str) -> Array:
    """The pixels of an image as uint8 [height, width, channels]."""
    array = np.asarray(image if image.mode == mode else image.convert(mode))
    return array.reshape(*array.shape[:2], -1)


_MAGIC, _VERSION = b"sordino\x00", 1
_PREFIX = struct.Struct("<8sII32s")
_START = 1024  # where the payload begins: aligned, and the same for any header, so the header can be written last


class PixelBatch(NamedTuple):
    """Decoded images of a batch."""

    pixels: Array  # uint8 [b, h, w, c]
    jpegs: int  # how many of them came from JPEG bytes


class Decoded(NamedTuple):
    """Decoded images of a data set, with their labels."""

    pixels: Array
    labels: Array
    jpegs: int


def kept(path: Path, verify: bool, labels: Callable[[], Array], batches: Callable[[], Iterable[PixelBatch]]) -> Decoded:
    """Decoded images from the cache file `path`, which is written from `labels` and `batches` first if it is missing or
    damaged. `verify`: hash it before use.
    """
    found = read(path, verify)
    if found is None:
        write(path, labels(), batches())
        found = read(path, verify=True)
    if found is None:
        raise DataError(
            f"reading the image cache {path} gave other bytes than were written",
            why="the disk is failing, or another program changes the file",
            fix="set the environment variable SORDINO_CACHE to a directory on another disk",
            code="cache-unreliable",
        )
    return found


def _pack(header: dict[str, object]) -> bytes:
    text = json.dumps(header).encode().ljust(_START - _PREFIX.size)
    return _PREFIX.pack(_MAGIC, _VERSION, len(text), hashlib.sha256(text).digest()) + text


def write(path: Path, labels: Array, batches: Iterable[PixelBatch]) -> None:
    """Streams the batches to a temporary file and moves it to `path`, so that other processes see the complete file or
    none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=path.name, suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_pack({}))
            digest = hashlib.sha256()
            rows, jpegs, shape = 0, 0, ()

            def put(array: Array) -> None:
                data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                digest.update(data)
                file.write(data)

            put(labels.astype("<i8"))
            for batch in batches:
                put(batch.pixels)
                rows, jpegs, shape = rows + len(batch.pixels), jpegs + batch.jpegs, batch.pixels.shape[1:]
            assert rows == len(labels), "one image per label"
            header = {"shape": [rows, *shape], "dtype": "uint8", "labels": rows, "jpegs": jpegs}
            file.seek(0)
            file.write(_pack({**header, "sha256": digest.hexdigest()}))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with contextlib.suppress(FileNotFoundError):  # after os.replace there is none left
            os.unlink(temporary)


def read(path: Path, verify: bool = False) -> Decoded | None:
    """The decoded images of a cache file, as a memory map; None if the file is absent or incomplete. `verify` also
    hashes its content. Writing to the map changes memory only, never the file.
    """
    try:
        with open(path, "rb") as file:
            prefix, text = file.read(_PREFIX.size), file.read(_START - _PREFIX.size)
            size = os.fstat(file.fileno()).st_size
        if prefix != _PREFIX.pack(_MAGIC, _VERSION, len(text), hashlib.sha256(text).digest()):
            return None
        header = json.loads(text)
        shape = tuple(header["shape"])
        if size != _START + 8 * header["labels"] + math.prod(shape):
            return None
        if verify and _payload_sha256(path) != header["sha256"]:
            return None
        labels = np.fromfile(path, "<i8", header["labels"], offset=_START).astype(np.int64, copy=False)
        pixels = np.memmap(path, np.uint8, "c", offset=_START + 8 * header["labels"], shape=shape)
    except (OSError, ValueError, KeyError):
        return None
    return Decoded(pixels, labels, header["jpegs"])


def _payload_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        file.seek(_START)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unwritable(path: Path, error: OSError) -> DataError:
    return DataError(
        f"cannot write the image cache {path}",
        why=str(error),
        fix="set the environment variable SORDINO_CACHE to a directory that has space and that you may write to",
        code="cache-not-writable",
    )
