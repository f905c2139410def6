"""Phases of a run: algorithms that run one after another before the training (a preparation), each starting from the
server state of the one before.

The last phase is the training. The phases before it share client state, so that one can use what an earlier one stored;
the training begins with fresh clients. A phase has rounds, messages and ledger entries of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from sordino.algorithms.algorithm import Algorithm, AnyAlgorithm
from sordino.algorithms.optional import ChecksServer, FitsData, FollowsPhase, Home
from sordino.errors import ConfigError
from sordino.keys import Key
from sordino.privacy.uplink import Uplink
from sordino.types import C, D, Formula, Reader, S, Task, Tensor, U

Table = Sequence[Mapping[str, object]]


class DeviceScores(NamedTuple):
    """F1 score and recall of one device's model on one class, as the server measured them."""

    f1: float
    recall: float


class AskedDevice(NamedTuple):
    """One device that the server asked about a class: whether it answered, and its F1 score and recall there."""

    device: int
    answered: bool
    f1: float
    recall: float


class Facts(NamedTuple):
    """Results of the phases before the training, for the report: scores of the devices' models, devices that were
    asked, images that were kept.
    """

    skills: Sequence[Sequence[DeviceScores]] = ()  # of each device, class by class
    asked: Sequence[Sequence[AskedDevice]] = ()  # for each class, in the order of asking
    kept: Sequence[Sequence[int]] = ()  # for each class, numbers of the candidates that were chosen


class RunNumbers(NamedTuple):
    """Numbers of devices, rounds, classes and parameters, from which a publication's formula computes a run's
    traffic."""

    devices: int
    chosen: int  # per round
    rounds: int
    classes: int
    model: int  # parameters
    width: int  # of features


class PhaseMessages(NamedTuple):
    """Descriptions of a phase's messages for reports: what is sent down, and what up."""

    down: str = ""
    up: str = ""
    hands: str = "what everybody starts from"  # sent to all clients, where it is the last before the training
    ranks_by: str = ""  # by which score it ranks devices


class FeatureMean(Protocol):
    """The mean of the features of one client's images of one class, as the server received it."""

    @property
    def client(self) -> int: ...
    @property
    def label(self) -> int: ...
    @property
    def mean(self) -> Tensor: ...
    def looks(self, x: Tensor) -> Tensor: ...  # features of images in 0..1 [n, c, h, w], differentiable in them


class Phase(Algorithm[S, C, D, U], FollowsPhase, ChecksServer, FitsData, ABC):
    """A step before the training, such as ranking devices or making a generator: an algorithm that ends once it has a
    result.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The phase's name in the ledger, in tables and in folders."""

    @property
    @abstractmethod
    def rounds(self) -> int:
        """The maximal number of rounds of the phase."""

    @abstractmethod
    def over(self, s: S) -> bool:
        """True once the phase has reached its result; its remaining rounds are then skipped."""

    def begin(self, task: Task, key: Key, before: Any, home: Home) -> S:
        return self.init(task, key)

    def result(self, s: S) -> Any:
        """The state from which the next phase, or the training, starts."""
        return s

    def means(self, s: S, task: Task) -> Sequence[FeatureMean]:
        """Means of single clients' features that the server received."""
        return []

    def tables(self, s: S) -> Mapping[str, Table]:
        """Tables of the server's results, by name, for reports."""
        return {}

    # what a report says of it -----------------------------------------------------------------------------------------

    @property
    def says(self) -> PhaseMessages:
        """Descriptions of the phase's messages, for reports."""
        return PhaseMessages()

    def facts(self, s: S, before: Facts) -> Facts:
        """The results to report: those of the earlier phases, `before`, with this phase's own added."""
        return before

    def counted(self, training: Algorithm[Any, Any, Any, Any], public: RunNumbers) -> Formula | None:
        """The publication's own formula for the traffic of this preparation; None if it gives none."""
        return None


AnyPhase: TypeAlias = Phase[Any, Any, Any, Any]


@dataclass(frozen=True)
class Phased:
    """A training with the phases before it (its preparation)."""

    preparation: tuple[AnyPhase, ...]
    training: AnyAlgorithm
    shares: tuple[float, ...] = ()  # of a privacy budget, for each phase of the preparation; the training has the rest

    def __post_init__(self) -> None:
        if self.shares and not (min(self.shares) > 0 and sum(self.shares) < 1):
            parts = " and ".join(f"{share:g}" for share in self.shares)
            raise ConfigError(
                f"a preparation of {len(self.shares)} phases with {parts} of the budget",
                why="every phase needs a part of the budget, and the training after them needs the rest: the parts "
                "must be above 0 and add up to less than 1",
                fix="set for example algorithm.share = 0.2",
                code="shares-out-of-range",
            )

    @property
    def read(self) -> Reader:
        """The reader of the training phase: how its gradients are clipped and noised."""
        return self.training.read

    @property
    def uplink(self) -> Uplink:
        """The uplink of the training phase: how its uploads are clipped and noised."""
        return self.training.uplink
