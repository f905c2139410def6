"""Image data sets in the Hugging Face hub's parquet format, decoded once and kept as a raw memory map.

A folder holds train*.parquet and test*.parquet (or its only such subfolder does, as in data/), in one or several
shards: train-00000-of-00002.parquet. Columns: one image column (a struct {bytes, path}, or raw bytes) and one integer
label column. Nothing is downloaded unless asked for. Alpha channels are dropped; grey images among colour
ones become colour.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sordino.data import image_files as pixels
from sordino.data.dataset import (
    CLASSES,
    COLOURS,
    Array,
    Dataset,
    Split,
    Stats,
    cache_folder,
    check_classes,
    each_pixel_stats,
    pixel_stats,
)
from sordino.data.image_files import JPEG, MODE, channels_last, opened
from sordino.errors import DataError, extra

LABEL_NAMES = ("label", "labels", "fine_label", "y")
WELL_KNOWN: dict[str, Stats] = {
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}
NAMES: dict[str, tuple[str, ...]] = {
    "mnist": tuple("0123456789"),
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
}
_BATCH = 512


def load(
    path: str | Path,
    cache: Path | None = None,
    download: bool = False,
    label: str | None = None,
    verify: bool = False,
    merge: bool = False,
    standardise: str = "channel",
    classes: Sequence[str] | None = None,
    colours: bool | None = None,
) -> Dataset:
    """Images in parquet files. `path` is a directory or, with download, a hub id.

    `label` names the label column where it is not obvious; `verify` hashes the cached pixels before use; `merge` puts
    training and test images into one set, for clients that hold back test examples of their own; `standardise` "pixel"
    standardises each pixel, otherwise each channel; `classes` and `colours` are declarations, without which both are
    inferred from all images.
    """
    name = Path(path).expanduser().resolve().name
    folder = _data_folder(path, download)
    sources = {split: _shards(folder, split) for split in ("train", "test")}  # both, before any decoding
    place = cache_folder(cache)
    train, test = (_open(name, split, files, label, colours, place, verify) for split, files in sources.items())

    shape = train.pixels.shape[1:]
    if test.pixels.shape[1:] != shape:
        raise DataError(
            f"train images of {folder} are {shape}, test images are {test.pixels.shape[1:]}",
            why="all images of a data set must have the same size and the same number of channels",
            fix="resize or convert them before you write the parquet files",
            code="split-shapes-differ",
        )
    read_names = _names(sources["train"][0], label)
    many = int(max(train.labels.max(), test.labels.max())) + 1
    if classes is not None:
        many = _as_declared(folder, classes, read_names, many)
    elif many > len(train.labels):
        raise DataError(
            f"the largest label of {folder} is {many - 1}, with {len(train.labels)} training images",
            why="with C classes, labels must be the numbers 0 to C-1",
            fix="name the label column with label=..., or renumber the labels",
            code="label-not-a-code",
        )
    if merge:
        whole = (np.concatenate([train.pixels, test.pixels]), np.concatenate([train.labels, test.labels]))
        train = test = pixels.Decoded(*whole, train.jpegs or test.jpegs)
    known = re.sub(r"[-_]", "", name.lower())
    stats = WELL_KNOWN.get(known)
    if stats is None or len(stats[0]) != shape[-1]:
        stats = pixel_stats(train.pixels)
    if standardise == "pixel":
        stats = each_pixel_stats(train.pixels)
    note = "images are a JPEG copy of the original" if train.jpegs or test.jpegs else ""
    first = Split(*train[:2])
    second = first if merge else Split(*test[:2])
    read_names = tuple(classes or read_names or NAMES.get(known, ()))
    names = read_names[:many] if len(read_names) >= many else ()
    learned = (*([] if classes is not None else [CLASSES]), *([COLOURS] if colours is None else []))
    return Dataset(name, "image", many, first, second, *stats, note, names, learned=learned)


def _as_declared(folder: Path, classes: Sequence[str], read_names: Sequence[str], seen: int) -> int:
    """The number of declared classes. Refuses files that name other classes (`read_names`), or labels beyond them
    (`seen` classes).
    """
    check_classes(classes)
    if read_names and tuple(read_names) != tuple(classes):
        why = f"the files say {', '.join(read_names)}"
    elif seen > len(classes):
        why = "a label lies beyond them"  # the label itself is shown to the owner of the images alone
    else:
        return len(classes)
    raise DataError(
        f"{folder} does not hold the classes that data.classes lists: {', '.join(classes)}",
        why=why,
        fix="list the classes as the labels number them, or write the files anew",
        code="undeclared-class",
    )


def _open(
    name: str, split: str, files: list[Path], label: str | None, colours: bool | None, cache: Path, verify: bool
) -> pixels.Decoded:
    source = [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    key = hashlib.sha256(repr((source, label, *(() if colours is None else (colours,)))).encode()).hexdigest()[:16]
    mode = None if colours is None else MODE[colours]
    return pixels.kept(
        cache / f"{name}-{split}-{key}.u8", verify, lambda: labels_of(files, label), lambda: _decoded(files, mode)
    )


def labels_of(files: list[Path], label: str | None) -> Array:
    """The labels of all rows."""
    parts = []
    for file in files:
        column = _label_column(file, _parquet(file).schema_arrow, label)
        for batch in _batches(file, column):
            if batch.null_count:
                raise DataError(
                    f"{file}: column {column} has missing labels",
                    fix="fill in the labels, or remove these rows",
                    why="every image needs a label",
                    code="missing-labels",
                )
            parts.append(batch.to_numpy(zero_copy_only=False).astype(np.int64))
    labels = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    if not len(labels):
        raise DataError(
            f"{files[0]} holds no rows",
            why="training and testing both need examples",
            fix="check that the file is complete",
            code="empty-split",
        )
    if labels.min() < 0:
        raise DataError(
            f"{files[0].parent}: {(labels < 0).sum()} labels of {files[0].name} are negative",
            why="with C classes, labels must be the numbers 0 to C-1; the hub writes -1 where labels are not published",
            fix="use a split whose labels are published",
            code="negative-labels",
        )
    return labels


def _decoded(files: list[Path], declared: str | None = None) -> Iterator[pixels.PixelBatch]:
    first: tuple[tuple[int, int], str] | None = None  # the size and mode that every image must have
    for file in files:
        row = 0
        for encoded in encoded_batches(file):
            images = []
            for data in encoded:
                image, size_and_mode = _decode(data, f"{file}, row {row}", first, declared)
                first = first or size_and_mode
                images.append(image)
                row += 1
            yield pixels.PixelBatch(np.stack(images), sum((data or b"").startswith(JPEG) for data in encoded))


def encoded_batches(file: Path) -> Iterator[list[bytes | None]]:
    """The encoded images of a parquet file, in batches; None for a row without bytes."""
    import pyarrow.compute as pc  # here, since it takes longer to load than pixels that are decoded already

    for column in _batches(file, _image_column(file, _parquet(file).schema_arrow)):
        yield (pc.struct_field(column, "bytes") if pa.types.is_struct(column.type) else column).to_pylist()


def _decode(
    data: bytes | None, where: str, first: tuple[tuple[int, int], str] | None, declared: str | None = None
) -> tuple[Array, tuple[tuple[int, int], str]]:
    if data is None:
        raise DataError(
            f"{where}: no image bytes",
            why="the row holds only a path, or nothing",
            fix="write the bytes of the image files into the parquet file",
            code="missing-image-bytes",
        )
    with opened(data, where) as (image, mode):
        if first is None:
            first = image.size, declared or mode
        if image.size != first[0]:  # before decoding, since a file may claim any size
            raise DataError(
                f"{where}: the image is {_by(image.size)}, but the images before it are {_by(first[0])}",
                why="all images of a data set must have the same size",
                fix="resize all images to one size before writing the parquet files",
                code="mixed-image-sizes",
            )
        if (mode, first[1]) == ("RGB", "L") and declared is None:
            raise DataError(
                f"{where}: a colour image follows grey images",
                why="all images of a data set must have the same number of channels",
                fix="convert all images to grey, or all to RGB",
                code="mixed-pixel-formats",
            )
        return channels_last(image, first[1]), first


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


# ---- files


def _data_folder(path: str | Path, allow_download: bool = False) -> Path:
    """The folder that holds train*.parquet: the path itself, or its only subfolder that does."""
    root = _root(path, allow_download)
    places = [root, *sorted(child for child in root.iterdir() if child.is_dir())]
    holding = [place for place in places if any(place.glob("train*.parquet"))]
    if not holding:
        raise DataError(
            f"{root} has no training file",
            why="there is no train*.parquet in it, nor in a folder inside it",
            fix="name the training file train.parquet or train-00000-of-00001.parquet",
            code="missing-train-split",
        )
    if len(holding) > 1 and holding[0] != root:
        raise DataError(
            f"{root} holds several data sets: {', '.join(place.name for place in holding)}",
            why="a run uses one data set",
            fix="give the path of one of them",
            code="several-data-sets",
        )
    return holding[0]


def _shards(place: Path, split: str) -> list[Path]:
    """The files of one split in order; refused if one is missing."""
    files = sorted(place.glob(f"{split}*.parquet"))
    if not files:
        raise DataError(
            f"{place} has no {split} file",
            why=f"there is no {split}*.parquet beside the training files",
            fix="add one; sordino does not make a test set out of the training images by itself",
            code=f"missing-{split}-split",
        )
    numbered = [m for file in files if (m := re.search(r"-(\d+)-of-(\d+)\.parquet$", file.name))]
    expected = max((int(m[2]) for m in numbered), default=0)
    if numbered and {int(m[1]) for m in numbered} != set(range(expected)):
        raise DataError(
            f"{place} has {len(numbered)} of {expected} {split} files",
            why="the numbers in the file names have gaps",
            fix="complete the download",
            code="missing-shard",
        )
    return files


def _root(path: str | Path, allow_download: bool) -> Path:
    root = Path(path).expanduser()
    if root.is_dir():
        return root
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", str(path)):
        raise DataError(
            f"there is no directory {path}",
            fix="give a directory that holds train*.parquet and test*.parquet",
            code="missing-directory",
        )
    if not allow_download:
        raise DataError(
            f"there is no directory {path}",
            why="it could be the id of a data set on the hub, but downloads are off",
            fix="give a local directory, or set data.download=true and run: pip install 'sordino[hub]'",
            code="download-not-allowed",
        )
    with extra("hub", f"cannot download {path}", "missing-hub-extra", DataError):
        from huggingface_hub import snapshot_download
    try:
        return Path(snapshot_download(str(path), repo_type="dataset", allow_patterns=["*.parquet"]))
    except (OSError, ValueError) as error:  # the hub's errors derive from these
        raise DataError(
            f"cannot download {path}",
            why=str(error),
            fix="check the id and your connection, or give a local directory",
            code="download-failed",
        ) from error


# ---- parquet


def _parquet(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise _corrupt(file, error) from error


def _batches(file: Path, column: str) -> Iterator[pa.Array]:
    batches = _parquet(file).iter_batches(_BATCH, columns=[column])
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            raise _corrupt(file, error) from error
        if batch is None:
            return
        yield batch.column(0)


def _corrupt(file: Path, error: Exception) -> DataError:
    return DataError(
        f"{file} is not a readable parquet file",
        why=str(error),
        fix="download or write the file again",
        code="corrupt-parquet",
    )


def _label_column(file: Path, schema: pa.Schema, label: str | None) -> str:
    integers = [field.name for field in schema if pa.types.is_integer(field.type)]
    named: list[str] = [name for name in integers if name in ((label,) if label else LABEL_NAMES)]
    wanted = named if named or label else integers
    if len(wanted) != 1:
        raise DataError(
            f"{file}: {'several' if wanted else 'no'} label columns{f' named {label}' if label else ''}",
            why=f"its integer columns are: {', '.join(integers) or 'none'}",
            fix="name the label column with data.label",
            code="several-label-columns" if wanted else "no-label-column",
        )
    return wanted[0]


def _names(file: Path, label: str | None) -> tuple[str, ...]:
    """Class names, if the file says what its label codes mean, as the hub's files do; () if it does not, or if they are
    garbled.
    """
    schema = _parquet(file).schema_arrow
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        names = features[_label_column(file, schema, label)]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()
    is_names = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
    return tuple(names) if is_names else ()


def _image_column(file: Path, schema: pa.Schema) -> str:
    def is_image(kind: pa.DataType) -> bool:
        if pa.types.is_struct(kind):
            return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    images: list[str] = [field.name for field in schema if is_image(field.type)]
    if len(images) != 1:
        raise DataError(
            f"{file}: {len(images)} columns could be the images: {', '.join(images) or 'none'}",
            why=f"its columns are: {', '.join(schema.names)}; an image column is binary, or a struct with a field "
            "bytes",
            fix="keep exactly one image column",
            code="no-single-image-column",
        )
    return images[0]
