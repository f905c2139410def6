"""What a trained model says of new examples: a class for each, and how probable every class is to the model. Only the
run's bundle is read, so that neither its data nor its ledger need be there.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino import user_code
from sordino.data import missing_extra
from sordino.errors import DataError
from sordino.evaluate.scores import SCORES, scored
from sordino.results.frames import frame
from sordino.runs import bundle as bundles
from sordino.runs.bundle import Bundle
from sordino.tasks.classification import Classification

if TYPE_CHECKING:
    import pandas

    from sordino.data.new_rows import NewRows

AT_ONCE = 512  # rows
PERSONALISED = (
    "in training, every client makes this model its own before it uses it; this is the model that the server hands out"
)


@dataclass(frozen=True, eq=False)
class Prediction:
    """One row for each example, in their order."""

    names: tuple[str, ...]  # the number of a row from 1 on, or the file of an image
    classes: tuple[str, ...]
    probabilities: NDArray[np.float32]  # [examples, classes]
    truth: tuple[str, ...] | None = None  # the class of each, where a score was asked for
    notes: tuple[str, ...] = ()

    @cached_property
    def labels(self) -> list[str]:
        """The most probable class of each."""
        return [self.classes[place] for place in self.probabilities.argmax(1).tolist()]

    @cached_property
    def accuracy(self) -> float | None:
        """The share of examples whose class was found; None where nobody asked for a score."""
        if self.truth is None:
            return None
        return sum(a == b for a, b in zip(self.labels, self.truth, strict=True)) / len(self.truth)

    @cached_property
    def scores(self) -> dict[str, Any]:
        """What stands beside accuracy: auroc, f1, calibration_error, and confusion, the counts by true class (rows) and
        predicted class; nothing where no truth is known."""
        if self.truth is None:
            return {}
        place = {name: at for at, name in enumerate(self.classes)}
        return scored(tuple(SCORES), self.probabilities, np.array([place[name] for name in self.truth]))

    @property
    def rows(self) -> Iterator[dict[str, str | float]]:
        for name, label, each in zip(self.names, self.labels, self.probabilities.tolist(), strict=True):
            yield {"row": name, "predicted": label, **{f"p_{k}": p for k, p in zip(self.classes, each, strict=True)}}

    def to_frame(self) -> pandas.DataFrame:
        """The same as a data frame (extra `frames`)."""
        return frame(list(self.rows), instead="`.labels` and `.probabilities`")

    def to_csv(self) -> str:
        """The same as text: row, predicted, and one column p_CLASS for each class."""
        out = io.StringIO()
        writer = csv.DictWriter(out, ["row", "predicted", *(f"p_{name}" for name in self.classes)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return out.getvalue()

    def __len__(self) -> int:
        return len(self.names)


def predict(folder: Path, rows: object, score: bool = False, with_code: bool = False) -> Prediction:
    """`rows`: a file or folder, or rows in memory; `score`: their classes are known and compared; `with_code`: a class
    of somebody's own may be imported."""
    bundle = bundles.read(folder)
    with user_code.blamed():
        task = _task(folder, bundle, with_code)
        found = _read(bundle, rows, score)
        _check_truth(found, bundle)
        params, x = task.init(0), torch.from_numpy(found.x)
        logits = torch.cat([task.predict(params, part) for part in torch.split(x, AT_ONCE)])
    probabilities = logits[:, : len(bundle.classes)].softmax(1).numpy()
    notes = (PERSONALISED,) if bundle.personalised else ()
    return Prediction(found.names, bundle.classes, probabilities, found.truth, notes)


def _task(folder: Path, bundle: Bundle, code: bool) -> Classification:
    inputs = bundle.inputs
    return Classification(
        bundles.loaded(folder, bundle, code),
        name=bundle.model.name,
        shape=inputs.shape,
        mean=inputs.mean,
        std=inputs.deviation,
        image=inputs.kind == "image",
        labels=len(bundle.classes),
        keeps=True,
    )


def _read(bundle: Bundle, rows: object, score: bool) -> NewRows:
    try:
        from sordino.data import new_rows
    except ModuleNotFoundError as error:
        raise missing_extra("tabular" if bundle.inputs.kind == "table" else "images", error) from None
    inputs, label = bundle.inputs, bundle.label if score else None
    if isinstance(rows, np.ndarray | torch.Tensor) and not score:
        return new_rows.NewRows(*_ready(np.asarray(rows), bundle))
    path = Path(rows).expanduser() if isinstance(rows, str | Path) else None
    if inputs.kind == "image":
        if path is None:
            raise _not(rows, "a folder of images, an image, a parquet file, or an array of pixels")
        return new_rows.pictures(path, inputs.shape, inputs.resized, bundle.classes, bundle.label, score)
    if not inputs.columns:
        raise DataError(
            "the model's columns have no names",
            why="its training data were no table with a header, or sites that declared no schema",
            fix="from Python, give an array [examples, inputs] with the inputs in their order",
            code="nameless-columns",
        )
    if score and label is None:
        raise DataError(
            "a score needs the column that is predicted",
            why="the run names none",
            fix="leave the score out",
            code="no-label-column",
        )
    columns = bundles.columns_of(bundle)
    return new_rows.given(rows, columns, label) if path is None else new_rows.table(path, columns, label)


def _ready(x: NDArray[np.generic], bundle: Bundle) -> tuple[NDArray[np.generic], tuple[str, ...]]:
    """An array as it is used: raw, not scaled."""
    shape, kind = bundle.inputs.shape, np.uint8 if bundle.inputs.kind == "image" else np.float32
    if x.shape[1:] != shape or not len(x) or (kind is np.uint8 and x.dtype != kind) or x.dtype.kind not in "biuf":
        raise DataError(
            f"the rows are an array of {x.dtype} {list(x.shape)}",
            why=f"the model takes {np.dtype(kind).name} [examples, {', '.join(map(str, shape))}], before any scaling",
            fix="give such an array",
            code="rows-do-not-fit",
        )
    return np.ascontiguousarray(x, kind), tuple(str(at) for at in range(1, len(x) + 1))


def _check_truth(found: NewRows, bundle: Bundle) -> None:
    for name, label in zip(found.names, found.truth or (), strict=False):
        if label not in bundle.classes:
            raise DataError(
                f"row {name}: {label!r} is no class of this model",
                why=f"its classes are {', '.join(bundle.classes)}",
                fix="correct the row, or ask for no score",
                code="unknown-class",
            )


def _not(rows: object, wanted: str) -> DataError:
    return DataError(
        f"the rows are a {type(rows).__name__}",
        why=f"the model takes {wanted}",
        fix="give one of these",
        code="rows-do-not-fit",
    )
