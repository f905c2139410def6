"""Interface of an algorithm: the computation of clients and server in a round, and the privacy mechanisms (reader and
uplink) between them and the data.

A method with local SGD writes six methods: `init`, `init_client`, `broadcast`, `zero`, `local` and `update`; `LocalSgd`
has the rest. Optional features, such as a message for each client, are in `optional`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Self, TypeAlias

from sordino import user_code
from sordino.algorithms.optional import Home, OptionalSide
from sordino.keys import Key
from sordino.privacy.uplink import Uplink
from sordino.tasks.personalise import OwnModels
from sordino.types import C, D, LocalWork, Params, Reader, Received, S, Shard, Task, U

KEEPS = "{} keeps nothing of the rows that it is shown"


def _written(of: type) -> set[str]:
    """Methods, properties and attributes that a class defines itself."""
    return {name for name in (*vars(of), *vars(of).get("__annotations__", ())) if not name.startswith("_")}


NAMES: dict[type[object], str] = {}  # that classes give themselves


@dataclass(frozen=True)
class Algorithm(ABC, Generic[S, C, D, U]):
    """One training method, split into a client's part, `local`, and the server's part, `update`.

    A subclass is a frozen dataclass. Its fields are the method's hyper-parameters; its methods change nothing. A file
    of this package gives its class the name that experiments call it by: `class FedAvg(..., name="fedavg")`.

    `takes_mean` and `carries_statistics` are promises about what the class does with uploads, so no subclass inherits
    them: it repeats them, `class Mine(FedAvg, takes_mean=True)`, or they do not hold for it. `sordino check` tests
    them.
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
        for side in (*OptionalSide.__subclasses__(), OwnModels):
            if not issubclass(cls, side) and (found := _written(side) & _written(cls)):
                raise TypeError(f"{cls.__name__} has {min(found)}, and {side.__name__} is not among its bases")
        cls.takes_mean, cls.carries_statistics = takes_mean, carries_statistics
        if name:
            NAMES[cls] = name

    # what makes it an algorithm ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def read(self) -> Reader:
        """The reader, the privacy mechanism at the data: how `local` may use examples, exactly or with clip and
        noise.
        """

    @property
    @abstractmethod
    def uplink(self) -> Uplink:
        """The uplink, the privacy mechanism at the upload: clip, noise and sum through which `update` sees uploads."""

    @property
    @abstractmethod
    def work(self) -> LocalWork:
        """Amount of a client's computation in a round, in epochs or steps."""

    @abstractmethod
    def init(self, task: Task, key: Key) -> S:
        """The server's initial state."""

    @abstractmethod
    def init_client(self, task: Task) -> C:
        """A client's initial state."""

    @abstractmethod
    def broadcast(self, s: S) -> D:
        """The message to the clients of a round."""

    @abstractmethod
    def zero(self, task: Task, down: D) -> U:
        """An upload of zeros, which gives the names and shapes of an upload's tensors."""

    @abstractmethod
    def local(self, task: Task, down: D, c: C, shard: Shard, key: Key) -> tuple[U, C]:
        """A client's part of a round: returns its upload and its new state."""

    @abstractmethod
    def update(self, s: S, r: Received[U], home: Home) -> S:
        """The server's part of a round: returns its new state."""

    @abstractmethod
    def models(self, s: S) -> Mapping[str, Params]:
        """The models in a server state, by name; the first one is the result of the run."""

    # rarely met -------------------------------------------------------------------------------------------------------

    @property
    def reads_each(self) -> bool:
        """True if `update` needs each upload by itself, not only their mean."""
        return False

    def rests_on(self, name: str) -> str:
        """Assumption of the guarantee about the user's own code `name`, which sees rows of several clients."""
        return KEEPS.format(name)

    def behind(self, read: Reader | None = None, uplink: Uplink | None = None) -> Self:
        """A copy of this method with other privacy mechanisms: `read` for gradients, `uplink` for uploads; None keeps
        the present one.
        """
        gates = {"read": read, "uplink": uplink}
        return replace(self, **{name: gate for name, gate in gates.items() if gate is not None})


AnyAlgorithm: TypeAlias = Algorithm[Any, Any, Any, Any]


def own_algorithm(path: str) -> type[AnyAlgorithm]:
    """A user's own algorithm, given as `module:Class`; its gradients and uploads are clipped and noised like those of
    the library's."""
    return user_code.of_kind(path, "algorithm", Algorithm)  # type: ignore[type-abstract]


def unwritten(made: type[AnyAlgorithm]) -> list[str]:
    """Abstract members that a class does not define, in the order of the interface."""
    return [name for name in vars(Algorithm) if name in made.__abstractmethods__]
