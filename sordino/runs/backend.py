"""Backend of one phase of a run: the server's rules, data and ledger, and how it reaches the clients. `Simulation` has
the rows of all clients beside it; `sites.sites_backend` has connections to sites, and no client's rows."""

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
from sordino.engine.server import FederatedServer
from sordino.metrics.evaluation import Score
from sordino.metrics.rows import Scores
from sordino.planning.agreement import Agreement
from sordino.runs.server_data import ServerData
from sordino.runs.setup import Setup
from sordino.tree import Tree
from sordino.types import Params


class Begun(NamedTuple):
    """Clients' states at the start of a phase: in a checkpoint of this phase or of the one before."""

    place: Path
    loaded: Loaded


@dataclass(frozen=True)
class Backend(ABC):
    """Backend of a phase: where its clients are and how they are reached, apart from the run's folder."""

    setup: Setup
    home: ServerData

    @property
    @abstractmethod
    def dataset(self) -> str:
        """The digest that identifies the data."""

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, Column]:
        """Columns of a table's features, for users of the model."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks for the holder of the data alone: they are read off the rows. Between sites each site gets its
        own.
        """
        return ()

    @abstractmethod
    def at(self, stage: int) -> Self:
        """Backend of phase number `stage` of the same run."""

    @abstractmethod
    def evaluation(self) -> Callable[[int, Tree, Score], Scores]:
        """The function that evaluates models after a round, on the test examples at hand."""

    @abstractmethod
    def executor(
        self, folder: Path, place: Path, run: str, begun: Begun | None, handed: Params | None, stack: ExitStack
    ) -> Executor:
        """Executor of this phase's clients, from the states in which they stopped; closing `stack` ends it."""

    @cached_property
    def preparation(self) -> tuple[Self, ...]:
        """The phases before the training."""
        return tuple(self.at(i) for i in range(len(self.setup.preparation)))

    def agreement(self) -> Agreement:
        """The public agreement between server and sites."""
        return self.setup.whole.agreement(self.dataset)

    def federation(self, ledger: Path | str, run: str) -> FederatedServer:
        """The server's side, on its ledger."""
        return self.setup.federation(self.home, self.dataset, ledger, run)
