"""[data] of an experiment."""

from __future__ import annotations

import warnings
from typing import Annotated, Any, Literal

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator

from sordino import user_code
from sordino.config.section import Section

# fixed: by public numbers; channel: by mean and deviation of each channel (of a table: column); pixel: of each pixel;
# none: not at all
Scale = Literal["fixed", "channel", "pixel", "none"]
Encoding = Literal["utf-8", "utf-16", "cp1250", "cp1252", "latin-1", "iso-8859-15"]

# pydantic warns that the field `schema` hides a method of its own, which is deprecated and which nothing here calls
warnings.filterwarnings("ignore", r'Field name "schema" in "Data" shadows', UserWarning)


def _or_own(source: Any, known: ValidatorFunctionWrapHandler) -> Any:
    """A known word, or the name of a class."""
    return source if isinstance(source, str) and user_code.is_own(source) else known(source)


class Data(Section):
    # where the examples come from (`sordino data list` says what each source needs); module:Class: from your own class
    source: Annotated[
        Literal["digits", "images", "folder", "tabular", "quadratic", "synthetic"], WrapValidator(_or_own)
    ] = "digits"
    # a file or a folder; of tables also a pattern like "clinics/*.csv" or a list of files; of images also the id of a
    # data set on the hub
    path: str | list[str] | None = None
    label: str | None = None  # of a table: the column to predict
    group: str | None = None  # of a table: the column that names the client
    # of a table: the column that names the row; the seed and this name alone decide whether the row is held back
    key: str | None = None
    schema: str | None = None  # type: ignore[assignment]  # of a table: the file that says what columns hold, or "learned"
    # of a table: between cells; none: as the first line shows
    separator: Literal[",", ";", "\t", "|"] | None = None
    # of a table: the decimal mark; none: a comma beside semicolons
    decimal: Literal[".", ","] | None = None
    # of a table: how letters are written; none: as the first line shows
    encoding: Encoding | None = None
    # of a table: what becomes of a row that lacks a value; fill: it gets what the schema declares for the column
    missing: Literal["refuse", "drop", "fill"] = "refuse"
    # of images: the names of all classes, in the order of their numbers; none: learned from all images, which claims
    # nothing about a row where the noise is real
    classes: list[str] | None = Field(default=None, min_length=2)
    # of images: have they colours? Each is made so; none: as the images show, which claims nothing either
    colours: bool | None = None
    download: bool = False  # allow downloads from the hub (needs the extra `hub`)
    # the share of examples held back for testing where the source has no test set: 0.2, of synthetic devices 0.1
    test_fraction: float | None = None
    # of images: put training and test images together; then each client holds back `test_fraction` of its own
    merge: bool = False
    standardise: Scale | None = None  # fixed: to [-1, 1]; else by mean and deviation; none: fixed if ranges are known
    augment: Literal["none", "crop_flip"] = "none"  # of images: shift (4 pixels) and mirror at random
    side: int | None = None  # of images: resize each to this width and height in pixels; folders: 32 by default
    fraction: float = 1.0  # of folders: the share of every class that is used, but at least `at_least` images
    at_least: int = 20  # of folders: the fewest images of a class that are used, whatever `fraction` is
    train: int | None = None  # use only this number of training examples, in the proportions of the classes
    test: int | None = None  # use only this number of test examples
    # labelled examples of each class that the server keeps before clients get theirs: a number, or a share below 1
    probe: int | float | None = None
    clients: int | None = None  # of quadratics: number of clients (10 by default); of synthetic devices: 30
    dim: int = 10  # of quadratics: number of dimensions
    heterogeneity: float = 1.0  # of quadratics: how much clients differ
    alpha: float = 1.0  # of synthetic devices: how much the true models of clients differ
    beta: float = 1.0  # of synthetic devices: how much their inputs differ
    iid: bool = False  # of synthetic devices: all clients are alike
    # of a source of your own: the arguments of its class
    options: dict[str, Any] = Field(default={})
    largest: int | None = None  # of synthetic devices: the most examples that a client has
