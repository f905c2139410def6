"""Who computes a round at the clients, wherever they are: in this process, in others, on other machines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from sordino.engine.channels import SumAtSites
from sordino.privacy.uplink import Summed
from sordino.tree import Tree
from sordino.types import Params, Terms

Scores = dict[int, list[float]]  # of each client: the means of its metrics, way after way of model after model


class Clients(ABC):
    """Whoever answers in a round: all that a round needs of the clients."""

    repeats = False  # asked for a round again, do they send what they have sent, and pay no second time?

    @abstractmethod
    def __call__(
        self, t: int, down: Tree, terms: Mapping[int, Terms]
    ) -> Iterable[tuple[int, Tree] | Summed] | Summed | SumAtSites:
        """Round t of every client named in `terms`: their answers in the order of their ids, as trees or as messages;
        or some of them, or all, already added up; or a secure sum that is opened elsewhere.
        """

    def gather(self) -> None:  # noqa: B027 (a default, not a hole)
        """Before a round: waits until enough clients can be reached. Those of one machine always can."""

    def away(self, client: int) -> bool:
        """Is it known that this client would not answer?"""
        return False


class Executor(Clients):
    """The clients of a whole run, as the server sees them. Nothing here has a default: a state that is not kept is
    lost.
    """

    @abstractmethod
    def score(self, t: int, models: Sequence[Params], ways: Sequence[str]) -> Scores:
        """How well each client's own test examples are met. Nothing is released by it."""

    @abstractmethod
    def keep(self, step: int) -> Mapping[str, Tree]:
        """Makes the clients' states of this step durable, but for those it returns: they go into the server's own
        checkpoint.
        """

    @abstractmethod
    def restore(self, step: int, place: Path) -> None:
        """Clients go on from the states that they kept, in this place, at that step."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The clients are told that it is over."""
        return
