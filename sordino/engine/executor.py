"""Clients of a round, wherever they are: in this process, in others, on other machines; and their answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from sordino.accounting.events import Json
from sordino.engine.channels import SumAtSites
from sordino.privacy.uplink import Summed
from sordino.tree import Tree
from sordino.types import Params, Terms

Scores = dict[int, list[float]]  # of each client: the means of its metrics, way after way of model after model


@dataclass(frozen=True)
class Answers:
    """Answers to one round, as they are computed or come in."""

    uploads: Iterable[tuple[int, Tree] | Summed] = ()  # by rising client, trees or messages; some of them added up
    sum: SumAtSites | None = None  # in place of uploads: a secure sum, played where the clients are


@dataclass(frozen=True)
class Tally:
    """Uploads of a round that came in time: from whom, and their size."""

    answered: list[int]
    size: int  # bytes of all uploads
    payload: int  # of one upload, without its envelope
    secure: Json = field(default_factory=dict)  # what an encrypted or masked sum cost


class Clients(ABC):
    """Clients as a round needs them."""

    repeats = False  # asked for a round again, do they send what they have sent, and pay no second time?

    @abstractmethod
    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Answers:
        """Round t of every client named in `terms`."""

    def gather(self) -> None:  # noqa: B027 (a default, not a hole)
        """Waits before a round until enough clients can be reached. Those of one machine always can."""

    def away(self, client: int) -> bool:
        """True where this client is known not to answer."""
        return False


class Executor(Clients):
    """The clients of a whole run, as the server sees them. Nothing here has a default: a state that is not kept is
    lost.
    """

    @abstractmethod
    def score(self, t: int, models: Sequence[Params], ways: Sequence[str]) -> Scores:
        """Scores of models on each client's own test examples. Nothing is released by it."""

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
