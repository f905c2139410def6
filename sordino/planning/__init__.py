"""Planning of a run: settings and public numbers become plans, prices, claims and privacy accounts. No data are read.

The server, every site and anyone who verifies a receipt compute the same plan.

agreement.json: the public numbers from which a plan is computed. With it anybody can recompute what a run guarantees,
without any data.

It holds what the parties must agree on anyway: how many clients there are and how many examples each has, what an
example looks like, how many numbers an upload has. `dataset` is a digest of all examples under a key that stays with
the data: it distinguishes data sets, and nobody without the key can test whether a row is in one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, PlainSerializer, PlainValidator, StrictInt, TypeAdapter, ValidationInfo, model_validator

from sordino.accounting.facts import Fact, Format, parsed, text_of
from sordino.ledger.files import atomic_write

AGREEMENT_FILE = "agreement.json"
PUT_BACK = "it is written when a run begins: put it back from a copy"

MOST, MOST_CLIENTS = 10**9, 10**7  # largest value of each count here, and of the number of clients


class AboutData(Fact, extra="forbid"):
    """Public facts about the form of one example: kind, shape and classes."""

    kind: Literal["image", "table"]
    shape: tuple[Annotated[int, Field(ge=1, le=MOST)], ...] = Field(min_length=1)
    classes: int = Field(ge=0, le=MOST)  # in the data
    named: int = Field(ge=0, le=MOST)  # number of classes as the clients name them
    names: tuple[str, ...] = ()  # of the classes
    rows_per_key: int = Field(default=1, ge=1, le=MOST)  # largest number of rows of one person
    assumed: tuple[str, ...] = ()  # assumptions of these numbers, from how the data were read
    void: tuple[str, ...] = ()  # why no claim holds, if that is so

    @property
    def about(self) -> dict[str, Any]:
        """The fields of `AboutData` alone, without those of a subclass."""
        return {name: getattr(self, name) for name in AboutData.model_fields}

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if math.prod(self.shape) > MOST:
            raise ValueError(f"shape is {list(self.shape)}")
        return self


def _packed(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Sizes as pairs (size, number of clients in a row with it): a million equal clients are one pair."""
    return [(size, sum(1 for _ in alike)) for size, alike in groupby(sizes)]


def _unpacked(value: Any, info: ValidationInfo) -> Sequence[int]:
    if info.mode != "json":
        return cast(Sequence[int], value)
    pairs = _PAIRS.validate_python(value)
    if not all(1 <= size <= MOST and many >= 1 for size, many in pairs):
        raise ValueError("sizes are no pairs of a size and how many clients have it")
    if not 1 <= sum(many for _, many in pairs) <= MOST_CLIENTS:
        raise ValueError(f"sizes are of no client, or of more than {MOST_CLIENTS:,}")
    return tuple(size for size, many in pairs for _ in range(many))


_PAIRS: TypeAdapter[list[tuple[StrictInt, StrictInt]]] = TypeAdapter(list[tuple[StrictInt, StrictInt]])


class PublicNumbers(AboutData):
    """Public numbers of the clients' data, such as their sizes and the shape of an example, from which plans and models
    follow. No row is in them."""

    # training examples of each client; all 1 where these numbers are not public
    sizes: Annotated[Sequence[int], PlainValidator(_unpacked), PlainSerializer(_packed)]
    mean: tuple[float, ...] = Field(default=(), exclude=True)  # what inputs are scaled by: in no file
    std: tuple[float, ...] = Field(default=(), exclude=True)
    note: str = ""  # shown with every result
    clients: tuple[str, ...] = ()  # names of the clients, where they have names that may be shown

    @model_validator(mode="after")
    def _sound(self, info: ValidationInfo) -> Self:
        if info.mode == "json" and (self.mean or self.std):
            raise ValueError("what inputs are scaled by is told in no file")
        if self.clients and not len(set(self.clients)) == len(self.clients) == len(self.sizes):
            raise ValueError("there is not one name for each client")
        return self

    @property
    def largest(self) -> int:
        """The size of the largest client."""
        return max(self.sizes)

    def called(self, client: int) -> str:
        """The name of a client; its number where it has no name, or a message names nobody."""
        return self.clients[client] if 0 <= client < len(self.clients) else str(client)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The name of each class; its number where `names` does not name every class."""
        return self.names if len(self.names) == self.classes else tuple(map(str, range(self.classes)))

    @property
    def called_classes(self) -> tuple[str, ...]:
        """Names of the classes as the clients know them: numbers, where clients number their classes by themselves."""
        return self.class_names if self.named == self.classes else tuple(map(str, range(self.named)))


class Agreement(Fact, extra="forbid"):
    """The public numbers from which a run is planned, as agreement.json in its folder holds them."""

    format: Format
    dataset: str  # keyed digest
    public: PublicNumbers
    coordinates: Mapping[str, Annotated[int, Field(ge=0, le=MOST)]]  # of an upload, by phase; the training's is ""

    def write(self, folder: Path) -> None:
        atomic_write(folder / AGREEMENT_FILE, json.dumps(self.to_json()).encode())

    def says(self, other: Agreement) -> bool:
        """True where both agreements are equal, except for the digest of the data."""
        return self.beside(dataset="").to_json() == other.beside(dataset="").to_json()

    @classmethod
    def read(cls, folder: Path) -> Agreement:
        path = folder / AGREEMENT_FILE
        agreement = parsed(path, text_of(path, PUT_BACK), Agreement, PUT_BACK)
        # scaling is not in the file: the model is needed for its shape alone, so constants do
        wide, image = agreement.public.shape[-1], agreement.public.kind == "image"
        mean, std = ((0.5,) * wide, (0.5,) * wide) if image else ((0.0,) * wide, (1.0,) * wide)
        return agreement.beside(public=agreement.public.beside(mean=mean, std=std))
