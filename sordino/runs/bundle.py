"""model.json, stored beside model.safetensors: all that it takes to use the model, without the data and without this
library.

Its content (columns, levels, classes, numbers to scale by) is public where the data's schema and the agreement are.
Where rows decided it, in a run with real noise, no epsilon covers the file, and it lies in the private folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from pydantic import model_validator
from safetensors import SafetensorError
from torch import nn

from sordino import user_code
from sordino.accounting.facts import FORMAT, Fact, Format, parsed, text_of
from sordino.data.schema import Column, TextColumn, TokenColumn
from sordino.errors import ConfigError, RunError
from sordino.ledger.files import atomic_write
from sordino.metrics.evaluation import taught_way
from sordino.planning import MOST
from sordino.receipts import private, seal
from sordino.receipts.folder import RunFolder
from sordino.runs.listing import newest
from sordino.tasks.architecture import Architecture
from sordino.types import Params

if TYPE_CHECKING:
    from sordino.runs.setup import PhaseSetup

AGAIN = "`sordino resume` writes it again where the run and its data are"


class InputColumn(Fact):
    """One input column of the model. A number outside its range is clipped to the nearer end; each level is an input of
    its own, 1 or 0.
    """

    name: str
    kind: Literal["number", "levels", "boolean", "text"]
    range: tuple[float, float] | None = None
    levels: tuple[str, ...] = ()
    other: str | None = None  # the level that unknown values count as
    missing: str | None = None  # the value that fills a gap, as written in a file; None: a gap is refused
    # of a text: an input for each of its first words, 0 behind the last; where `levels` lists words, 2 for the first
    # of them and 1 for any other word; else 1 + the first 8 bytes of blake2b, little end first, modulo `buckets`
    length: int = 0
    buckets: int = 0
    tokenizer: str = ""  # "bytes", or the content of a tokenizer.json: an input is then 1 + the number of a token

    @property
    def column(self) -> Column:
        if self.tokenizer:
            return TokenColumn(self.kind, missing=self.missing, length=self.length, tokenizer=self.tokenizer)
        if self.kind == "text":
            return TextColumn(
                self.kind, words=self.levels, missing=self.missing, length=self.length, buckets=self.buckets
            )
        low, high = self.range or (-math.inf, math.inf)
        return Column(self.kind, low, high, self.levels, self.other, missing=self.missing)


class BundledInputs(Fact):
    """Shape, columns and scaling of the network's inputs: (value - mean) / deviation; image values are divided by 255
    first.
    """

    kind: Literal["image", "table"]
    shape: tuple[int, ...]  # images: height, width, channels
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    columns: tuple[InputColumn, ...] = ()  # of a table, in the order of its inputs
    resized: bool = False  # were images brought to this size?


class Bundle(Fact):
    """Content of model.json: the network's architecture, inputs, scaling and classes, with which a trained model is
    used without the data.
    """

    format: Format
    task: Literal["classification", "regression", "counts", "multi_label", "next_token"]
    settings: Mapping[str, Any] = {}  # of the task, as the experiment declared them
    weights: str  # the file of the weights
    model: Architecture
    inputs: BundledInputs
    classes: tuple[str, ...] = ()  # in the order of the outputs; outputs beyond them are an algorithm's own
    label: str | None = None  # the column that is predicted
    personalised: bool = False  # do clients make this model their own before they use it?
    way: str | None = None  # and how, from their own examples alone: by finetune or proto

    @model_validator(mode="after")
    def _possible(self) -> Bundle:
        shape, wide = self.inputs.shape, sum(feature.column.width for feature in self.inputs.columns)
        sizes = (1, shape[-1], math.prod(shape)) if shape else ()
        if not shape or min(shape) < 1 or math.prod(shape) > MOST:
            raise ValueError(f"shape is {list(shape)}")
        if len(self.inputs.mean) not in sizes or len(self.inputs.deviation) != len(self.inputs.mean):
            raise ValueError("mean and deviation do not belong to examples of this shape")
        if self.inputs.columns and (wide,) != shape:
            raise ValueError(f"the columns give {wide} inputs, and the shape says {list(shape)}")
        if not len(self.classes) <= self.model.outputs <= MOST or (self.task == "classification") != bool(self.classes):
            raise ValueError("there are more classes than outputs, or none")
        read = [feature.column for feature in self.inputs.columns]
        known = [one.vocabulary for one in read if isinstance(one, TokenColumn)]  # fails where it is no tokenizer
        if self.task == "next_token" and known not in ([], [self.model.outputs]):
            raise ValueError(f"a text has {known} different tokens, and the model predicts {self.model.outputs}")
        return self


def described(setup: PhaseSetup, columns: Mapping[str, Column]) -> Bundle | None:
    """Content of model.json for a run; None for the quadratic test task, whose model predicts nothing."""
    experiment, public = setup.experiment, setup.public
    if experiment.data.source == "quadratic":
        return None
    anonymous = public.named != public.classes or bool(experiment.partition.get("anonymous", False))
    return Bundle(
        format=FORMAT,
        task=experiment.task["name"],
        settings={key: value for key, value in experiment.task.items() if key != "name"},
        weights=RunFolder(Path()).model_file.name,
        model=setup.whole.architecture,
        inputs=BundledInputs(
            kind=public.kind,
            shape=public.shape,
            mean=public.mean,
            deviation=public.std,
            columns=tuple(
                _feature(name, column).beside(missing=column.missing if experiment.data.missing == "fill" else None)
                for name, column in columns.items()
            ),
            resized=experiment.data.source == "folder" or experiment.data.side is not None,
        ),
        classes=tuple(map(str, range(public.named))) if anonymous else public.class_names,
        label=experiment.data.label,
        personalised=bool(setup.ways),
        way=taught_way(setup.algorithm, experiment.evaluation.personal),
    )


def _feature(name: str, column: Column) -> InputColumn:
    if isinstance(column, TokenColumn):
        return InputColumn(name=name, kind="text", length=column.length, tokenizer=column.tokenizer)
    if isinstance(column, TextColumn):
        return InputColumn(name=name, kind="text", levels=column.words, length=column.length, buckets=column.buckets)
    made = InputColumn(name=name, kind=column.kind, levels=column.words, other=column.other)  # type: ignore[arg-type]
    return (
        made.beside(range=(column.low, column.high)) if math.isfinite(column.high) and column.kind == "number" else made
    )


def write(folder: Path, setup: PhaseSetup, model: Params, columns: Mapping[str, Column]) -> None:
    """Write model.safetensors with every tensor of the network and, where the model predicts, model.json: into the
    private folder where protected rows decided its content.
    """
    from safetensors.torch import save

    files = RunFolder(folder)
    whole = {name: value.cpu().contiguous().clone() for name, value in setup.task.state_dict(model).items()}
    atomic_write(files.model_file, save(whole))
    if (manifest := described(setup, columns)) is None:
        return
    text = json.dumps(manifest.to_json(), indent=2).encode()
    if kept_private(setup):
        private.write(RunFolder(files.private).description_file, text)
    else:
        atomic_write(files.description_file, text)


def kept_private(setup: PhaseSetup) -> bool:
    """True where protected rows decided the content of model.json, so that it is written to the private folder only."""
    return bool(setup.public.void)


# using a bundle ----------------------------------------------------------------------------------------------------


def read(folder: Path) -> Bundle:
    """Read model.json of a run folder, or of a folder that holds model.json and model.safetensors alone. Where a
    receipt lies beside them, they must be the files of the receipt.
    """
    files = RunFolder(folder)
    if not files.model_file.is_file():
        files.check()
        raise no_model(folder)
    place = next((f for f in (files, RunFolder(files.private)) if f.description_file.is_file()), None)
    if place is None:
        raise RunError(
            f"{folder} has weights, but no {files.description_file.name} that describes their use",
            why="the run learns no classes, or the file lies in a private folder elsewhere",
            fix=AGAIN,
            code="no-bundle",
        )
    text = text_of(place.description_file, AGAIN)
    if files.receipt_file.is_file():
        _check_sealed(folder)
    return parsed(place.description_file, text, Bundle, AGAIN)


def no_model(folder: Path) -> RunError:
    return RunError(
        f"{folder} has no model yet",
        why="it is written when a run ends or is stopped",
        fix=f"`sordino resume {quote(str(folder))}` finishes the run and writes it",
        code="no-model",
    )


def _check_sealed(folder: Path) -> None:
    files = RunFolder(folder)
    names = tuple(file.name for file in (files.model_file, files.description_file))
    newest(files)  # an unreadable file is reported as unreadable
    if changed := [line for line in seal.wrong(folder, seal.claimed(folder)) if line.startswith(names)]:
        raise RunError(
            f"the model in {folder} is not the one that the run has written",
            why="; ".join(changed),
            fix="put the file back from a copy; "
            f"`sordino privacy verify {quote(str(folder))}` says what else was changed",
            code="edited-bundle",
        )


def loaded(folder: Path, bundle: Bundle, code: bool) -> nn.Module:
    """The network with its weights. A user's own model class is imported, which runs its file, with `code` only."""
    from safetensors.torch import load_file

    built, file = bundle.model, RunFolder(folder).model_file
    if built.is_own and not code and not user_code.is_lent(built.name):
        raise ConfigError(
            f"the model is {built.name}, a user's own class",
            why="building it imports its file, which runs the code in it",
            fix="if you trust that file, say --with-code (in Python with_code=True)",
            code="own-model-needs-code",
        )
    net = built.built(0)
    try:
        net.load_state_dict(load_file(file), strict=True)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise RunError(
            f"the weights in {file} do not fit the model {built.name}",
            why=str(error).partition("\n")[0][:300],
            fix="use the class and the options that the run was made with, and the file that it has written",
            code="weights-do-not-fit",
        ) from None
    return net


def columns_of(bundle: Bundle) -> dict[str, Column]:
    return {feature.name: feature.column for feature in bundle.inputs.columns}
