"""The server's half of one phase of a run: rules, its own data, its books and how it reaches the clients. In a
simulation everybody's rows lie beside it; between sites there is nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

from sordino.data.schema import Column
from sordino.engine.checkpoint import Loaded
from sordino.engine.executor import Executor
from sordino.engine.server import Federation
from sordino.metrics.evaluation import Score
from sordino.metrics.rows import Scores
from sordino.planning.agreement import Agreement
from sordino.runs.server_data import ServerData
from sordino.runs.setup import Setup
from sordino.tree import Tree
from sordino.types import Params


class Begun(NamedTuple):
    """Start of a phase for its clients: their states in a checkpoint of this phase or of the one before."""

    place: Path
    loaded: Loaded


@dataclass(frozen=True)
class ServersHalf(ABC):
    """The server's half of a phase, beside the run's folder."""

    setup: Setup
    home: ServerData

    @property
    @abstractmethod
    def dataset(self) -> str:
        """The digest that stands for the data."""

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, Column]:
        """Columns of a table's features, for users of the model."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks for whoever holds the data, and for nobody else: they are read off the rows. Between sites each
        is told its own.
        """
        return ()

    @abstractmethod
    def at(self, stage: int) -> Self:
        """Another phase of the same run."""

    @abstractmethod
    def evaluation(self) -> Callable[[int, Tree, Score], Scores]:
        """The evaluation after a round, on the test examples that there are."""

    @abstractmethod
    def executor(
        self, folder: Path, place: Path, run: str, begun: Begun | None, handed: Params | None, stack: ExitStack
    ) -> Executor:
        """The clients of this phase, standing where they stopped; the stack ends them."""

    @cached_property
    def preparation(self) -> tuple[Self, ...]:
        """The phases before the training."""
        return tuple(self.at(i) for i in range(len(self.setup.preparation)))

    def agreement(self) -> Agreement:
        """The public part: what server and sites agree on."""
        return self.setup.whole.agreement(self.dataset)

    def federation(self, ledger: Path | str, run: str) -> Federation:
        """The server's side, on its ledger."""
        return self.setup.federation(self.home, self.dataset, ledger, run)
