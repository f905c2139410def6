"""A run may prepare before it trains: a sequence of algorithms that hand over server state.

Phases before the last one prepare. They share what a client keeps, so that one can ask for what another has left behind; the training begins with fresh clients. A
phase has rounds of its own, messages and ledger entries, and may say whom it asks (`asks`) and what of the broadcast each of them gets (`told`). What training hands
to everybody before its first round (`handed`) goes down once; a client makes of it, once, what it puts beside its own examples (`equip`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from sordino.errors import ConfigError
from sordino.keys import Key
from sordino.types import Examples, Params, Task


class Given(Protocol):
    """What a server has beside a model: its own data, and what is public of the clients. Client code never asks for it."""

    @property
    def task(self) -> Task: ...
    @property
    def key(self) -> Key: ...
    @property
    def sizes(self) -> Sequence[int]: ...  # of the clients
    @property
    def probe(self) -> Examples | None: ...  # labelled examples to rank models with
    @property
    def tested(self) -> Examples: ...  # what results are measured on
    @property
    def source(self) -> Any: ...  # of candidates; None where there is none
    @property
    def candidates(self) -> Examples | None: ...
    @property
    def story(self) -> Mapping[str, Any] | None: ...  # of candidates that were drawn in this process


class Phase(Protocol):
    """What a phase of the preparation has beside an algorithm's methods. It may also have `warns() -> list[str]`, notes for the user, and
    `tables(state) -> Mapping[str, Sequence[Mapping[str, Any]]]`, what the server found, by name: for people to read."""

    @property
    def name(self) -> str: ...
    @property
    def rounds(self) -> int: ...  # at most
    def begin(self, task: Task, key: Key, before: Any) -> Any: ...  # its server state, from that of the phase before
    def over(self, s: Any) -> bool: ...
    def check(self) -> None: ...  # refuses, before anything starts, what could not work


class Handing(Protocol):
    """What a training has that follows a preparation, or hands something out."""

    def begin(self, task: Task, key: Key, before: Any) -> Any: ...
    def handed(self, before: Any) -> Params: ...
    def equip(self, task: Task, handed: Mapping[str, Tensor], size: int, key: Key) -> Examples: ...


@dataclass(frozen=True)
class Phased:
    preparation: tuple[Any, ...]
    training: Any
    shares: tuple[float, ...] = ()  # of a privacy budget, for each phase of the preparation; the training has the rest

    def __post_init__(self) -> None:
        if self.shares and not (min(self.shares) > 0 and sum(self.shares) < 1):
            raise ConfigError(
                f"a preparation of {len(self.shares)} phases with {' and '.join(f'{share:g}' for share in self.shares)} of the budget",
                why="each phase needs a part of it, and so does the training",
                fix="algorithm.share = 0.2",
                code="shares-out-of-range",
            )

    @property
    def read(self) -> Any:
        """How its training looks at examples."""
        return self.training.read

    @property
    def uplink(self) -> Any:
        return self.training.uplink
