"""Divide a data set among clients.

    iid        equal sizes, labels alike
    dirichlet  Hsu, Qi and Brown, arXiv:1909.06335; balanced: no more for a client that holds its fair share
    shards     McMahan et al., AISTATS 2017
    classes    every client holds exactly k classes
    active     and all hold equally many examples: Li, Xiao and Chen, Chinese Journal of Computers 2024
    quantity   Dirichlet sizes, labels alike
    long_tail  class counts of Cao et al., NeurIPS 2019, then dirichlet
    power_law  two classes and a heavy-tailed size per client (Li et al., MLSys 2020)
    natural    the data set's own clients

Most schemes first settle a table of counts and then deal random examples by it, so the table depends on the
seed and the class counts only, not on the order of the examples. A request that cannot be met is refused
before anything is drawn, with the bound that fails (random lists of `active` are drawn MAX_DRAWS times first);
every other request ends. The result is one sorted int64 index array per client, disjoint, all in one `RowNumbers`;
only long_tail leaves examples over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.random import Generator

from sordino.errors import PartitionError
from sordino.partition import counts
from sordino.partition.counts import can_be_even, check_clients, choice, fill, require
from sordino.partition.row_numbers import Array, RowNumbers, table

HOLDERS: Mapping[str, Callable[[Array, int, int, Generator], Array]] = {
    "circulant": counts.circulant,
    "random": counts.random,
}
TAILS: Mapping[str, Callable[[int], Array]] = {  # number of classes -> the power of rho for each
    "exp": lambda classes: np.arange(classes) / max(classes - 1, 1),
    "step": lambda classes: (np.arange(classes) >= classes // 2).astype(float),
}


class Labelled(Protocol):
    """Labels and groups of examples: all that a partition scheme reads."""

    @property
    def y(self) -> Array: ...
    @property
    def group(self) -> Array | None: ...


class Scheme(ABC):
    """A way to divide a data set among clients."""

    anonymous: bool = False  # clients number their classes by themselves
    reads_labels: ClassVar[bool] = True  # one example's label decides which client holds others

    @abstractmethod
    def assign(self, labels: Array, group: Array | None, rng: Generator) -> RowNumbers:
        """The training rows of every client."""

    def match(self, train: Labelled, rows: RowNumbers, test: Labelled, rng: Generator) -> RowNumbers:
        """The test rows of every client."""
        seen = (
            (train.y, test.y) if self.reads_labels else tuple(np.zeros(len(part.y), np.int64) for part in (train, test))
        )
        return match_test(seen[0], rows, seen[1], rng)

    def relabel(
        self, train_labels: Array, rows: RowNumbers, test_labels: Array, test_rows: RowNumbers, rng: Generator
    ) -> tuple[Array, Array, int]:
        """Labels of training and test rows, and the number of different labels. An anonymous scheme renumbers the
        labels for each client.
        """
        return train_labels, test_labels, _classes(train_labels, test_labels)


@dataclass(frozen=True)
class IID(Scheme):
    """Random equal shares of the data, whose sizes differ by at most one. The client of an example depends on the seed,
    its position and the number of examples, and on no label.
    """

    reads_labels = False
    clients: int

    def assign(self, labels: Array, group: Array | None, rng: Generator) -> RowNumbers:
        check_clients(self.clients, len(labels))
        return RowNumbers.by_owner(rng.permutation(np.arange(len(labels)) % self.clients), self.clients)


@dataclass(frozen=True)
class Dirichlet(Scheme):
    """Each class is divided among the clients by proportions of its own, p ~ Dir(alpha, ..., alpha)."""

    clients: int
    alpha: float
    min_size: int = 10
    balanced: bool = False

    def assign(self, labels: Array, group: Array | None, rng: Generator) -> RowNumbers:
        limits = self.clients, "alpha", self.alpha, self.min_size
        return _deal(labels, counts.dirichlet(np.bincount(labels), *limits, rng, self.balanced), rng)


@dataclass(frozen=True)
class SortedShards(Scheme):
    """The examples, sorted by label, are cut into equal shards; each client is dealt shards_per_client."""

    clients: int
    shards_per_client: int = 2

    def assign(self, labels: Array, group: Array | None, rng: Generator) -> RowNumbers:
        n, each = len(labels), self.shards_per_client
        shards = self.clients * each
        check_clients(self.clients, n)
        require(each >= 1, f"shards_per_client = {each} < 1", "shards-per-client")
        require(shards <= n, f"clients * shards_per_client = {shards} > {n} examples", "too-many-shards")
        shard = np.arange(n) * shards // n  # sizes differ by at most one
        owner = np.empty(n, np.int64)
        owner[np.argsort(labels, kind="stable")] = rng.permutation(np.arange(shards) // each)[shard]
        return RowNumbers.by_owner(owner, self.clients)


@dataclass(frozen=True)
class Classes(Scheme):
    """Exactly k classes per client, every example used, a class divided evenly among its holders.

    circulant: client n holds the classes n, ..., n + k - 1 modulo their number; random: any k.
    """

    clients: int
    k: int
    holders: Literal["circulant", "random"] = "circulant"

    def assign(self, labels: Array, group: Array | None, rng: Generator) -> RowNumbers:
        totals = np.bincount(labels)
        holds = _lists(totals, self.clients, self.k, self.holders, rng)
        return _deal(labels, counts.divide(totals, holds.astype(float)), rng)


@dataclass(frozen=True)
class Active(Scheme):
    """Exactly k classes and equally many examples per client (at most one more), every example used, and each client's
    classes as even as possible.

    Class lists as in the scheme `classes`, the same for training and test; random ones are drawn until equal sizes are
    possible. anonymous: every client numbers its own classes 0 to k - 1 in a random order, and the model has k outputs.
    """

    clients: int
    k: int
    holders: Literal["circulant", "random"] = "circulant"
    anonymous: bool = False

    def assign(self, labels: Array, group: Array | None, rng: Generator) -> RowNumbers:
        totals = np.bincount(labels)
        tries = counts.MAX_DRAWS if self.holders == "random" else 1
        lists = (_lists(totals, self.clients, self.k, self.holders, rng) for _ in range(tries))
        holds = next((drawn for drawn in lists if can_be_even(totals, drawn)), None)
        bound = f"{self.clients} {self.holders} lists of {self.k} classes cannot be filled in equal parts"
        require(holds is not None, bound, "unfillable-lists")
        assert holds is not None
        return _deal(labels, fill(totals, holds, rng), rng)

    def match(self, train: Labelled, rows: RowNumbers, test: Labelled, rng: Generator) -> RowNumbers:
        """The test rows of every client, from the same classes and as evenly filled as they can be."""
        classes = _classes(train.y, test.y)
        holds = table(train.y, rows, classes) > 0
        return _deal(test.y, fill(np.bincount(test.y, minlength=classes), holds, rng), rng)

    def relabel(
        self, train_labels: Array, rows: RowNumbers, test_labels: Array, test_rows: RowNumbers, rng: Generator
    ) -> tuple[Array, Array, int]:
        if not self.anonymous:
            return super().relabel(train_labels, rows, test_labels, test_rows, rng)
        holds = table(train_labels, rows, _classes(train_labels, test_labels)) > 0
        names = np.zeros(holds.shape, np.int64)
        names[holds] = rng.permuted(np.tile(np.arange(self.k), (self.clients, 1)), axis=1).ravel()
        columns = []
        for labels, held in ((train_labels, rows), (test_labels, test_rows)):
            columns.append(np.zeros_like(labels))  # rows without a client keep label 0
            columns[-1][held.numbers] = names[held.owners, labels[held.numbers]]
        return columns[0], columns[1], self.k


@dataclass(frozen=True)
class Quantity(Scheme):
    """Shares of different sizes ~ Dir(beta, ..., beta) with the same mix of labels."""

    reads_labels = False
    clients: int
    beta: float
    min_size: int = 1

    def assign(self, labels: Array, group: Array | None, rng: Generator) -> RowNumbers:
        totals = np.array([len(labels)])  # a Dirichlet division of one single class: the labels play no part
        sizes = counts.dirichlet(totals, self.clients, "beta", self.beta, self.min_size, rng)
        return _deal(np.zeros_like(labels), sizes, rng)


@dataclass(frozen=True)
class LongTail(Scheme):
    """Class counts fall from n_max, the size of the smallest class, to rho * n_max; clients split them as Dirichlet.

    reading = "clients": every client has the same long tail, in equal sizes, and alpha plays no part. reading =
    "own_order": every client has a long tail of its own, over the classes in an order of its own, and all examples are
    used (the split of Sun, Ding and Cheng 2024).
    """

    clients: int
    alpha: float = 0.5
    rho: float = 0.01
    kind: Literal["exp", "step"] = "exp"
    min_size: int = 10
    reading: Literal["classes", "clients", "own_order"] = "classes"

    def assign(self, labels: Array, group: Array | None, rng: Generator) -> RowNumbers:
        readings = {"classes": self._by_dirichlet, "clients": self._alike, "own_order": self._each_in_own_order}
        share = choice("reading", self.reading, readings)
        kept = self.class_counts(labels)
        return _deal(labels, share(np.bincount(labels) if self.reading == "own_order" else kept, rng), rng)

    def _by_dirichlet(self, kept: Array, rng: Generator) -> Array:
        return counts.dirichlet(kept, self.clients, "alpha", self.alpha, self.min_size, rng)

    def _alike(self, kept: Array, rng: Generator) -> Array:
        least, n = self.clients * self.min_size, int(kept.sum())
        require(least <= n, f"clients * min_size = {least} > {n} examples", "min-size")
        return counts.divide(kept, np.ones((self.clients, len(kept))))

    def _each_in_own_order(self, totals: Array, rng: Generator) -> Array:
        tail = self.rho ** choice("kind", self.kind, TAILS)(len(totals))
        held = counts.divide(totals, rng.permuted(np.tile(tail, (self.clients, 1)), axis=1))
        fewest = int(held.sum(1).min())
        require(fewest >= self.min_size, f"a client would hold {fewest} examples < {self.min_size}", "min-size")
        return held

    def class_counts(self, labels: Array) -> Array:
        """Number of examples of each class that are kept."""
        check_clients(self.clients, len(labels))
        require(0 < self.rho <= 1, f"rho = {self.rho} is not in (0, 1]", "rho")
        totals = np.bincount(labels)
        largest = int(totals.min())
        require(largest > 0, f"class {totals.argmin()} has no examples", "missing-class")
        power = choice("kind", self.kind, TAILS)(len(totals))
        kept: Array = np.floor(largest * self.rho**power + 1e-9).astype(np.int64)  # 100 * 0.29 = 28.999...
        require(kept.min() > 0, f"floor(n_max * rho) = floor({largest} * {self.rho}) = 0", "rho")
        return kept


@dataclass(frozen=True)
class PowerLaw(Scheme):
    """Two classes per client (Li et al., MLSys 2020): client u holds the classes u and u + 1 (modulo their number),
    `least` examples of each first, more by LogNormal(0, sigma).

    Of each class the rest is shared out in proportion to the draws, cut to whole numbers; a client whose share would
    pass the end of the class is skipped.
    """

    clients: int
    least: int = 5
    sigma: float = 2.0

    def assign(self, labels: Array, group: Array | None, rng: Generator) -> RowNumbers:
        totals = np.bincount(labels)
        classes = len(totals)
        check_clients(self.clients, len(labels))
        require(self.clients % classes == 0, f"{self.clients} clients for {classes} classes", "clients-per-class")
        require(self.least >= 1, f"least = {self.least} < 1", "least")
        require(0 < self.sigma < np.inf, f"sigma = {self.sigma} is not a number above 0", "sigma")
        first = 2 * self.least * self.clients // classes  # of each class, dealt to every client that holds it
        require(
            first <= int(totals.min()), f"{first} examples of each class first, of {totals.min()}", "too-few-examples"
        )
        draws = rng.lognormal(0, self.sigma, (classes, self.clients // classes, 2))
        shares = draws / draws.sum((1, 2), keepdims=True) * (totals - first)[:, None, None]
        held, taken = np.zeros((self.clients, classes), np.int64), np.full(classes, first)
        for u in range(self.clients):
            for j in range(2):
                c = (u + j) % classes
                more = int(shares[c, u // classes, j])
                held[u, c] = self.least + (more if taken[c] + more < totals[c] else 0)
                taken[c] += held[u, c] - self.least
        return _deal(labels, held, rng)


@dataclass(frozen=True)
class Natural(Scheme):
    """One client per distinct value of the group column, in its sorted order."""

    reads_labels = False

    def assign(self, labels: Array, group: Array | None, rng: Generator) -> RowNumbers:
        if group is None:
            raise PartitionError(
                "this data has no natural clients",
                why="natural clients are the groups of a column, and no group column was given",
                fix="set data.group to the column that names the client, or choose another partition.scheme",
                code="no-group",
            )
        keys, owner = np.unique(group, return_inverse=True)
        return RowNumbers.by_owner(owner, len(keys))

    def match(self, train: Labelled, rows: RowNumbers, test: Labelled, rng: Generator) -> RowNumbers:
        """The test rows of every client, by the same groups; those of groups without training examples belong to no
        client.
        """
        if train.group is None or test.group is None:
            return super().match(train, rows, test, rng)
        keys = np.unique(train.group)
        place = np.searchsorted(keys, test.group)
        known = keys[np.minimum(place, len(keys) - 1)] == test.group
        return RowNumbers.by_owner(np.where(known, place, -1), len(keys))


SCHEMES: Mapping[str, type[Scheme]] = {
    "iid": IID,
    "dirichlet": Dirichlet,
    "shards": SortedShards,
    "classes": Classes,
    "active": Active,
    "quantity": Quantity,
    "long_tail": LongTail,
    "power_law": PowerLaw,
    "natural": Natural,
}


def match_test(train_labels: Array, train_parts: Sequence[Array], test_labels: Array, rng: Generator) -> RowNumbers:
    """Divides every class of the test examples in proportion to the clients' training examples of that class.

    A test example is used once if a client trains on its class, else not at all.
    """
    classes = _classes(train_labels, test_labels)
    totals = np.bincount(test_labels, minlength=classes)
    shares = table(train_labels, train_parts, classes).astype(float)
    return _deal(test_labels, counts.divide(totals, shares), rng)


def _classes(train_labels: Array, test_labels: Array) -> int:
    return int(max(train_labels.max(), test_labels.max())) + 1


def _lists(totals: Array, clients: int, k: int, holders: str, rng: Generator) -> Array:
    """The k classes of each client, boolean [clients, classes]."""
    check_clients(clients, int(totals.sum()))
    require(k >= 1, f"k = {k} < 1", "classes-per-client")
    require(k <= len(totals), f"k = {k} > {len(totals)} classes", "classes-per-client")
    return choice("holders", holders, HOLDERS)(totals, clients, k, rng)


def _deal(labels: Array, held: Array, rng: Generator) -> RowNumbers:
    """Row numbers: as many random examples of each class as the table `held` gives a client; those left over belong to
    no client.
    """
    owner = np.full(len(labels), -1)
    for c, column in enumerate(held.T):
        rows = rng.permutation(np.flatnonzero(labels == c))
        owner[rows[: column.sum()]] = np.repeat(np.arange(len(column)), column)
    return RowNumbers.by_owner(owner, len(held))
