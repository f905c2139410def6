"""agreement.json: the public numbers that a plan follows from. With it, and without any data, everybody can recompute
what a run promised.

It holds what the parties must agree on anyway: how many clients there are and how many examples each has, what an
example looks like, how many numbers an upload has. `dataset` is a digest of all examples under a key that stays with
the data: it tells two data sets apart, and nobody without the key can try out which row is in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from sordino.data.dataset import Dataset, Split
from sordino.engine.checkpoint import atomic_write
from sordino.errors import damaged
from sordino.runs.shapes import Agreed, parsed

FILE = "agreement.json"
FORMAT = 1
PUT_BACK = "it is written when a run begins: put it back from a copy"


@dataclass(frozen=True)
class Agreement:
    dataset: str  # keyed digest
    kind: str
    shape: tuple[int, ...]
    classes: int  # of the data
    named: int  # as the clients call them
    sizes: tuple[int, ...]  # training examples of each client; ones, where these are nobody's business
    coordinates: Mapping[str, int]  # of an upload, by phase; the training's name is ""
    assumed: tuple[str, ...] = ()  # what the numbers rest on, because of how the data were read
    void: tuple[str, ...] = ()  # why nothing that is claimed holds
    note: str = ""  # said beside every result
    names: tuple[str, ...] = field(default=())  # of the classes

    @property
    def clients(self) -> int:
        return len(self.sizes)

    def of_an_upload(self, phase: str) -> int:
        if phase not in self.coordinates:
            raise damaged(Path(FILE), f"it has no number of coordinates for the phase {phase!r}", PUT_BACK)
        return self.coordinates[phase]

    def write(self, folder: Path) -> None:
        told = {"format": FORMAT, **asdict(self), "sizes": _packed(self.sizes)}
        atomic_write(folder / FILE, json.dumps(told).encode())

    @classmethod
    def read(cls, folder: Path) -> Agreement:
        path = folder / FILE
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise damaged(path, str(error), PUT_BACK) from None
        told = dict(parsed(path, text, Agreed, PUT_BACK))
        del told["format"]
        return cls(**told | {"sizes": _unpacked(told["sizes"])})

    def blank(self) -> Dataset:
        """A data set of this kind without any row."""
        images = self.kind == "image"
        x = np.zeros((0, *self.shape), np.uint8 if images else np.float32)
        split, wide = Split(x, np.zeros(0, np.int64)), self.shape[-1]
        scale = ((0.5,) * wide, (0.5,) * wide) if images else ((0.0,) * wide, (1.0,) * wide)
        return Dataset(
            "agreed", "image" if images else "table", self.classes, split, split, *scale, self.note, self.names
        )


def _packed(sizes: tuple[int, ...]) -> list[list[int]]:
    """As (size, how many in a row): a million equal clients are one pair."""
    packed: list[list[int]] = []
    for size in sizes:
        if packed and packed[-1][0] == size:
            packed[-1][1] += 1
        else:
            packed.append([size, 1])
    return packed


def _unpacked(packed: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(size for size, count in packed for _ in range(count))
