"""Carrier of letters from the server to its sites, and of the answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple, Self, TypeAlias

from sordino.errors import SordinoError

Writes: TypeAlias = Callable[[], bytes]  # makes the bytes of a letter, whenever one is handed out


class Arrived(NamedTuple):
    """The answer to one letter."""

    ticket: int
    letter: bytes


class Carrier(ABC):
    """Brings letters to sites and answers back: late, in any order, or twice. A letter that is not answered it brings
    again, as soon as its site is there; what came twice, its users take once.
    """

    @abstractmethod
    def peers(self) -> frozenset[str]:
        """The names of the sites that can be reached now."""

    @abstractmethod
    def send(self, to: str, letter: Writes) -> int:
        """Takes a letter, and gives a ticket for its answer. A site gets one letter after another."""

    @abstractmethod
    def came(self, seconds: float) -> Sequence[Arrived]:
        """The answers that have come; waits for the first of them, and no longer than so many seconds. A site that is
        gone for good is an error where the run cannot go on without it.
        """

    @abstractmethod
    def cancel(self, ticket: int) -> None:
        """Cancels a letter: its answer is not waited for any more, and it need not be delivered."""

    @property
    @abstractmethod
    def who(self) -> Sequence[str]:
        """The names of all sites, whether they can be reached or not."""

    def rate(self, peer: str) -> float | None:
        """Bytes a second that the line of a site has carried; None where they were too few to tell."""
        return None

    def shut_out(self) -> frozenset[str]:
        """The sites that are not let in: on no list, or revoked."""
        return frozenset()

    def given_up(self, peer: str, seconds: float) -> SordinoError | None:
        """The error of a run whose site has been silent for so long; None where one waits on."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the carrier."""
        return
