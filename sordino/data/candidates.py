"""Candidates: labelled images from a public source, which hold no data of any client.

Their sources are in `synthesis`, an optional part of the package.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from sordino.accounting.events import Json
from sordino.data.dataset import Array, Split
from sordino.errors import COUNT, ConfigError, check_range

DISCLOSED = "class_names_disclosed_to"  # in a manifest: hosts of chat servers, told what the task is about


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
        """A remark on the source that stands beside every result; "" for a real text-to-image model."""
        ...

    @property
    def pool(self) -> float:
        """The share of the training set that is held back for this source, as `Wanted.pool`."""
        ...

    def build(self, wanted: Wanted) -> Candidates: ...


def need(kept: bool, field: str, must: str) -> None:
    """Raises an error unless `kept` is True: the setting `field` of [candidates] must be as `must` says."""
    if not kept:
        raise ConfigError(f"[candidates] {field} must {must}", code="out-of-range")


def cache_folder(given: str | None) -> Path:
    """The cache folder: the given one, else one beside the decoded images if SORDINO_CACHE is set, else one in the
    user's cache folder.
    """
    if given is not None:
        return Path(given).expanduser()
    own = os.environ.get("SORDINO_CACHE")
    return Path(own or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sordino") / "candidates"
