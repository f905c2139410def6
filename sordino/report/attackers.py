"""What attackers reached of a run: pictures as files, and a section of its page, made of attack.json."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sordino.attacks.assault import Assault
from sordino.attacks.attack import PictureRow
from sordino.engine.checkpoint import atomic_write
from sordino.report.pictures import Pixels, png

SIDE = 64  # of an image in a picture, about
GAP = 4


def pixels(row: PictureRow) -> Pixels:
    return np.frombuffer(base64.b64decode(row.pixels), np.uint8).reshape(row.shape)


def sheet(rows: Sequence[PictureRow]) -> Pixels:
    """Rows of images above each other, on white: red, green, blue and opacity."""
    each = [pixels(row) for row in rows]
    scale = max(1, SIDE // each[0].shape[2])
    tall, wide = scale * each[0].shape[1] + GAP, scale * each[0].shape[2] + GAP
    most = max(len(images) for images in each)
    made = np.full((tall * len(each) + GAP, wide * most + GAP, 4), 255, np.uint8)
    for i, images in enumerate(each):
        for j, image in enumerate(images):
            large = image.repeat(scale, 0).repeat(scale, 1)
            top, left = GAP + i * tall, GAP + j * wide
            made[top : top + len(large), left : left + large.shape[1], :3] = large
    return made


def drawn(found: Assault, folder: Path) -> list[Path]:
    """One PNG for each attack that draws: original, reconstruction, without protection, guess, from top to bottom."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for one in found.found:
        if one.pictures:
            path = folder / f"{one.attack}.png"
            atomic_write(path, png(sheet(one.pictures)), private=True)
            written.append(path)
    return written
