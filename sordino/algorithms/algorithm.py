"""The interface of an algorithm: every question that the engine asks of one, with the answer of a plain method as the
default.

Eight answers have no default, because they are the algorithm; SCAFFOLD gives these and nothing else. The others are for
methods that need more than one broadcast, one model and one kind of read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, Protocol, Self, TypeAlias

from sordino import user_code
from sordino.accounting.events import Json
from sordino.errors import ConfigError
from sordino.keys import Key
from sordino.privacy.uplink import Uplink
from sordino.tasks.personalise import PLAIN, WAYS
from sordino.types import C, D, Examples, Params, Reader, Received, S, Scorer, Shard, Task, U, Work

if TYPE_CHECKING:
    from torch import Tensor


Table = Sequence[Mapping[str, object]]
Asked: TypeAlias = Literal["batches", "episodes", "sums"]


class Known(NamedTuple):
    """What everybody knows before a run begins, the clients included."""

    shape: tuple[int, ...]  # of one example
    classes: int
    sizes: Sequence[int]  # examples of each client
    key: Key  # of the run


class Home(Protocol):
    """What only the server has beside its state: its own data. Client processes never get it."""

    @property
    def task(self) -> Task:
        """The model and its losses."""

    @property
    def key(self) -> Key:
        """The key of the run."""

    @property
    def sizes(self) -> Sequence[int]:
        """How many examples each client has announced."""

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
        """How the candidates were made, where this process made them."""


NAMES: dict[type[object], str] = {}  # that classes give themselves


@dataclass(frozen=True)
class Algorithm(ABC, Generic[S, C, D, U]):
    """One training method, cut where the network is: `local` runs at a client, `update` at the server.

    A subclass is a frozen dataclass. Its fields are the method's hyper-parameters; its methods change nothing. A file
    of this package gives its class the name that experiments call it by: `class FedAvg(..., name="fedavg")`.

    Two words are promises about what the class does with uploads, so no subclass inherits them: it says them again,
    `class Mine(FedAvg, takes_mean=True)`, or goes without. `sordino check` tries them.
    """

    # `update` takes nothing of uploads but their mean, and they are changes of the model, of which zeros are none: a
    # robust sum may stand in the mean's place
    takes_mean: ClassVar[bool] = False
    # a model with running statistics may be trained: every walk of `local` is told of them, and the server's model is
    # the mean of the clients' (where `server_lr` is 1)
    carries_statistics: ClassVar[bool] = False

    def __init_subclass__(
        cls, name: str = "", takes_mean: bool = False, carries_statistics: bool = False, **others: object
    ) -> None:
        super().__init_subclass__(**others)
        cls.takes_mean, cls.carries_statistics = takes_mean, carries_statistics
        if name:
            NAMES[cls] = name
        if (cls.asks is Algorithm.asks) != (cls.names_clients is Algorithm.names_clients):
            raise TypeError(f"{cls.__name__} has one of `names_clients` and `asks`, which belong together")

    # what makes it an algorithm ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def read(self) -> Reader:
        """Gate 1: it decides how `local` may look at examples."""

    @property
    @abstractmethod
    def uplink(self) -> Uplink:
        """Gate 2: it decides what `update` may see of uploads."""

    @property
    @abstractmethod
    def work(self) -> Work:
        """How much a client computes in a round."""

    @abstractmethod
    def init(self, task: Task, key: Key) -> S:
        """The server's first state."""

    @abstractmethod
    def init_client(self, task: Task) -> C:
        """A client's first state."""

    @abstractmethod
    def broadcast(self, s: S) -> D:
        """The message to the clients of a round."""

    @abstractmethod
    def zero(self, task: Task, down: D) -> U:
        """An upload of zeros: it says which shapes come back."""

    @abstractmethod
    def local(self, task: Task, down: D, c: C, shard: Shard, key: Key) -> tuple[U, C]:
        """A client's half of a round: its upload and its new state."""

    @abstractmethod
    def update(self, s: S, r: Received[U], home: Home) -> S:
        """The server's half of a round: its new state."""

    @abstractmethod
    def models(self, s: S) -> Mapping[str, Params]:
        """The models in a server state, by name; the first one is the result of the run."""

    # what it asks of its gates ----------------------------------------------------------------------------------------

    @property
    def wants(self) -> Asked:
        """What `local` asks its shard for."""
        return "batches"

    @property
    def reads_each(self) -> bool:
        """Does `update` look at single uploads?"""
        return False

    def behind(self, read: Reader | None = None, uplink: Uplink | None = None) -> Self:
        """The same method behind other gates."""
        gates = {"read": read, "uplink": uplink}
        return self.having(**{name: gate for name, gate in gates.items() if gate is not None})

    def having(self, **settings: Any) -> Self:
        """The same method with other settings."""
        return replace(self, **settings)

    # what it asks of the model and the data ---------------------------------------------------------------------------

    def fitted(self, known: Known) -> Self:
        """The same method for these data; it refuses data that it cannot work with."""
        return self

    @property
    def sets_loss(self) -> bool:
        """Does it train with losses that it computes from labels by itself, beside the task's or in their place?"""
        return False

    @property
    def heads(self) -> int:
        """How many outputs the network has for each class."""
        return 1

    @property
    def projection(self) -> int:
        """The width of a projection that is put into the network; 0 for none."""
        return 0

    # clients that keep a model of their own ---------------------------------------------------------------------------

    @property
    def personalises(self) -> bool:
        """Is it judged by the clients' own models?"""
        return False

    @property
    def own_way(self) -> str | None:
        """The way (see `tasks.personalise`) in which a client makes the server's model its own, from its examples
        alone; None where there is none, or where it takes what the client keeps.
        """
        return None

    def personal(self, task: Task, params: Params, c: C, shard: Shard) -> Scorer:
        """The model that a client makes of the server's, from its own examples and state."""
        return WAYS[self.own_way or PLAIN](task, params, shard)

    # whom it talks to -------------------------------------------------------------------------------------------------

    @property
    def tells_each(self) -> bool:
        """Does every client get a message of its own?"""
        return False

    @property
    def names_clients(self) -> bool:
        """Does it say itself which clients a round asks?"""
        return False

    def told(self, down: D, client: int) -> Any:
        """The part of the broadcast that this client gets, where `tells_each`."""
        return down

    def asks(self, s: S) -> Sequence[int]:
        """The clients that the next round asks; read where `names_clients` alone, so one comes with the other."""
        return ()

    # before the first round -------------------------------------------------------------------------------------------

    def check(self, home: Home) -> None:
        """Refuses, before anything starts, what could not work."""

    def warns(self, home: Home) -> list[str]:
        """Notes for the user, before anything starts."""
        return []

    def begin(self, task: Task, key: Key, before: Any, home: Home) -> S:
        """The server's first state after a preparation, from the last state of the phase before."""
        return self.init(task, key)

    def handed(self, before: Any, home: Home) -> Params | None:
        """What everybody is given once, before the first round; None for nothing."""
        return None

    def equip(self, task: Task, handed: Mapping[str, Tensor], size: int, key: Key) -> Examples | None:
        """Examples that a client of so many makes, once, of what everybody was given; None for none."""
        return None

    # what it tells about itself ---------------------------------------------------------------------------------------

    def passes(self, size: int) -> float | None:
        """Examples that a client of so many takes through the network in a round; None where the method does not say.

        There and back is 1, only there a third.
        """
        return None

    def change(self, upload: U) -> Params | None:
        """The change of the model that an upload tells whoever can read it; None where it tells none."""
        return None

    @property
    def step_size(self) -> float | None:
        """The length of a client's first step, per unit of gradient; None where the method does not say."""
        return None

    def tables(self, s: S) -> Mapping[str, Table]:
        """What the server found in a phase, by name: for people to read."""
        return {}


AnyAlgorithm: TypeAlias = Algorithm[Any, Any, Any, Any]


def own_algorithm(path: str) -> type[AnyAlgorithm]:
    """An algorithm that lives outside the package, named as `module:Class`; it passes the same gates as ours."""
    made = user_code.load(path, "algorithm")
    fix = "write a subclass of an algorithm that exists, as FedProx does with FedAvg, or write all of its methods"
    if not (isinstance(made, type) and issubclass(made, Algorithm)):
        why = "it is not a subclass of sordino.algorithms.algorithm.Algorithm"
    elif missing := unwritten(made):
        why = f"it has no {', '.join(missing)}"
    else:
        return made
    raise ConfigError(
        f"{path!r} is not an algorithm",
        why=why,
        fix=f"{fix}; `sordino check FILE` says what is missing",
        code="not-an-algorithm",
    )


def unwritten(made: type[AnyAlgorithm]) -> list[str]:
    """The answers without a default that a class does not give, in the order of the interface."""
    return [name for name in vars(Algorithm) if name in made.__abstractmethods__]
