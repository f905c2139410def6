"""Images at another size: each new pixel is the mean over the area it covers, and a pixel that an edge cuts counts with
the part inside.

Between sizes that do not divide each other box filters and average pools take whole pixels only; this does not.
"""

from __future__ import annotations

import numpy as np

from sordino.data.dataset import Array

BLOCK = 2**23  # numbers at a time


def area(images: Array, side: int) -> Array:
    """Images uint8 [n, height, width, channels] averaged to [n, side, side, channels], to the nearest level. It is
    exact, since it stays in whole numbers until one division.
    """
    _, height, width, channels = images.shape
    down, across = _overlap(height, side), _overlap(width, side)
    out = np.empty((len(images), side, side, channels), np.uint8)
    step = max(1, BLOCK // (height * width * channels))
    for start in range(0, len(images), step):
        block = images[start : start + step].astype(np.float64)
        rows = (down @ block.reshape(len(block), height, -1)).reshape(len(block), side, width, channels)
        cells = rows.swapaxes(2, 3) @ across.T  # [n, side, channels, side]
        out[start : start + step] = np.floor(cells.swapaxes(2, 3) / (height * width) + 0.5)
    return out


def _overlap(pixels: int, side: int) -> Array:
    """[side, pixels]: of each new pixel, how much of it lies on each old one, in whole units of 1/side of an old pixel;
    every row adds up to `pixels`.
    """
    new, old = np.arange(side)[:, None] * pixels, np.arange(pixels) * side
    inside = np.minimum(new + pixels, old + side) - np.maximum(new, old)
    return np.asarray(np.maximum(inside, 0), np.float64)
