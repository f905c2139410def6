"""Types that all rooms share: task, shard, reader, grant, claim.

An algorithm is a frozen dataclass whose fields are the paper's hyper-parameters and whose methods are pure, cut exactly
where the network is: `local` runs at the client, `update` at the server, and everything between them passes two gates.
The Reader bounds what an EXAMPLE can do to client code; the Uplink bounds what a CLIENT can do to the server. Both say
what they promise as `Claim`s, before any data is read.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from sordino.accounting.claims import ADVERSARIES, Adversary, Claim, Neighbours, Status, Subject, Unit
from sordino.accounting.events import Event
from sordino.fast.factored import Ready
from sordino.keys import Key
from sordino.ledger.books import HANDED, TRAINING, Way
from sordino.tree import Tree

if TYPE_CHECKING:
    from torch import Tensor


Params: TypeAlias = "dict[str, Tensor]"
# (params, x, y, one key per example) -> one loss per example
Losses: TypeAlias = "Callable[[Params, Tensor, Tensor, Tensor], Tensor]"

# re-exported
__all__ = ["ADVERSARIES", "HANDED", "TRAINING", "Adversary", "Claim", "Neighbours", "Status", "Subject", "Unit"]

S = TypeVar("S")  # server state
C = TypeVar("C")  # client state
D = TypeVar("D")  # what goes down
U = TypeVar("U")  # what comes up


class Offer(NamedTuple):
    """A gate's noise as a budget prices it."""

    subject: Subject  # its adversary is the strongest that the promise holds against
    mechanism: Priced
    everyone_pays: bool  # hidden Poisson participation: absent clients pay too
    rate: float = 1.0  # of the sampler that the price may use, 1 where none may be


class Priced(Protocol):
    """A noise law as far as its price goes: which norm it needs bounded, and which event it is."""

    @property
    def order(self) -> int: ...  # 1 or 2: the norm of the sensitivity
    @property
    def calibration(self) -> str: ...  # how a budget becomes a multiplier: see ledger.pricing
    @property
    def spread(self) -> float: ...  # deviation over scale
    def event(self, multiplier: float) -> Event: ...


class Mechanism(Priced, Protocol):
    """A noise law that is added to values."""

    def add(self, values: Tensor, scale: float, source: NoiseSource) -> Tensor: ...


class NoiseSource(Protocol):
    """A source of noise: a counter key in simulation, the operating system between real sites."""

    @property
    def name(self) -> str: ...
    def child(self, *parts: int | str) -> NoiseSource: ...
    def gaussian(self, values: Tensor, std: float) -> Tensor: ...
    def laplace(self, values: Tensor, scale: float) -> Tensor: ...
    def coins(self, count: int, probability: float) -> Tensor: ...
    def words(self, count: int) -> Tensor: ...  # independent keys


@dataclass(frozen=True)
class Grant:
    """Permission of one client for one round, which the ledger has agreed to."""

    client: int
    size: int  # the public number of the client's examples, from which divisors and numbers of steps follow
    largest: int  # the largest public number of examples in the federation
    source: NoiseSource
    multiplier: float | None = None  # of the private gate's noise; None where no gate is private
    epochs: int | None = None  # a straggler's smaller effort
    part: float | None = None  # or the part of its batches that it does
    reach: float = 1.0  # of a personal clip: what this client's budget buys, against the most generous one's
    precision: float = 1.0  # of its noisy upload, against the most precise one's
    reads: int | None = None  # noisy reads that were reserved; None: the caller sees to it
    pool: Any = None  # a privacy.readers.shared_pass.SharedPass of clients that may share a pass over the network
    public: Examples | None = None  # what this client has beside its own examples, and may look at


@dataclass(frozen=True)
class Terms:
    """The server's terms of a round for one client; with what the client alone knows they become a `Grant`."""

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
class Work:
    """The local effort in the users' words. `batch_size` None is the full batch."""

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
    """Sealed examples: client code can ask for a gradient or a bounded sum, never for the rows."""

    def grad(self, losses: Losses, params: Params) -> Params: ...
    @property
    def live(self) -> Tensor | None: ...  # is this one of the client's own batches? None: always


class Examples(NamedTuple):
    """Raw rows: only readers and evaluators hold them."""

    x: Tensor
    y: Tensor


# (params, support, query, one key per example of both) -> one loss
EpisodeLoss: TypeAlias = "Callable[[Params, Examples, Examples, Tensor], Tensor]"


class Episode(Protocol):
    """Two sealed batches, of which the first explains the classes of the second."""

    def grad(self, loss: EpisodeLoss, params: Params) -> Params: ...


class MixedStep(Protocol):
    """Sealed examples beside public ones in one step."""

    @property
    def batch(self) -> Batch: ...
    @property
    def public(self) -> Examples: ...
    def joint(self, loss: EpisodeLoss, params: Params) -> Params: ...


class Shard(Protocol):
    @property
    def size(self) -> int: ...
    def batches(self, work: Work, key: Key) -> Iterator[Batch]: ...
    def episodes(self, work: Work, key: Key) -> Iterator[Episode]: ...
    @property
    def public(self) -> Examples | None: ...  # nobody's secret
    def mixed(self, work: Work, key: Key, how: Any) -> Iterator[MixedStep]: ...  # privacy.readers.beside_public.How
    def split(self, share: float, key: Key) -> tuple[Shard, Shard]: ...  # of so many examples, and of the others
    def by_class(
        self, of: Callable[[Tensor], Tensor], classes: int
    ) -> tuple[Tensor, Tensor]: ...  # per class, the sum of a statistic [n, d] and the number of examples
    def sum(
        self, of: Callable[[Tensor, Tensor], Tree]
    ) -> Tree: ...  # over all examples, of a tree computed from (x, y)


class Scorer(Protocol):
    """Anything that somebody predicts with."""

    def score(self, examples: Examples) -> Mapping[str, Tensor]: ...  # one value per example, by metric


class Stated(NamedTuple):
    """The epsilon that a paper prints for its noise, and what its own formula gives for all rounds together. Neither
    is proved.
    """

    epsilon: float
    composed: float


@dataclass(frozen=True)
class Reader(ABC):
    """Gate 1: it decides how client code may look at examples, and says what that promises."""

    @abstractmethod
    def offer(self) -> Offer | None:
        """The gate's noise as a budget prices it; None where it protects nobody."""

    @abstractmethod
    def claims(self, work: Work, size: int, multiplier: float | None) -> list[Claim]:
        """Claims of one round for a client of `size` examples."""

    @abstractmethod
    def reads(self, work: Work, size: int) -> int:
        """Number of noisy reads of one round: the reservation covers exactly these."""

    def touched(self, work: Work, size: int) -> float:
        """Examples that all reads of one round are expected to compute, of a client of `size` examples."""
        return float(work.count(size) * work.batch(size) if work.steps else (work.epochs or 1) * size)

    @abstractmethod
    def open(self, examples: Examples, grant: Grant, task: Task) -> Shard:
        """The sealed examples that `local` gets."""

    def check(self, work: Work, task: Task) -> None:  # noqa: B027 (a default, not a hole)
        """Refuses, before anything starts, a set-up whose promise would be false."""

    def fitted(self, shape: tuple[int, ...], classes: int) -> Self:
        """The same reader for examples of this shape; it refuses data that it cannot read."""
        return self

    @property
    def multiplier(self) -> float | None:
        """The noise multiplier that is typed into the reader; None where a budget decides, or where it draws none."""
        return None

    @property
    def cut(self) -> float | None:
        """The length to which the reader cuts what one example gives; None where it cuts nothing."""
        return None

    @property
    def gives(self) -> Literal["batches", "episodes", "sums"] | None:
        """The one kind of read that the promise covers; None where it covers all of them, or promises nothing."""
        return None

    @property
    def redraw(self) -> Literal["run", "round"] | None:
        """Frequency with which `prepare` changes the examples: once in a run, in every round, or never."""
        return None

    @property
    def plain(self) -> bool:
        """True where it gives examples as they are: then nothing lies between them and whoever sees an upload."""
        return False

    def prepare(self, examples: Examples, source: NoiseSource) -> Examples:
        """A client's examples as everything that follows will see them."""
        return examples

    def stated(self, rounds: int, delta: float, records: int) -> Stated | None:
        """The paper's stated guarantee for a whole run, where it is a number that proves nothing."""
        return None


class Bound(NamedTuple):
    """The proved bound on one client's contribution, in each norm."""

    l1: float = math.inf
    l2: float = math.inf

    def of(self, order: int) -> float:
        return self.l1 if order == 1 else self.l2


class Task(Protocol):
    """The problem that is learned: a network and its loss."""

    @property
    def name(self) -> str: ...
    def init(self, key: Key) -> Params: ...
    def state_dict(self, params: Params) -> Params: ...  # with what is frozen, and with buffers
    def losses(self, params: Params, x: Tensor, y: Tensor, keys: Tensor) -> Tensor: ...
    def ready(self, x: Tensor, y: Tensor, whole: bool = False) -> tuple[Ready, Tensor]: ...
    def gradient(
        self, params: Params, x: Ready, y: Tensor, draws: Callable[[], Tensor], share: Tensor | None = None
    ) -> Params: ...  # `share` of each row in the mean, where `pads`
    @property
    def pads(self) -> bool: ...  # may rows that are nobody's stand in a batch?
    def stacks(self, n: int) -> int: ...  # clients of n rows that are trained in one call
    @property
    def room(self) -> int: ...  # rows that `pooled` takes at once; 0 where it cannot
    @property
    def threads(self) -> bool: ...  # may tasks like it be at work on several threads?
    def pooled(self, params: Params, x: Tensor, y: Tensor, clip: float, order: int) -> Any: ...
    @property
    def metrics(self) -> tuple[str, ...]: ...  # of `score`, the headline first
    @property
    def scores(self) -> tuple[str, ...]: ...  # of all test examples together, that make sense here
    @property
    def always(self) -> tuple[str, ...]: ...  # those of them that are measured unasked
    def answers(self, outputs: Tensor) -> Tensor: ...  # what outputs of `predict` say
    def truth(self, y: Tensor) -> Tensor: ...  # labels as answers can be compared with them
    def constant(self, y: Tensor) -> float | None: ...  # what the best constant answer reaches in the headline
    @property
    def classes(self) -> int: ...  # outputs of the network, 0 where nothing is classified
    @property
    def flops(self) -> int: ...  # of one example, there and back
    @property
    def labels(self) -> int: ...  # classes that there are; further outputs are an algorithm's own
    def features(
        self, params: Params, x: Tensor, keys: Tensor | None, plain: int = 0
    ) -> Tensor: ...  # what the last layer sees; keys in training
    @property
    def width(self) -> int: ...  # of features
    @property
    def learns_features(self) -> bool: ...  # or are they the examples themselves?
    def head(self, params: Params, z: Tensor) -> Tensor: ...  # logits from features
    def look(
        self, params: Params, x: Tensor
    ) -> Tensor: ...  # features of images between 0 and 1, differentiable in them
    def image(self, seen: Tensor) -> Tensor: ...  # the way back, from inputs of the network to images between 0 and 1
    def predict(self, params: Params, x: Tensor) -> Tensor: ...
    def score(self, params: Params, examples: Examples) -> Mapping[str, Tensor]: ...  # one value per example, by metric
    def clipped_sum(
        self, losses: Losses, params: Params, batch: Examples, keys: Tensor, clip: float, order: int
    ) -> Params: ...
    def median_sum(
        self, losses: Losses, params: Params, batch: Examples, keys: Tensor
    ) -> tuple[Params, dict[str, float]]: ...  # each parameter to its own median norm, and these
    @property
    def mixes_examples(self) -> str: ...  # name of a layer that couples examples, "" if none
    @property
    def statistics(self) -> tuple[str, ...]: ...  # fields of the model that passes move, and no gradient
    @property
    def remembers(self) -> str: ...  # what of the network a pass changes for the next one, "" if nothing
    # refuses such a change in what is asked inside, also in the functions it is asked with
    def still(self, *asked: object) -> AbstractContextManager[None]: ...
    @property
    def feature_radius(
        self,
    ) -> float | None: ...  # bound on (features, 1) of logistic regression, None where there is none


@dataclass(frozen=True)
class Received(Generic[U]):
    """The part of a round that gate 2 lets the server see. Only `Uplink.receive` makes one."""

    mean: U  # sum / public denominator
    participation: float  # |cohort| / population; its public expectation where central noise hides who took part
    _each: Callable[[], list[U]]
    public: Tree = ()  # what the uplink's own stages have learnt for the next round

    @property
    def each(self) -> list[U]:
        """The single uploads, where the uplink shows them; raises AggregateOnly otherwise."""
        return self._each()


Message: TypeAlias = tuple[str, Way]  # the name of a phase, and a direction


class Formula(Protocol):
    """A publication's formula for traffic, in parameters: of a preparation, and of what it adds to every round."""

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
