"""agreement.json: the public numbers that a plan follows from. With it, and without any data, everybody can recompute
what a run promised.

It holds what the parties must agree on anyway: how many clients there are and how many examples each has, what an
example looks like, how many numbers an upload has. `dataset` is a digest of all examples under a key that stays with
the data: it tells two data sets apart, and nobody without the key can try out which row is in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Literal

from pydantic import model_validator

from sordino.accounting.facts import FORMAT, Fact, Format, parsed
from sordino.errors import damaged
from sordino.ledger.files import atomic_write

FILE = "agreement.json"
PUT_BACK = "it is written when a run begins: put it back from a copy"

MOST, MOST_CLIENTS = 10**9, 10**7  # of anything that is counted here


@dataclass(frozen=True)
class PublicNumbers:
    """What everybody may know of the clients' data: rules, plans and models follow from it. No row is in it."""

    kind: Literal["image", "table"]
    shape: tuple[int, ...]
    classes: int  # of the data
    named: int  # as the clients call them
    sizes: Sequence[int]  # training examples of each client; ones, where these are nobody's business
    mean: tuple[float, ...] = ()  # what inputs are scaled by: needed where a model is, and in no file
    std: tuple[float, ...] = ()
    assumed: tuple[str, ...] = ()  # what the numbers rest on, because of how the data were read
    void: tuple[str, ...] = ()  # why nothing that is claimed holds
    note: str = ""  # said beside every result
    names: tuple[str, ...] = ()  # of the classes
    clients: tuple[str, ...] = ()  # the names of the clients, where they have names that may be told

    @cached_property
    def largest(self) -> int:
        """The size of the largest client."""
        return max(self.sizes)

    def called(self, client: int) -> str:
        """The name of a client, or its number."""
        return self.clients[client] if self.clients else str(client)

    @property
    def class_names(self) -> tuple[str, ...]:
        """One for each class: its number where `names` does not say."""
        return self.names if len(self.names) == self.classes else tuple(map(str, range(self.classes)))

    @property
    def called_classes(self) -> tuple[str, ...]:
        """The same, as the clients call them: numbers where they have numbers of their own."""
        return self.class_names if self.named == self.classes else tuple(map(str, range(self.named)))


class Agreed(Fact):
    """agreement.json"""

    format: Format
    dataset: str
    kind: Literal["image", "table"]
    shape: tuple[int, ...]
    classes: int
    named: int
    sizes: tuple[tuple[int, int], ...]
    coordinates: Mapping[str, int]
    assumed: tuple[str, ...]
    void: tuple[str, ...]
    note: str
    names: tuple[str, ...]
    clients: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _possible(self) -> Agreed:
        if not self.shape or min(self.shape) < 1 or math.prod(self.shape) > MOST:
            raise ValueError(f"shape is {list(self.shape)}")
        if not all(1 <= size <= MOST and many >= 1 for size, many in self.sizes):
            raise ValueError("sizes are no pairs of a size and how many clients have it")
        if not 1 <= sum(many for _, many in self.sizes) <= MOST_CLIENTS:
            raise ValueError(f"sizes are of no client, or of more than {MOST_CLIENTS:,}")
        if not all(0 <= many <= MOST for many in (self.classes, self.named, *self.coordinates.values())):
            raise ValueError("a count is negative, or it is too large")
        if self.clients and len(set(self.clients)) != sum(many for _, many in self.sizes):
            raise ValueError("there is not one name for each client")
        return self


@dataclass(frozen=True)
class Agreement:
    """The public numbers of a run, as they stand in its folder."""

    dataset: str  # keyed digest
    public: PublicNumbers
    coordinates: Mapping[str, int]  # of an upload, by phase; the training's name is ""

    @property
    def told(self) -> Agreed:
        """What the file says."""
        known = self.public
        return Agreed(
            format=FORMAT,
            dataset=self.dataset,
            kind=known.kind,
            shape=known.shape,
            classes=known.classes,
            named=known.named,
            sizes=tuple(_packed(known.sizes)),
            coordinates=self.coordinates,
            assumed=known.assumed,
            void=known.void,
            note=known.note,
            names=known.names,
            clients=known.clients,
        )

    def write(self, folder: Path) -> None:
        atomic_write(folder / FILE, json.dumps(self.told.to_json()).encode())

    def says(self, other: Agreement) -> bool:
        """Are both the same in all that a file holds, but for the digest of the data?"""
        return replace(self, dataset="").told == replace(other, dataset="").told

    @classmethod
    def read(cls, folder: Path) -> Agreement:
        path = folder / FILE
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise damaged(path, error, PUT_BACK) from None
        told = parsed(path, text, Agreed, PUT_BACK)
        # what inputs are scaled by is not told: a model that stands here only for its shape is given constants
        wide = told.shape[-1]
        mean, std = ((0.5,) * wide, (0.5,) * wide) if told.kind == "image" else ((0.0,) * wide, (1.0,) * wide)
        public = PublicNumbers(
            kind=told.kind,
            shape=told.shape,
            classes=told.classes,
            named=told.named,
            sizes=_unpacked(told.sizes),
            mean=mean,
            std=std,
            assumed=told.assumed,
            void=told.void,
            note=told.note,
            names=told.names,
            clients=told.clients,
        )
        return cls(told.dataset, public, told.coordinates)


def of_an_upload(coordinates: Mapping[str, int], phase: str) -> int:
    """The agreed numbers in one upload of a phase."""
    if phase not in coordinates:
        raise damaged(Path(FILE), f"it has no number of coordinates for the phase {phase!r}", PUT_BACK)
    return coordinates[phase]


def _packed(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """As (size, how many in a row): a million equal clients are one pair."""
    return ((size, sum(1 for _ in alike)) for size, alike in groupby(sizes))


def _unpacked(packed: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(size for size, count in packed for _ in range(count))
