"""Carrier of messages (see `message`) from the server to its sites, and of the answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self, TypeAlias

from sordino.errors import SordinoError

Writes: TypeAlias = Callable[[], bytes]  # makes the bytes of a message, whenever one is handed out


class Arrived(NamedTuple):
    """The answer to one message."""

    ticket: int
    letter: bytes


class Carrier(ABC):
    """Delivers messages to sites and brings back answers, which may come late, out of order or twice. An unanswered
    message is delivered again as soon as its site can be reached; users of a carrier ignore duplicates.
    """

    starts_anew = False  # true: every message meets a process that remembers no other, so each begins with `Begin`

    @abstractmethod
    def peers(self) -> frozenset[str]:
        """The names of the sites that can be reached now."""

    @abstractmethod
    def send(self, to: str, letter: Writes) -> int:
        """Queues a message; returns a ticket for its answer. A site gets one message after another."""

    @abstractmethod
    def came(self, seconds: float) -> Sequence[Arrived]:
        """Answers that have arrived; waits at most `seconds` for the first one. Raises an error where a site is gone
        for good and the run cannot go on without it.
        """

    @abstractmethod
    def cancel(self, ticket: int) -> None:
        """Cancels a message: its answer is not waited for any more, and it need not be delivered."""

    @property
    @abstractmethod
    def who(self) -> Sequence[str]:
        """The names of all sites, whether they can be reached or not."""

    def rate(self, peer: str) -> float | None:
        """Measured speed of a site's connection in bytes per second; None where too few bytes were carried to tell."""
        return None

    def shut_out(self) -> frozenset[str]:
        """Sites that may not connect: not on the list of allowed sites, or revoked."""
        return frozenset()

    def given_up(self, peer: str, seconds: float) -> SordinoError | None:
        """Error that ends a run whose site has been silent for `seconds`; None where the run waits on."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop carrying messages; nothing to do in this class."""
        return
