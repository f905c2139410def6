"""Optional features of an algorithm, one mixin each: `class Mine(FedAvg, PerClientMessages)`.

The engine calls `Mixin.of(algorithm)`, which works for every algorithm: one without the mixin gets its default methods.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from sordino.keys import Key
from sordino.types import Examples, Params, S, Task, Tensor, Use

if TYPE_CHECKING:
    from sordino.accounting.events import Json
    from sordino.algorithms.algorithm import Algorithm


class PublicFacts(NamedTuple):
    """Public facts that server and clients know before a run begins."""

    shape: tuple[int, ...]  # of one example
    classes: int
    sizes: Sequence[int]  # examples of each client
    key: Key  # of the run


class Home(Protocol):
    """The server's own data, beside its state. Client processes never receive them."""

    @property
    def task(self) -> Task:
        """The model and its losses."""

    @property
    def key(self) -> Key:
        """The random key of the run."""

    @property
    def sizes(self) -> Sequence[int]:
        """The number of examples that each client has announced."""

    @property
    def probe(self) -> Examples | None:
        """Labelled examples on which the server ranks models; None where it keeps none."""

    @property
    def tested(self) -> Examples:
        """The examples that results are measured on."""

    @property
    def candidates(self) -> Examples | None:
        """Public images from which the server may choose; None where it has none."""

    @property
    def story(self) -> Json | None:
        """Manifest of the candidate images: their source and how they were made. None unless this process made them."""


class OptionalSide:
    """Base class of what a method may have beside `Algorithm`; its defaults hold for all other methods."""

    @classmethod
    def of(cls, algorithm: object) -> Self:
        """The algorithm itself if it has this mixin, else an instance with the mixin's defaults."""
        return algorithm if isinstance(algorithm, cls) else cls()


class FitsData(OptionalSide):
    """A method that adapts to the data, or refuses some data."""

    def fitted(self, known: PublicFacts) -> Self:
        """A copy of this method with settings that suit data with these public facts; refuses unsuitable data."""
        return self


class OwnLoss(OptionalSide):
    """A method that computes a loss from labels itself, beside the task's loss or instead of it."""

    @property
    def heads(self) -> int:
        """Number of network outputs for each class."""
        return 1

    @property
    def projection(self) -> int:
        """Width of the projection inserted before the classifier; 0 for none."""
        return 0


class OtherReads(OptionalSide):
    """A method whose `local` uses a client's examples in another way than by gradients of batches."""

    @property
    def wants(self) -> Use:
        """The most that it asks of a reader: "single examples" where it computes in a way of its own."""
        return "batches"


class PerClientMessages(OptionalSide):
    """A method that sends every client a message of its own."""

    def per_client_message(self, down: Any, client: int) -> Any:
        """The part of the broadcast that this client gets."""
        return down


class RequestsClients(OptionalSide, metaclass=ABCMeta):
    """A method that chooses the clients of a round itself, in a visible cohort. What is stated of such a run is
    `conditional`: it counts the rounds in which a client was asked, and earlier releases have chosen these."""

    @abstractmethod
    def requested_clients(self, s: Any) -> Sequence[int]:
        """The clients of the next round, chosen by the method from its server state `s`, in place of random
        sampling."""


class PublicTensors(OptionalSide):
    """A method that sends the same tensors to all clients once, before the first round."""

    def public_tensors(self, before: Any, home: Home) -> Params | None:
        """Tensors that every client is sent before the first round, made from the final state of a preparation; None
        for none."""
        return None

    def public_examples(self, task: Task, tensors: Mapping[str, Tensor], size: int, key: Key) -> Examples | None:
        """Public examples that a client with `size` examples makes once from these tensors, such as images of a
        generator; None for none."""
        return None


class FollowsPhase(OptionalSide, metaclass=ABCMeta):
    """A method whose initial state depends on the final state of the phase before it."""

    @abstractmethod
    def begin(self, task: Task, key: Key, before: Any, home: Home) -> Any:
        """The server's initial state, given the final state of the phase before."""


class ChecksServer(OptionalSide):
    """A method with requirements on the server's own data."""

    def check(self, home: Home) -> None:
        """Refuses unsuitable server data before anything starts."""

    def warnings(self, home: Home) -> list[str]:
        """Warnings for the user, before anything starts."""
        return []


class Estimates(OptionalSide):
    """Public estimates of a method's step size and computation, for forecasts of noise and time, and of the model
    change behind an upload, for attacks; None, the default, means unknown.
    """

    @property
    def step_size(self) -> float | None:
        """The length of a client's first step, per unit of gradient."""
        return None

    def passes(self, size: int) -> float | None:
        """A client's computation in a round, in examples: a forward and a backward pass of one example count 1, a
        forward pass alone a third.
        """
        return None

    def change(self, upload: Any) -> Params | None:
        """The change of the model that a readable upload reveals; None where it reveals none."""
        return None


def first_state(algorithm: Algorithm[S, Any, Any, Any], task: Task, key: Key, before: Any, home: Home) -> S:
    """The server's initial state, with or without a preparation before the training."""
    return (
        algorithm.begin(task, key, before, home) if isinstance(algorithm, FollowsPhase) else algorithm.init(task, key)
    )
