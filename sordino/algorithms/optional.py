"""Optional sides of an algorithm, one mixin for each concern: `class Mine(FedAvg, PerClientMessages)`. A method that
needs none of them never meets them.

The engine asks a side `of(algorithm)`, which answers for every algorithm: by default with the side's own methods.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, TypeAlias

from sordino.keys import Key
from sordino.types import Examples, Params, S, Task

if TYPE_CHECKING:
    from torch import Tensor

    from sordino.accounting.events import Json
    from sordino.algorithms.algorithm import Algorithm


Asked: TypeAlias = Literal["batches", "episodes", "sums"]


class Known(NamedTuple):
    """Public facts before a run begins, known to the clients too."""

    shape: tuple[int, ...]  # of one example
    classes: int
    sizes: Sequence[int]  # examples of each client
    key: Key  # of the run


class Home(Protocol):
    """The server's own data, beside its state. Client processes never get them."""

    @property
    def task(self) -> Task:
        """The model and its losses."""

    @property
    def key(self) -> Key:
        """The key of the run."""

    @property
    def sizes(self) -> Sequence[int]:
        """Examples that each client has announced."""

    @property
    def probe(self) -> Examples | None:
        """Labelled examples to rank models with, where the server keeps some."""

    @property
    def tested(self) -> Examples:
        """The examples that results are measured on."""

    @property
    def candidates(self) -> Examples | None:
        """Public images that the server may choose from, where it has some."""

    @property
    def story(self) -> Json | None:
        """Manifest of the candidates, where this process made them."""


class OptionalSide:
    @classmethod
    def of(cls, algorithm: object) -> Self:
        """This side of an algorithm; the plain answers where it has none of its own."""
        return algorithm if isinstance(algorithm, cls) else cls()


class FitsData(OptionalSide):
    """A method that depends on the data, or refuses some."""

    def fitted(self, known: Known) -> Self:
        """This method for these data."""
        return self


class OwnLoss(OptionalSide):
    """A method that computes a loss from labels by itself, beside the task's or in its place."""

    @property
    def heads(self) -> int:
        """Outputs of the network for each class."""
        return 1

    @property
    def projection(self) -> int:
        """The width of a projection that is put into the network; 0 for none."""
        return 0


class OtherReads(OptionalSide):
    """A method whose `local` asks its shard for episodes or sums instead of batches."""

    wants: Asked = "batches"


class PerClientMessages(OptionalSide):
    """A method that sends every client a message of its own."""

    def per_client_message(self, down: Any, client: int) -> Any:
        """The part of the broadcast that this client gets."""
        return down


class RequestsClients(OptionalSide, metaclass=ABCMeta):
    """A method that chooses the clients of a round by itself."""

    @abstractmethod
    def requested_clients(self, s: Any) -> Sequence[int]:
        """The clients of the next round."""


class PublicTensors(OptionalSide):
    """A method that sends the same tensors to all clients once, before the first round."""

    def public_tensors(self, before: Any, home: Home) -> Params | None:
        """The tensors, from the last state of a preparation; None for nothing."""
        return None

    def public_examples(self, task: Task, tensors: Mapping[str, Tensor], size: int, key: Key) -> Examples | None:
        """Examples that a client of this size makes of the tensors, once; None for none."""
        return None


class FollowsPhase(OptionalSide, metaclass=ABCMeta):
    """A method that starts from what the phase before it has left."""

    @abstractmethod
    def begin(self, task: Task, key: Key, before: Any, home: Home) -> Any:
        """The server's first state, from the last state of the phase before."""


class ChecksServer(OptionalSide):
    """A method that needs something of the server's own data."""

    def check(self, home: Home) -> None:
        """Refuses, before anything starts, data that cannot work."""

    def warnings(self, home: Home) -> list[str]:
        """Warnings for the user, before anything starts."""
        return []


class Estimates(OptionalSide):
    """Public figures of a method, for forecasts and for attacks. By default nothing is known."""

    @property
    def step_size(self) -> float | None:
        """The length of a client's first step, per unit of gradient."""
        return None

    def passes(self, size: int) -> float | None:
        """Examples that a client of `size` examples computes in a round; a forward and a backward pass count 1, a
        forward pass alone a third.
        """
        return None

    def change(self, upload: Any) -> Params | None:
        """The change of the model that a readable upload reveals; None where it reveals none."""
        return None


def first_state(algorithm: Algorithm[S, Any, Any, Any], task: Task, key: Key, before: Any, home: Home) -> S:
    """The server's first state, after a preparation or without one."""
    began: S = (
        algorithm.begin(task, key, before, home) if isinstance(algorithm, FollowsPhase) else algorithm.init(task, key)
    )
    return began
