"""Candidates from a folder: `<path>/<class name or number>/*.png` or `.jpg`, read with pillow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from sordino import keys
from sordino.data.dataset import Array, Candidates, ImageNeeds
from sordino.errors import DataError, extra
from sordino.synthesis.public_images import pixels
from sordino.synthesis.public_images.store import gathered

SUFFIXES = (".png", ".jpg", ".jpeg")


@dataclass(frozen=True)
class Folder:
    """Images of a folder."""

    path: str
    label: ClassVar[str] = "candidates from a folder - where they come from is not known here"
    pool: ClassVar[float] = 0.0

    def build(self, wanted: ImageNeeds) -> Candidates:
        root = Path(self.path).expanduser()
        found = [_files(root, of, name) for of, name in enumerate(wanted.classes)]
        chosen = [_some(files, wanted, name) for files, name in zip(found, wanted.classes, strict=True)]
        images = [np.concatenate([_read(file, wanted) for file in files]) for files in chosen]
        return gathered("folder", self.label, wanted, images, model=root.name)


def _files(root: Path, of: int, name: str) -> list[Path]:
    if not root.is_dir():
        raise DataError(
            f"folder {root} does not exist",
            fix="give a folder with one folder of images per class",
            code="missing-candidate-folder",
        )
    place = next((root / part for part in (name, str(of)) if (root / part).is_dir()), None)
    if place is None:
        raise DataError(
            f"{root} has no folder for {name!r}",
            why="the candidates of a class are in a folder with its name or number",
            fix=f"put images into {root / name}, or drop the class",
            code="class-without-candidates",
        )
    files = sorted(file for file in place.iterdir() if file.suffix.lower() in SUFFIXES)
    if not files:
        raise DataError(
            f"{place} holds no image",
            why="each class needs at least one image",
            fix=f"put images there: {', '.join(SUFFIXES)}",
            code="class-without-candidates",
        )
    return files


def _some(files: list[Path], wanted: ImageNeeds, name: str) -> list[Path]:
    """A random selection of as many files as are wanted; all if there are fewer."""
    order = keys.permutation(keys.fold(wanted.key, "folder", name), len(files))[: wanted.per_class]
    return [files[at] for at in sorted(order.tolist())]


def _read(file: Path, wanted: ImageNeeds) -> Array:
    with extra("data", "these candidates", "missing-data-extra"):
        from sordino.data.folders import content
        from sordino.data.image_files import channels_last, opened
    with opened(content(file), str(file)) as (image, _):
        return pixels.fit(channels_last(image, "RGB")[None], wanted.shape)
