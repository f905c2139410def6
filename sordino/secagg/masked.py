"""Sums of masked uploads: the words of a round, and a whole round in one process for a simulation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.engine.channels import Opened, Uploads
from sordino.errors import SecAggAborted
from sordino.privacy.uplink.layout import Ints, Layout
from sordino.privacy.uplink.secure_stages import Aggregated
from sordino.secagg.secagg import Aggregator, Session, run_round


def needs(stage: Aggregated) -> None:
    """Nothing but this branch."""


@dataclass(frozen=True)
class MaskedWords:
    """How the integers of one round become words under masks: server and clients come to the same."""

    stage: Aggregated
    layout: Layout
    among: int  # clients that begin the round

    def session(self, run: str, t: int, size: int, model: bytes) -> Session:
        """`model`: the digest of what goes down."""
        self.layout.check(self.among)
        return Session(run, t, size, self.layout.width, self._top, self.stage.least(self.among), model)

    def server(self, run: str, t: int, size: int, model: bytes) -> Aggregator:
        return Aggregator(self.session(run, t, size, model))

    def words(self, values: Ints) -> Ints:
        return values + self._top // 2

    def integers(self, words: NDArray[np.uint64], count: int) -> Ints:
        """The sum of so many uploads."""
        return words.astype(np.int64) - count * (self._top // 2)

    @property
    def too_few(self) -> str:
        """Why such a round is not even begun; nothing where it is."""
        least = self.stage.least(self.among)
        return "" if self.among >= least else f"{self.among} clients began the round, {least} must stay to its end"

    @property
    def _top(self) -> int:
        # more than an upload has bits for: its share of noise may be outside
        return ((1 << self.layout.width) - 1) // max(1, self.among)


class Masks:
    """The server opens the sum of those who stayed."""

    def __init__(self, stage: Aggregated, layout: Layout, run: str) -> None:
        self._stage, self._layout, self._run = stage, layout, run

    def sum(self, t: int, uploads: Uploads, cohort: Sequence[int], size: int, noise: Ints | None) -> Opened:
        beyond, nothing, masked = 0, np.zeros(size, np.int64), MaskedWords(self._stage, self._layout, len(cohort))

        def words() -> Iterator[tuple[int, Ints]]:
            nonlocal beyond
            for k, values in uploads:
                beyond += self._layout.at_the_end(values)
                yield k, masked.words(values)

        if masked.too_few:
            return Opened(nothing, [], 0, 0, {}, 0, masked.too_few)
        # all halves are played here on one model: what tells it apart from others is the run and the round
        model = hashlib.sha256(f"{self._run}/{t}".encode()).digest()
        try:
            found = run_round(masked.session(self._run, t, size, model), cohort, words())
        except SecAggAborted as error:
            return Opened(nothing, [], 0, 0, {}, beyond, f"{error.what}: {error.why}")
        total = masked.integers(found.sum, len(found.survivors))
        up = list(found.bytes_up.values())
        return Opened(total, sorted(found.survivors), sum(up), max(up), dict(found.seconds), beyond)


channel = Masks
