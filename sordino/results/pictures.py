"""PNG images for pages (W3C recommendation, 2003), written with the standard library."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Pixels: TypeAlias = NDArray[np.uint8]
FRAME = (224, 72, 62, 255)  # around what is wrong: seen on white paper and on black


def strip(images: Pixels, framed: Sequence[bool] = ()) -> str:
    """Images [n, h, w, 1 or 3] side by side on a transparent ground, some of them framed, as a data URI."""
    count, height, width, _ = images.shape
    gap = 1 if width <= 16 else 2  # around each, in which a frame lies; small images are shown larger
    sheet = np.zeros((height + 2 * gap, count * (width + 2 * gap), 4), np.uint8)
    for i, image in enumerate(images):
        cell = sheet[:, i * (width + 2 * gap) : (i + 1) * (width + 2 * gap)]
        if i < len(framed) and framed[i]:
            cell[:] = FRAME
        cell[gap:-gap, gap:-gap, :3] = image
        cell[gap:-gap, gap:-gap, 3] = 255
    return f"data:image/png;base64,{base64.b64encode(png(sheet)).decode()}"


def png(pixels: Pixels) -> bytes:
    """PNG file of red, green, blue and opacity [h, w, 4]; a pixel is stored as its difference from the one before."""
    height, width, _ = pixels.shape
    before = np.pad(pixels, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    rows = np.concatenate([np.ones((height, 1), np.uint8), (pixels - before).reshape(height, -1)], axis=1)
    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
