"""New examples for a trained model: rows of a table, or images, read by the same schema as in training. An example that
does not fit is refused with its position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sordino.data import images
from sordino.data.cells import texts, whole, without_gaps
from sordino.data.columns import Owners, as_declared, remarks, unknown_values
from sordino.data.dataset import Array, area
from sordino.data.folders import SUFFIXES
from sordino.data.frames import as_arrow
from sordino.data.image_files import channels_last, opened
from sordino.data.label_kinds import LabelKind
from sordino.data.schema import Column
from sordino.data.table_files import GivenDialect, TableFile, TableRows, read
from sordino.errors import DataError

FIX = "correct or remove the row"


class NewRows(NamedTuple):
    """Raw examples in the form that training used."""

    x: Array
    names: tuple[str, ...]  # the number of a row, or the file of an image
    truth: tuple[str, ...] | None = None  # its class, where that was asked for
    y: Array | None = None  # its label, where that is no class
    remarks: tuple[str, ...] = ()  # on values that training has not known, either


# of a table -----------------------------------------------------------------------------------------------------------


def table(
    file: Path,
    columns: Mapping[str, Column],
    labels: Sequence[str] = (),
    outcome: LabelKind | None = None,
    encoding: str | None = None,
) -> NewRows:
    """Rows of a file. `columns`: the model's features; other columns are ignored, except `labels`, which are classes
    unless `outcome` is another kind. `encoding`: text encoding, if the first line does not show it.
    """
    numbers = [*_numbers(columns), *(() if outcome is None else labels)]
    return rows_of(read(file, (*columns, *labels), GivenDialect(encoding=encoding), numbers), columns, labels, outcome)


def given(
    rows: object, columns: Mapping[str, Column], labels: Sequence[str] = (), outcome: LabelKind | None = None
) -> NewRows:
    """Rows in memory: a list of dictionaries, a dictionary of columns, a data frame, or an arrow table."""
    where = Path("the rows")
    try:
        listed = isinstance(rows, Sequence) and not isinstance(rows, str | bytes)
        found = pa.Table.from_pylist(rows) if listed else as_arrow(rows)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"{where} cannot be read",
            why=str(error),
            fix="give a list of dictionaries, a dictionary of columns, or a data frame; each column of one type",
            code="unreadable-rows",
        ) from None
    return rows_of(TableRows(found, (TableFile(where, found.num_rows, None),), True), columns, labels, outcome)


def rows_of(
    found: TableRows, columns: Mapping[str, Column], labels: Sequence[str], outcome: LabelKind | None = None
) -> NewRows:
    asked = [*columns, *labels]
    present = found.table.column_names
    if missing := [name for name in asked if name not in present]:
        raise DataError(
            f"{found.name} lacks {', '.join(missing)}",
            why=f"the model was trained with these columns; here are: {', '.join(present) or 'none'}",
            fix="add them, spelled in the same way" + (", or ask for no score" if {*missing} <= {*labels} else ""),
            code="missing-column",
        )
    fill = {name: column.missing for name, column in columns.items() if column.missing is not None}
    held = without_gaps(found, asked, "fill", fill, _numbers(columns), fix="fill in the value, or remove the row")
    features = {name: as_declared(held, name, column) for name, column in columns.items()}
    for name, column in columns.items():
        if column.kind == "levels" and (strange := features[name].unknown) is not None and strange.any():
            word, known = texts(held.columns[name])[at := int(np.argmax(strange))], ", ".join(column.words)
            raise held.unfit(name, word, at, f"is not a level that the model knows: {known}", FIX)
    owner = Owners(np.zeros(found.table.num_rows, np.int64), (found.name,), True)
    found_remarks = remarks(list(unknown_values(held, columns, features, ())), owner)
    names = tuple(str(at) for at in range(1, found.table.num_rows + 1))
    x = np.hstack([feature.values for feature in features.values()])
    if labels and outcome is not None:
        return NewRows(x, names, y=outcome.read(held, labels), remarks=found_remarks)
    truth = tuple(texts(whole(held.columns[labels[0]]))) if labels else None
    return NewRows(x, names, truth, remarks=found_remarks)


def _numbers(columns: Mapping[str, Column]) -> list[str]:
    return [name for name, column in columns.items() if column.kind == "number"]


# images ---------------------------------------------------------------------------------------------------------------


def pictures(
    path: Path, shape: tuple[int, ...], resize: bool, classes: Sequence[str], label: str | None, score: bool
) -> NewRows:
    """Images in a folder (of any depth), in one file, or in a parquet file. `resize`: resize them, as the training
    images were; `score`: also return the class of each, given by its folder, or by a number in a parquet file.
    """
    if path.suffix == ".parquet":
        encoded = [data for batch in images.encoded_batches(_there(path)) for data in batch]
        names = [str(at) for at in range(1, len(encoded) + 1)]
        codes = images.labels_of([path], label).tolist() if score else []
        truth = [classes[code] if code < len(classes) else str(code) for code in codes]
    else:
        files = _files(_there(path))
        encoded, names = [file.read_bytes() for file in files], [str(file.relative_to(path)) for file in files]
        names = [path.name] if path.is_file() else names
        truth = [file.parent.name for file in files]
    x = np.stack([_picture(data, name, shape, resize) for data, name in zip(encoded, names, strict=True)])
    return NewRows(x, tuple(names), tuple(truth) if score else None)


def _there(path: Path) -> Path:
    if not path.exists():
        raise DataError(f"there is no {path}", fix="check the path", code="missing-file")
    return path


def _files(path: Path) -> list[Path]:
    found: Iterable[Path] = [path] if path.is_file() else sorted(path.rglob("*"))
    files = [file for file in found if file.suffix.lower() in SUFFIXES and file.is_file()]
    if not files:
        raise DataError(
            f"{path} holds no images",
            why=f"image files end in {', '.join(SUFFIXES)}; a table of images is a parquet file",
            fix="give an image, a folder of images, or a parquet file",
            code="no-images",
        )
    return files


def _picture(data: bytes | None, name: str, shape: tuple[int, ...], resize: bool) -> Array:
    height, width, channels = shape
    with opened(data or b"", name) as (image, mode):
        if mode == "RGB" and channels == 1:
            raise DataError(
                f"{name}: a colour image",
                why="the model was trained with grey images",
                fix="convert it to grey",
                code="mixed-pixel-formats",
            )
        if image.size != (width, height) and not resize:
            raise DataError(
                f"{name}: the image is {image.size[0]}x{image.size[1]}",
                why=f"the model was trained with images of {width}x{height}, which were not resized",
                fix="resize it in the way in which the training images were made",
                code="mixed-image-sizes",
            )
        found = channels_last(image, "L" if channels == 1 else "RGB")
    return found if found.shape == shape else np.asarray(area(found[None], width)[0])
