"""Clients of a round, wherever they are: in this process, in others, on other machines; and their answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from sordino.accounting.events import Json
from sordino.privacy.uplink import Summed
from sordino.privacy.uplink.channels import SumAtSites
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
    """Uploads of a round that came in time: which clients answered, and how many bytes."""

    answered: list[int]
    size: int  # bytes of all uploads
    payload: int  # of one upload, without its envelope
    secure: Json = field(default_factory=dict)  # what an encrypted or masked sum cost


class Clients(ABC):
    """Interface of the clients of a round."""

    repeats = False  # true: asked for a round again, they resend what they have sent, and pay no second time

    @abstractmethod
    def __call__(self, t: int, down: Tree, terms: Mapping[int, Terms]) -> Answers:
        """Answers of every client named in `terms` to round t; `down`: the broadcast."""

    def gather(self) -> None:  # noqa: B027 (a default, not a hole)
        """Waits before a round until enough clients can be reached. Those of one machine always can."""

    def away(self, client: int) -> bool:
        """True where this client is known not to answer."""
        return False


class Executor(Clients):
    """Interface of the clients of a whole run. Scoring, saving and restoring have no default: a state that is not saved
    is lost.
    """

    @abstractmethod
    def score(self, t: int, models: Sequence[Params], ways: Sequence[str]) -> Scores:
        """Scores of models on each client's own test examples. No noise covers them; a site sends them only if it
        shares scores.
        """

    @abstractmethod
    def keep(self, step: int) -> Mapping[str, Tree]:
        """Saves the clients' states of this step durably, except for those that it returns, which go into the server's
        own checkpoint.
        """

    @abstractmethod
    def restore(self, step: int, place: Path) -> None:
        """Resets the clients to the states that they saved at `step` in the folder `place`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tells the clients that the run has ended; by default nothing is to be done."""
        return
