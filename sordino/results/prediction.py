"""Predictions of a trained model for new examples: classes with probabilities, or numbers.

Only model.json and model.safetensors are read: neither the data nor the ledger of the run need be there.
"""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino import config, user_code
from sordino.config import build
from sordino.errors import ConfigError, DataError, extra
from sordino.metrics import Scores
from sordino.metrics.evaluation import Evaluator
from sordino.metrics.scores import scored
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.open import Open
from sordino.results import frame
from sordino.runs import bundle as bundles
from sordino.runs.bundle import Bundle
from sordino.tasks import PROBLEMS, Problem
from sordino.tasks.language import LanguageModel
from sordino.tasks.network import InputSettings
from sordino.tasks.personalise import WAYS, NearestMean, Shared
from sordino.tasks.supervised import Classification, Supervised
from sordino.types import Examples, Grant

if TYPE_CHECKING:
    import pandas

    from sordino.data.new_rows import NewRows

PERSONALISED = (
    "in training, every client personalises this model before it uses it; this is the model that the server sends out"
)

KEPT = "a client personalises it with a state kept over the rounds, which is in no file of the run"
TELLS = "its answers reveal something about them, and no epsilon covers that"
EXACT = "the score is an exact answer about these rows, and no epsilon covers it, even if they were trained on"


@dataclass(frozen=True, eq=False)
class Predicted(ABC):
    """Predictions of a model: one row for each example, in their order."""

    names: tuple[str, ...]  # the number of a row from 1 on, or the file of an image
    notes: tuple[str, ...]

    @property
    @abstractmethod
    def rows(self) -> Iterator[dict[str, str | float]]:
        """Output of each example, by column."""

    @property
    @abstractmethod
    def columns(self) -> list[str]:
        """Names of the columns of `rows`."""

    @property
    @abstractmethod
    def scored(self) -> Scores | None:
        """Scores of the predictions; None where no score was asked for."""

    @property
    def described(self) -> dict[str, Any]:
        """Scores of the predictions as JSON; empty where no score was asked for."""
        return {} if self.scored is None else self.scored.to_json()

    def lines(self) -> Iterator[str]:
        """Lines of text that state the scores; none without a score."""
        found = self.scored
        if found is None or found.headline is None:
            return
        judged, value = found.headline
        direction = "" if judged.name == "accuracy" else f" ({judged.better})"
        yield f"{judged.in_words(value)}{direction} of {len(self)} rows"
        if judged.name != "accuracy" and found.constant is not None:
            yield f"{judged.constant}: {judged.shown(found.constant)}"
        yield from (f"{words} {number:.4f}" for words, number in found.scores)

    def to_frame(self) -> pandas.DataFrame:
        """The rows as a data frame (extra `frames`)."""
        return frame(list(self.rows), instead="`.rows`")

    def to_csv(self) -> str:
        """The rows as CSV text."""
        out = io.StringIO()
        writer = csv.DictWriter(out, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return out.getvalue()

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, eq=False)
class Prediction(Predicted):
    """Predicted class of each example, and the probability of every class."""

    classes: tuple[str, ...]
    probabilities: NDArray[np.float32]  # [examples, classes]
    truth: tuple[str, ...] | None = None  # the class of each, where a score was asked for

    @cached_property
    def labels(self) -> list[str]:
        """The most probable class of each example."""
        return [self.classes[place] for place in self.probabilities.argmax(1).tolist()]

    @cached_property
    def accuracy(self) -> float | None:
        """The share of examples whose predicted class is right; None where no score was asked for."""
        if self.truth is None:
            return None
        return sum(a == b for a, b in zip(self.labels, self.truth, strict=True)) / len(self.truth)

    @cached_property
    def scores(self) -> dict[str, Any]:
        """Scores beside accuracy: auroc, f1, calibration_error, and confusion, the counts by true class (rows) and
        predicted class; empty without labels.
        """
        if self.truth is None:
            return {}
        place = {name: at for at, name in enumerate(self.classes)}
        return scored(Classification.scores, self.probabilities, np.array([place[name] for name in self.truth]))

    @property
    def scored(self) -> Scores | None:
        return None if self.truth is None else Scores(accuracy=self.accuracy, **self.scores)

    @property
    def described(self) -> dict[str, Any]:
        found = {} if self.truth is None else {"accuracy": self.accuracy, **self.scores}
        return {"classes": self.classes, **found}

    def lines(self) -> Iterator[str]:
        yield from super().lines()
        for name, counts in zip(self.classes, self.scores.get("confusion", ()), strict=False):
            each = zip(self.classes, counts, strict=True)
            told_as = ", ".join(f"{other}: {count}" for other, count in each if count)
            yield f"of class {name}, predicted as {told_as or 'nothing: no row has it'}"

    @property
    def columns(self) -> list[str]:
        return ["row", "predicted", *(f"p_{name}" for name in self.classes)]

    @property
    def rows(self) -> Iterator[dict[str, str | float]]:
        for name, label, each in zip(self.names, self.labels, self.probabilities.tolist(), strict=True):
            yield {"row": name, "predicted": label, **{f"p_{k}": p for k, p in zip(self.classes, each, strict=True)}}


@dataclass(frozen=True, eq=False)
class PredictedNumbers(Predicted):
    """Predicted number of each example, in the unit of the label."""

    values: NDArray[np.float64]
    scored: Scores | None = None

    columns = ["row", "predicted"]  # noqa: RUF012 (a constant)

    @property
    def rows(self) -> Iterator[dict[str, str | float]]:
        return ({"row": n, "predicted": v} for n, v in zip(self.names, self.values.tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class PredictedLabels(Predicted):
    """Predicted labels of each example, and the probability of each label."""

    labels: tuple[str, ...]
    probabilities: NDArray[np.float64]  # [examples, labels]
    scored: Scores | None = None

    @property
    def columns(self) -> list[str]:
        return ["row", *self.labels, *(f"p_{name}" for name in self.labels)]

    @property
    def described(self) -> dict[str, Any]:
        return {"labels": self.labels, **super().described}

    @property
    def rows(self) -> Iterator[dict[str, str | float]]:
        for name, each in zip(self.names, self.probabilities.tolist(), strict=True):
            has = {label: int(p > 0.5) for label, p in zip(self.labels, each, strict=True)}
            yield {"row": name, **has, **{f"p_{label}": p for label, p in zip(self.labels, each, strict=True)}}


def predict(
    folder: Path,
    rows: object,
    score: bool = False,
    with_code: bool = False,
    own: object = None,
    encoding: str | None = None,
) -> Predicted:
    """Predict new examples with the model of a run. `rows`: a file or folder, or rows in memory; `score`: compare with
    the labels in them; `with_code`: import a model's own class, which runs its file; `own`: labelled rows of a client,
    on which the model is personalised first; `encoding`: of the text in files.
    """
    bundle = bundles.read(folder)
    if encoding is not None:
        config.validate({"data": {"source": "tabular", "encoding": encoding}})  # refuses what is none
    with user_code.blamed():
        problem = build({"name": bundle.task, **bundle.settings}, dict(PROBLEMS), "task")
        task = _task(folder, bundle, problem, with_code)
        found = _read(bundle, problem, rows, score, encoding)
        _check_truth(found, bundle)
        model: Shared | NearestMean = Shared(task, task.init(0))
        notes: tuple[str, ...] = (PERSONALISED,) if bundle.personalised else ()
        if own is not None:
            model, notes = _own_model(bundle, problem, task, own, encoding)
        notes = (*notes, *found.remarks, *[EXACT] * score)
        x = torch.from_numpy(found.x)
        language = isinstance(task, LanguageModel)  # of a text no answer is known but how likely it is
        answers = task.score(model.params, Examples(x, x))["loss"] if language else model.answers(x)
        y = np.zeros(len(x), np.int64) if language and score else found.y
        judged = None if y is None else Evaluator(task, Examples(x, torch.from_numpy(y)), ())(model.params)
    if problem.columns:
        return PredictedLabels(found.names, notes, problem.columns, answers.numpy(), judged)
    if problem.outcome is not None:
        return PredictedNumbers(found.names, notes, answers.numpy(), judged)
    return Prediction(found.names, notes, bundle.classes, answers.float().numpy(), found.truth)


def _own_model(
    bundle: Bundle, problem: Problem, task: Supervised, own: object, encoding: str | None
) -> tuple[Shared | NearestMean, tuple[str, ...]]:
    """Personalise the model on a client's rows, as in the run, from these rows alone."""
    if bundle.way is None:
        raise ConfigError(
            "no personal model can be made from rows alone",
            why=KEPT if bundle.personalised else "the clients of this run use the shared model as it is",
            fix='leave the own rows out, or train with evaluation.personal = ["finetune"] (or "proto")',
            code="not-personalised",
        )
    held = _read(bundle, problem, own, True, encoding)
    _check_truth(held, bundle)
    place = {name: at for at, name in enumerate(bundle.classes)}
    y = np.array([place[name] for name in held.truth]) if held.truth is not None else held.y
    examples = Examples(torch.from_numpy(held.x), torch.from_numpy(np.asarray(y)))
    shard = Open().open(examples, Grant(0, len(examples.y), len(examples.y), Counter(0)), task)
    remark = f"the model was made its client's own ({bundle.way}) from {len(examples.y)} rows: {TELLS}"
    return WAYS[bundle.way](task, task.init(0), shard), (remark,)


def _task(folder: Path, bundle: Bundle, problem: Problem, code: bool) -> Supervised:
    given = bundle.inputs
    inputs = InputSettings(
        name=bundle.model.name,
        shape=given.shape,
        mean=given.mean,
        std=given.deviation,
        image=given.kind == "image",
        keeps=True,
    )
    return problem.built(bundles.loaded(folder, bundle, code), inputs, None, bundle.classes)


def _read(bundle: Bundle, problem: Problem, rows: object, score: bool, encoding: str | None) -> NewRows:
    with extra("data", "new examples", "missing-data-extra", DataError):
        from sordino.data import new_rows
    inputs, named = bundle.inputs, problem.columns
    if named is None:
        named = () if bundle.label is None else (bundle.label,)
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
    if score and not named and problem.columns is None:
        raise DataError(
            "a score needs the column that is predicted",
            why="the run names none",
            fix="leave the score out",
            code="no-label-column",
        )
    columns, labels = bundles.columns_of(bundle), named if score else ()
    if path is None:
        return new_rows.given(rows, columns, labels, problem.outcome)
    return new_rows.table(path, columns, labels, problem.outcome, encoding)


def _ready(x: NDArray[np.generic], bundle: Bundle) -> tuple[NDArray[np.generic], tuple[str, ...]]:
    """An array of unscaled values in the type that the model takes, and the row numbers; refused where its type or
    shape does not fit.
    """
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
                f"row {name}: {label!r} is not a class of this model",
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
