"""Types that all subpackages share: tasks, data of clients, readers, terms of a round, and noise.

An algorithm is a frozen dataclass whose fields are the paper's hyper-parameters and whose methods are pure, cut exactly
where the network is: `local` runs at the client, `update` at the server, and everything between them passes two privacy
gates. The Reader bounds the influence of an EXAMPLE on client code; the Uplink bounds the influence of a CLIENT on the
server. Both state their guarantees as `Claim`s, before any data is read.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from sordino.accounting.claims import Adversary, Claim, Neighbours, Status, Subject, Unit
from sordino.accounting.events import Event
from sordino.fast.factored import Ready
from sordino.keys import Key
from sordino.ledger.books import Way
from sordino.tree import Tree

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from sordino.accounting.pricing import NoisePricing
else:
    Tensor = Any  # a name for annotations, which does not load torch


Params: TypeAlias = "dict[str, Tensor]"
# how an algorithm uses a client's examples; "single examples": in a way that no reader protects
Use: TypeAlias = Literal["batches", "batches beside public examples", "episodes", "sums", "rows", "single examples"]
# (params, x, y, one key per example) -> one loss per example
Losses: TypeAlias = "Callable[[Params, Tensor, Tensor, Tensor], Tensor]"

# re-exported
__all__ = ["Adversary", "Claim", "Neighbours", "Status", "Subject", "Tensor", "Unit"]

# (random words, as many again, the fraction of a step in each value) -> whole steps of noise, with what carries over
NoiseInSteps: TypeAlias = "Callable[[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.float64]], NDArray[np.float64]]"

S = TypeVar("S")  # server state
C = TypeVar("C")  # client state
D = TypeVar("D")  # what goes down
U = TypeVar("U")  # what comes up


class Offer(NamedTuple):
    """Noise mechanism for a plan to calibrate to a budget: whom it protects, by which law, and who pays."""

    subject: Subject  # its adversary is the strongest that the guarantee holds against
    mechanism: Priced
    everyone_pays: bool  # hidden Poisson participation: absent clients pay too
    rate: float = 1.0  # of the sampler that the price may use, 1 where none may be


class Priced(Protocol):
    """Interface of a noise mechanism that can be calibrated to a budget: the norm of its sensitivity, its pricing and
    its event."""

    @property
    def order(self) -> int: ...  # 1 or 2: the norm of the sensitivity
    @property
    def pricing(self) -> NoisePricing: ...  # how a budget becomes a multiplier
    @property
    def spread(self) -> float: ...  # deviation over scale
    def event(self, multiplier: float) -> Event: ...


class Drawable(Protocol):
    """Interface of a noise law that a source can draw: in a simulation from a generator, else in steps of a grid."""

    def standard(self, shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> Tensor: ...  # scale 1
    def in_steps(self, scale: float) -> NoiseInSteps: ...  # `scale` is thousands of steps


class NoiseSource(Protocol):
    """Interface of a source of noise: a counter key in simulation, the operating system between real sites."""

    @property
    def name(self) -> str: ...
    def child(self, *parts: int | str) -> NoiseSource: ...
    def noisy(self, law: Drawable, values: Tensor, scale: float) -> Tensor: ...
    def coins(self, count: int, probability: float) -> Tensor: ...
    def words(self, count: int) -> Tensor: ...  # independent keys


@dataclass(frozen=True)
class Grant:
    """Permission for one client to take part in one round, reserved in the ledger."""

    client: int
    size: int  # the public number of the client's examples, from which divisors and numbers of steps follow
    largest: int  # the largest public number of examples in the federation
    source: NoiseSource
    multiplier: float | None = None  # of the private gate's noise; None where no gate is private
    epochs: int | None = None  # a straggler's smaller number of epochs
    part: float | None = None  # or the share of its batches that it computes
    reach: float = 1.0  # of a personal clip: radius that this client's budget pays for, relative to the largest one
    precision: float = 1.0  # of its noisy upload, relative to the most precise one
    reads: int | None = None  # noisy reads that were reserved; None: not checked
    pool: Any = None  # a privacy.readers.shared_pass.SharedPass of clients that may share a pass over the network
    public: Examples | None = None  # public examples beside the client's own, which it may look at


@dataclass(frozen=True)
class Terms:
    """Settings of one client for a round, as the server sends them: noise multiplier, amount of work, and clip radius
    and precision relative to other clients'. With the client's size and noise source they become a `Grant`."""

    largest: int = 1
    multiplier: float | None = None
    epochs: int | None = None
    part: float | None = None
    reach: float = 1.0
    precision: float = 1.0

    def granted(self, client: int, size: int, source: NoiseSource) -> Grant:
        return Grant(
            client,
            size,
            self.largest,
            source,
            self.multiplier,
            epochs=self.epochs,
            part=self.part,
            reach=self.reach,
            precision=self.precision,
        )


@dataclass(frozen=True)
class LocalWork:
    """Local training of one round as the settings give it: epochs or steps, and a batch size (None: the full batch)."""

    epochs: int | None
    steps: int | None
    batch_size: int | None

    def batch(self, size: int) -> int:
        return size if self.batch_size is None else min(self.batch_size, size)

    def count(self, size: int) -> int:
        if self.steps is not None:
            return self.steps
        return (self.epochs or 1) * math.ceil(size / self.batch(size))


class Batch(Protocol):
    """A batch of private examples: client code can ask for a gradient, never for the rows."""

    def grad(self, losses: Losses, params: Params) -> Params: ...
    @property
    def live(self) -> Tensor | None: ...  # is this one of the client's own batches, not padding alone? None: always


class Examples(NamedTuple):
    """Raw rows with their labels. Only readers (which clip and noise for client code) and evaluators hold them."""

    x: Tensor
    y: Tensor


# (params, support, query, one key per example of both) -> one loss
EpisodeLoss: TypeAlias = "Callable[[Params, Examples, Examples, Tensor], Tensor]"


class Episode(Protocol):
    """Two batches of private examples: a support set, which shows the classes, and a query set to classify."""

    def grad(self, loss: EpisodeLoss, params: Params) -> Params: ...


class MixedStep(Protocol):
    """One training step on a batch of private examples beside public examples."""

    @property
    def batch(self) -> Batch: ...
    @property
    def public(self) -> Examples: ...
    def joint(self, loss: EpisodeLoss, params: Params) -> Params: ...


class Shard(Protocol):
    """Interface of a client's examples, as client code reads them."""

    @property
    def size(self) -> int: ...
    def batches(self, work: LocalWork, key: Key) -> Iterator[Batch]: ...
    def episodes(self, work: LocalWork, key: Key) -> Iterator[Episode]: ...
    @property
    def public(self) -> Examples | None: ...  # public examples beside the client's own
    # `how`: a privacy.readers.How
    def mixed(self, work: LocalWork, key: Key, how: Any) -> Iterator[MixedStep]: ...
    def split(self, share: float, key: Key) -> tuple[Shard, Shard]: ...  # a share of the examples, and the others
    # per class, the sum of a statistic [n, d] and the number of examples
    def by_class(self, of: Callable[[Tensor], Tensor], classes: int) -> tuple[Tensor, Tensor]: ...
    # over all examples, of a tree computed from (x, y)
    def sum(self, of: Callable[[Tensor, Tensor], Tree]) -> Tree: ...


class Scorer(Protocol):
    """Interface of a model, shared or personal, that predicts and can be scored."""

    def score(self, examples: Examples) -> Mapping[str, Tensor]: ...  # one value per example, by metric


class StatedEpsilon(NamedTuple):
    """The epsilon that a paper prints for its noise, and the one that its own formula gives for all rounds together;
    neither is proved.
    """

    epsilon: float
    composed: float


@dataclass(frozen=True)
class Reader(ABC):
    """Interface by which client code reads private examples, with or without noise, and the guarantee for them."""

    @abstractmethod
    def offer(self) -> Offer | None:
        """The noise mechanism with which examples are read, for a plan to calibrate; None where it protects nobody."""

    @abstractmethod
    def claims(self, work: LocalWork, size: int, multiplier: float | None) -> list[Claim]:
        """Privacy claims of one round for a client of `size` examples: which noisy release protects which unit."""

    @abstractmethod
    def reads(self, work: LocalWork, size: int) -> int:
        """Number of noised uses of a client's examples in one round: the reserved budget covers exactly these."""

    def touched(self, work: LocalWork, size: int) -> float:
        """Expected number of examples, repeats included, on which a client of `size` examples computes in one round."""
        return float(work.count(size) * work.batch(size) if work.steps else (work.epochs or 1) * size)

    @abstractmethod
    def open(self, examples: Examples, grant: Grant, task: Task) -> Shard:
        """The client's private examples, in the form that the `local` of an algorithm gets."""

    def check(self, work: LocalWork, task: Task) -> None:  # noqa: B027 (a default, not a hole)
        """Refuses, before anything starts, settings whose guarantee would be false."""

    def fitted(self, shape: tuple[int, ...], classes: int) -> Self:
        """A copy for examples of this shape and this number of classes; refuses data that it cannot read."""
        return self

    @property
    def multiplier(self) -> float | None:
        """The noise multiplier that the user set; None where a budget decides it, or where no noise is added."""
        return None

    @property
    def cut(self) -> float | None:
        """The norm to which the contribution of one example is clipped; None where nothing is clipped."""
        return None

    @property
    def gives(self) -> tuple[Use, ...]:
        """The uses of examples to which the guarantee is limited; empty: all are covered, or nothing is guaranteed."""
        return ()

    @property
    def redraw(self) -> Literal["run", "round"] | None:
        """Frequency with which `prepare` changes the examples: once in a run, in every round, or never (None)."""
        return None

    @property
    def plain(self) -> bool:
        """True where client code gets examples unprotected: whoever sees an upload may learn about them."""
        return False

    def prepare(self, examples: Examples, source: NoiseSource) -> Examples:
        """A client's examples as all that follows sees them: unchanged, or randomised for local privacy."""
        return examples

    def stated(self, rounds: int, delta: float, records: int) -> StatedEpsilon | None:
        """The guarantee that the paper states for a whole run, which proves nothing; None where there is none."""
        return None


class Bound(NamedTuple):
    """The proved upper bound on the norm of one client's contribution: its L1 norm, and its L2 norm."""

    l1: float = math.inf
    l2: float = math.inf

    def of(self, order: int) -> float:
        return self.l1 if order == 1 else self.l2


class Task(Protocol):
    """Interface of the problem that is learned: a network and its loss."""

    @property
    def name(self) -> str: ...
    def init(self, key: Key) -> Params: ...
    def state_dict(self, params: Params) -> Params: ...  # with what is frozen, and with buffers
    def module(
        self, params: Params
    ) -> torch.nn.Module: ...  # a copy of the network, for training that is not the library's
    def inputs(self, x: Tensor) -> Tensor: ...  # rows as the network takes them
    def losses(self, params: Params, x: Tensor, y: Tensor, keys: Tensor) -> Tensor: ...
    def ready(self, x: Tensor, y: Tensor, whole: bool = False) -> tuple[Ready, Tensor]: ...
    def gradient(
        self, params: Params, x: Ready, y: Tensor, draws: Callable[[], Tensor], share: Tensor | None = None
    ) -> Params: ...  # `share` of each row in the mean, where `pads`
    @property
    def pads(self) -> bool: ...  # may a batch hold padding rows?
    def stacks(self, n: int) -> int: ...  # clients of n rows that are trained in one call
    @property
    def room(self) -> int: ...  # rows that `pooled` takes at once; 0 where it cannot
    @property
    def threads(self) -> bool: ...  # may several threads work on tasks like this one?
    def pooled(self, params: Params, x: Tensor, y: Tensor, clip: float, order: int) -> Any: ...
    @property
    def metrics(self) -> tuple[str, ...]: ...  # of `score`, the headline first
    @property
    def scores(self) -> tuple[str, ...]: ...  # scores of all test examples together that this task has
    @property
    def always(self) -> tuple[str, ...]: ...  # the `scores` that are measured by default
    def answers(self, outputs: Tensor) -> Tensor: ...  # predictions from outputs of `predict`
    def truth(self, y: Tensor) -> Tensor: ...  # labels in the form of `answers`
    def constant(self, examples: Examples) -> float | None: ...  # headline metric of the best constant answer
    @property
    def classes(self) -> int: ...  # outputs of the network, 0 where nothing is classified
    @property
    def flops(self) -> int: ...  # of one example, forward and backward
    @property
    def labels(self) -> int: ...  # classes of the data; further outputs belong to an algorithm
    def features(
        self, params: Params, x: Tensor, keys: Tensor | None, plain: int = 0
    ) -> Tensor: ...  # what the last layer sees; keys in training
    @property
    def width(self) -> int: ...  # of features
    @property
    def learns_features(self) -> bool: ...  # False where features are the examples themselves
    def head(self, params: Params, z: Tensor) -> Tensor: ...  # logits from features
    def look(self, params: Params, x: Tensor) -> Tensor: ...  # features of images in [0, 1], differentiable in them
    def image(self, seen: Tensor) -> Tensor: ...  # the inverse: from inputs of the network to images between 0 and 1
    def predict(self, params: Params, x: Tensor) -> Tensor: ...
    def score(self, params: Params, examples: Examples) -> Mapping[str, Tensor]: ...  # one value per example, by metric
    def clipped_sum(  # solo: each example in a pass of its own, so that no other decides how it is rounded
        self, losses: Losses, params: Params, batch: Examples, keys: Tensor, clip: float, order: int, solo: bool = False
    ) -> Params: ...
    def median_sum(
        self, losses: Losses, params: Params, batch: Examples, keys: Tensor
    ) -> tuple[Params, dict[str, float]]: ...  # each parameter clipped to its median norm, and these norms
    @property
    def mixes_examples(self) -> str: ...  # name of a layer that couples examples, "" if none
    @property
    def statistics(self) -> tuple[str, ...]: ...  # fields of the model that forward passes change, and no gradient
    @property
    def remembers(self) -> str: ...  # state of the network that a pass changes for the next one, "" if none
    # refuses such a change inside the block, also in the functions and the parameters that are passed in
    def still(self, *asked: object, params: Params | None = None) -> AbstractContextManager[None]: ...
    @property
    def feature_radius(self) -> float | None: ...  # bound on (features, 1) of logistic regression; None: there is none


@dataclass(frozen=True)
class Received(Generic[U]):
    """The part of a round that the uplink lets the server see. Only `Uplink.receive` makes one."""

    mean: U  # sum / public denominator
    participation: float  # |cohort| / population; its public expectation where central noise hides who took part
    _each: Callable[[], list[U]]
    public: Tree = ()  # what the uplink's own stages have learnt for the next round

    @property
    def each(self) -> list[U]:
        """The single uploads, where the uplink shows them; raises an error otherwise."""
        return self._each()


Message: TypeAlias = tuple[str, Way]  # the name of a phase, and a direction


class Formula(Protocol):
    """Interface of a publication's own formula for the traffic of a method with a preparation, counted in parameters
    sent.
    """

    @property
    def rounds(self) -> float: ...  # of the training
    @property
    def messages(self) -> Mapping[Message, float]: ...
    @property
    def parameters(self) -> float: ...  # of all messages
    @property
    def ratio(self) -> float: ...  # to the traffic of plain training
    @property
    def upfront(self) -> float: ...  # rounds of plain training before the first one
    def charged(self, rounds: float) -> float: ...  # rounds of plain training that so many rounds cost
