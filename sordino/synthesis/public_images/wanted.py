"""What a source of candidates is asked for, and what it gives: labelled images without anything of any client."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from sordino.accounting.events import Json
from sordino.data.dataset import Array, Split
from sordino.errors import COUNT, ConfigError, check_range

PROXY = "proxy candidates - not text-to-image output"
DISCLOSED = "class_names_disclosed_to"  # in a manifest: hosts of chat servers, told what the task is about
PUBLIC = f"{PROXY}; uses labelled public data"


class Candidates(NamedTuple):
    x: Array  # uint8 [n, h, w, c]
    y: Array  # int64 [n]: the class that was asked for, which is not always the one that came
    manifest: Json


@dataclass(frozen=True)
class Wanted:
    classes: tuple[str, ...]
    per_class: int
    shape: tuple[int, int, int]  # height, width, channels
    key: int
    pool: Split | None = None  # labelled public images, held back from the training set before it was divided
    cache: Path | None = None  # where images that are dear to draw are kept
    network: bool = False  # whether anything may be asked of another machine

    def __post_init__(self) -> None:
        need(len(set(self.classes)) == len(self.classes) > 0, "classes", "have names, each of its own")
        check_range("candidates.per_class", self.per_class, COUNT, "out-of-range")
        need(self.shape[2] in (1, 3) and min(self.shape) >= 1, "shape", "be height, width and 1 or 3 channels")


class CandidateSource(Protocol):
    @property
    def label(self) -> str:
        """The words that stand beside every result; "" for a real text-to-image model."""
        ...

    @property
    def pool(self) -> float:
        """The share of the training set that the source needs as `Wanted.pool`."""
        ...

    def build(self, wanted: Wanted) -> Candidates: ...


def need(kept: bool, field: str, must: str) -> None:
    """Refuses a setting that is not what it must be."""
    if not kept:
        raise ConfigError(f"[candidates] {field} must {must}", code="out-of-range")


def spoken(name: str) -> str:
    """A class name as words: `pickup_truck` is a pickup truck."""
    return " ".join(name.replace("_", " ").split())


def gathered(source: str, label: str, wanted: Wanted, images: Sequence[Array], **more: object) -> Candidates:
    """The candidates from one array of images per class, with the manifest that every source writes."""
    counts = [len(of_class) for of_class in images]
    x = np.concatenate([np.asarray(of_class, np.uint8).reshape(-1, *wanted.shape) for of_class in images])
    y = np.repeat(np.arange(len(images), dtype=np.int64), counts)
    different = {(int(of), hashlib.sha256(image.tobytes()).digest()) for image, of in zip(x, y, strict=True)}
    manifest = {
        "source": source,
        "label": label,
        "model": None,
        "shape": list(wanted.shape),
        "wanted": wanted.per_class,
        "counts": dict(zip(wanted.classes, counts, strict=True)),
        "duplicates": len(x) - len(different),  # images that equal another one of their class to the last bit
        "blanks": 0,
        "prompts": {},
        "calls": 0,
        DISCLOSED: [],
        "made": len(x),
        "cached": 0,
        **more,
    }
    return Candidates(x, y, manifest)
