"""A run may prepare before it trains: a sequence of algorithms that hand over server state.

Phases before the last one prepare. They share what a client keeps, so that one can ask for what another has left
behind; the training begins with fresh clients. A phase has rounds of its own, messages and ledger entries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeAlias

from sordino.algorithms.algorithm import Algorithm, AnyAlgorithm
from sordino.errors import ConfigError
from sordino.privacy.uplink import Uplink
from sordino.types import C, D, Reader, S, U


class Phase(Algorithm[S, C, D, U], ABC):
    """An algorithm that prepares a training: it has a name of its own, and an end."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in the ledger, in tables and in folders."""

    @property
    @abstractmethod
    def rounds(self) -> int:
        """The largest number of its rounds."""

    @abstractmethod
    def over(self, s: S) -> bool:
        """Has it found what it prepares?"""

    def result(self, s: S) -> Any:
        """What the next phase, or the training, begins from."""
        return s


AnyPhase: TypeAlias = Phase[Any, Any, Any, Any]


@dataclass(frozen=True)
class Phased:
    """A training and the phases in front of it."""

    preparation: tuple[AnyPhase, ...]
    training: AnyAlgorithm
    shares: tuple[float, ...] = ()  # of a privacy budget, for each phase of the preparation; the training has the rest

    def __post_init__(self) -> None:
        if self.shares and not (min(self.shares) > 0 and sum(self.shares) < 1):
            parts = " and ".join(f"{share:g}" for share in self.shares)
            raise ConfigError(
                f"a preparation of {len(self.shares)} phases with {parts} of the budget",
                why="each phase needs a part of it, and so does the training",
                fix="algorithm.share = 0.2",
                code="shares-out-of-range",
            )

    @property
    def read(self) -> Reader:
        """Gate 1 of the training."""
        return self.training.read

    @property
    def uplink(self) -> Uplink:
        """Gate 2 of the training."""
        return self.training.uplink
