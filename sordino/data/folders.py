"""Images in one folder per class, brought to one size, decoded once and kept as a raw memory map.

    ROOT/train/CLASS/*.jpg and, where there is one, ROOT/test/CLASS/*.jpg; or ROOT/CLASS/*.jpg

Where no test images are labelled, as in MIO-TCD (Luo et al., IEEE Transactions on Image Processing 2018: 11 classes of
traffic, a test set whose labels are withheld), a stratified part of the training images is held back. Classes are
numbered in the order of their names.

Declared classes do not depend on images: they are numbered as declared, a folder of another name is refused, a class
may have no images, and names of images alone, of which no two are alike, decide their order and which are held back.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sordino.data import image_files as pixels
from sordino.data.dataset import (
    CLASSES,
    COLOURS,
    DRAWN,
    STRATIFIED,
    Array,
    Dataset,
    Split,
    apart,
    area,
    cache_folder,
    check_classes,
    pixel_stats,
    stratified,
)
from sordino.data.image_files import JPEG, MODE, channels_last, opened
from sordino.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")  # other files are not looked at
SPLITS = {"train", "test", "val", "valid", "validation"}  # names of folders that hold class folders
_BATCH = 512


class LabelledFiles(NamedTuple):
    """Image files and their labels."""

    files: tuple[Path, ...]
    labels: Array

    def at(self, rows: Array) -> LabelledFiles:
        return LabelledFiles(tuple(self.files[row] for row in rows), self.labels[rows])


def load(
    path: str | Path,
    side: int = 32,
    fraction: float = 1.0,
    at_least: int = 20,
    seed: int = 0,
    test_fraction: float = 0.2,
    cache: Path | None = None,
    verify: bool = False,
    classes: Sequence[str] | None = None,
    colours: bool | None = None,
) -> Dataset:
    """Images in one folder per class. `fraction` of each class (and of each split) is drawn with `seed`, rounded up,
    and at least `at_least` images where the class has as many.

    `test_fraction` is held back where the folder has no test images of its own; `verify` hashes the cached pixels
    before use; `classes` and `colours` are declarations; without them both are inferred from all images.
    """
    root = Path(path).expanduser().resolve()
    if not root.is_dir():
        raise DataError(
            f"there is no folder {path}",
            fix="give a folder that holds one folder of images per class, or train/ and test/ folders with one "
            "folder per class",
            code="missing-image-folder",
        )
    trained = _folders(root / "train")
    found, tested = (trained, _folders(root / "test")) if trained else (_folders(root), {})
    _check(root, found)
    known: Mapping[str, Path | None] = found
    tests: Mapping[str, Path | None] = tested
    if classes is None:
        _check_several(found)
    else:
        check_classes(classes)
        known, tests = (_as_declared(folders, classes) for folders in (found, tested))
    rng = np.random.default_rng(seed)
    train = _listed(known, fraction, at_least, rng, classes is not None)
    if tests:
        _check_test(root, known, tests)
        test = _listed(tests, fraction, at_least, rng, classes is not None)
    else:
        names = [file.name for file in train.files]
        kept, held = (
            stratified(train.labels, test_fraction, seed)
            if classes is None
            else apart([len(names)], names, test_fraction, seed)
        )
        train, test = train.at(kept), train.at(held)
    first, second = _open(root.name, {"train": train, "test": test}, side, colours, cache_folder(cache), verify)
    note = f"images resized to {side}x{side}" + (f"; {fraction:g} of each class" if fraction < 1 else "")
    stats = pixel_stats(first.x)
    public = (*([DRAWN] if fraction < 1 else []), *([] if tests or classes is not None else [STRATIFIED]))
    learned = (*([CLASSES] if classes is None else []), *([COLOURS] if colours is None else []))
    return Dataset(
        root.name,
        "image",
        len(known),
        first,
        second,
        *stats,
        note,
        names=tuple(known),
        taken_as_public=public,
        learned=learned,
    )


# ---- choice of files


def _folders(place: Path) -> dict[str, Path]:
    """The class folders in `place`, in the order of their names."""
    if not place.is_dir():
        return {}
    found = sorted(child for child in place.iterdir() if child.is_dir() and not child.name.startswith((".", "__")))
    return {folder.name: folder for folder in found}


def _check(root: Path, classes: Mapping[str, Path]) -> None:
    if set(classes) <= SPLITS:
        raise DataError(
            f"{root} holds no class folders",
            why="the label of an image is the name of its folder",
            fix="put the images of each class into a folder of their own: ROOT/train/CLASS/*.jpg or ROOT/CLASS/*.jpg",
            code="no-class-folders",
        )


def _as_declared(folders: Mapping[str, Path], classes: Sequence[str]) -> dict[str, Path | None]:
    """The folder of each declared class, in their order; None for a class without images here."""
    if strange := next((name for name in folders if name not in classes), ""):
        raise DataError(
            f"{folders[strange]} is not a class that data.classes lists",
            why=f"the declared classes are {', '.join(classes)}; a class learned from an image would change the "
            "model's shape",
            fix="move or remove the folder, or add the class to data.classes (between sites: everywhere)",
            code="undeclared-class",
        )
    return {name: folders.get(name) for name in classes} if folders else {}


def _check_several(classes: Mapping[str, Path]) -> None:
    if len(classes) == 1:
        (folder,) = classes.values()
        raise DataError(
            f"{folder.parent} holds only one class: {folder.name}",
            why="a classifier needs at least two classes",
            fix="add a folder for every other class; if the class folders lie deeper, give the folder that holds them",
            code="one-class-folder",
        )


def _check_test(root: Path, train: Mapping[str, Path | None], test: Mapping[str, Path | None]) -> None:
    if differing := sorted(set(train) ^ set(test)):
        raise DataError(
            f"train/ and test/ of {root} hold different classes: {', '.join(differing)}",
            why="these classes are in only one of the two",
            fix="add the missing class folders, or remove test/: then a part of train/ is held back for testing",
            code="class-folders-differ",
        )


def _listed(
    classes: Mapping[str, Path | None], fraction: float, at_least: int, rng: np.random.Generator, by_name: bool
) -> LabelledFiles:
    """The files that are used and their labels, in the order of classes; or, `by_name`, in the order of file names, so
    that no label decides a position.
    """
    files: list[Path] = []
    labels: list[int] = []
    for label, folder in enumerate(classes.values()):
        found = [] if folder is None else sorted(file for file in folder.iterdir() if _is_image(file))
        if not found and not by_name:
            raise DataError(
                f"{folder} holds no images",
                why=f"each class needs at least one image; image files end in {', '.join(SUFFIXES)}",
                fix="add images, or remove the folder",
                code="empty-class-folder",
            )
        wanted = max(math.ceil(Fraction(str(fraction)) * len(found)), at_least)  # 0.1 of 30 is 3: not so for floats
        drawn = np.sort(rng.permutation(len(found))[:wanted])
        files += [found[row] for row in drawn]
        labels += [label] * len(drawn)
    listed = LabelledFiles(tuple(files), np.array(labels, np.int64))
    if not by_name:
        return listed
    order = sorted(range(len(files)), key=lambda row: files[row].name)
    for one, next_ in itertools.pairwise(files[row] for row in order):
        if one.name == next_.name:
            raise DataError(
                f"{one} and {next_} have the same name",
                why="with declared classes the name of an image decides its place among all images; which of two comes "
                "first would follow from their labels, so one changed label would move the other image, too",
                fix="give every image a name of its own",
                code="image-name-twice",
            )
    return listed.at(np.array(order, np.int64))


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()


# ---- content of files


def content(file: Path) -> bytes:
    """The bytes of an image file."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(
            f"{file} cannot be read",
            why=str(error),
            fix="check that the file is an image and that you may read it",
            code="unreadable-image",
        ) from error


def _mode(files: Iterable[Path]) -> str:
    """RGB if any image has colours, else L."""

    def coloured(file: Path) -> bool:
        with opened(content(file), str(file)) as (_, mode):
            return mode == "RGB"

    return "RGB" if any(coloured(file) for file in files) else "L"


def _open(
    name: str, splits: Mapping[str, LabelledFiles], side: int, colours: bool | None, place: Path, verify: bool
) -> Iterator[Split]:
    files = [file for listed in splits.values() for file in listed.files]
    source = [(str(file), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]
    # of all images together; called only if they are decoded
    mode = lru_cache(lambda: _mode(files) if colours is None else MODE[colours])
    declared = () if colours is None else (colours,)

    def one(split: str, listed: LabelledFiles) -> Split:
        identity = (source, split, listed.labels.tolist(), side, *declared)
        key = hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
        stored = place / f"{name}-{split}-{key}.u8"
        found = pixels.kept(stored, verify, lambda: listed.labels, lambda: _decoded(listed.files, side, mode()))
        return Split(found.pixels, found.labels)

    return itertools.starmap(one, splits.items())


def _decoded(files: Sequence[Path], side: int, mode: str) -> Iterator[pixels.PixelBatch]:
    for start in range(0, len(files), _BATCH):
        encoded = [(file, content(file)) for file in files[start : start + _BATCH]]
        images = [_image(data, file, side, mode) for file, data in encoded]
        yield pixels.PixelBatch(np.stack(images), sum(data.startswith(JPEG) for _, data in encoded))


def _image(data: bytes, file: Path, side: int, mode: str) -> Array:
    with opened(data, str(file)) as (image, _):
        return np.asarray(area(channels_last(image, mode)[None], side)[0])
