"""Decoding of untrusted images: known formats only, one channel depth, a bounded size, and one error for every failure
of a decoder.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

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
MODE = {True: "RGB", False: "L"}  # where it is declared whether images have colours
LARGEST = 50_000_000  # pixels; a few bytes may claim any number of them
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
