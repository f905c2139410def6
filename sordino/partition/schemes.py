"""Who holds what: the ways to divide one data set among clients.

    iid        equal sizes, labels alike
    dirichlet  Hsu, Qi and Brown, arXiv:1909.06335; balanced: no more for a client that holds its fair share
    shards     McMahan et al., AISTATS 2017
    classes    every client holds exactly k classes
    quantity   Dirichlet sizes, labels alike
    long_tail  class counts of Cao et al., NeurIPS 2019, then dirichlet
    power_law  two classes and a heavy-tailed size per client (Li et al., MLSys 2020)
    natural    the data set's own clients

Most schemes first settle a table of counts and then deal random examples by it, so the table depends on the
seed and the class counts only, not on the order of the examples. A request that cannot be met is refused
before anything is drawn, with the bound that fails; every other request ends. The result is one sorted int64
index array per client, disjoint, all in one `Rows`; only long_tail leaves examples over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.random import Generator

from sordino.errors import PartitionError
from sordino.partition import counts
from sordino.partition.bounds import check_clients, choice, require
from sordino.partition.describe import table
from sordino.partition.rows import Array, Rows

HOLDERS: Mapping[str, Callable[[Array, int, int, Generator], Array]] = {
    "circulant": counts.circulant,
    "random": counts.random,
}
TAILS: Mapping[str, Callable[[int], Array]] = {  # number of classes -> the power of rho for each
    "exp": lambda classes: np.arange(classes) / max(classes - 1, 1),
    "step": lambda classes: (np.arange(classes) >= classes // 2).astype(float),
}


class Scheme(Protocol):
    def assign(self, labels: Array, group: Array | None, rng: Generator) -> Rows: ...


@dataclass(frozen=True)
class IID:
    """Sizes differ by at most one."""

    clients: int

    def assign(self, labels: Array, group: Array | None, rng: Generator) -> Rows:
        check_clients(self.clients, len(labels))
        return Rows.by_owner(rng.permutation(np.arange(len(labels)) % self.clients), self.clients)


@dataclass(frozen=True)
class Dirichlet:
    """Each class is divided by its own p ~ Dir(alpha, ..., alpha)."""

    clients: int
    alpha: float
    min_size: int = 10
    balanced: bool = False

    def assign(self, labels: Array, group: Array | None, rng: Generator) -> Rows:
        limits = self.clients, "alpha", self.alpha, self.min_size
        return _deal(labels, counts.dirichlet(np.bincount(labels), *limits, rng, self.balanced), rng)


@dataclass(frozen=True)
class Shards:
    """The examples, sorted by label, are cut into equal shards; each client is dealt shards_per_client."""

    clients: int
    shards_per_client: int = 2

    def assign(self, labels: Array, group: Array | None, rng: Generator) -> Rows:
        n, each = len(labels), self.shards_per_client
        shards = self.clients * each
        check_clients(self.clients, n)
        require(each >= 1, f"shards_per_client = {each} < 1", "shards-per-client")
        require(shards <= n, f"clients * shards_per_client = {shards} > {n} examples", "too-many-shards")
        shard = np.arange(n) * shards // n  # sizes differ by at most one
        owner = np.empty(n, np.int64)
        owner[np.argsort(labels, kind="stable")] = rng.permutation(np.arange(shards) // each)[shard]
        return Rows.by_owner(owner, self.clients)


@dataclass(frozen=True)
class Classes:
    """Exactly k classes per client, every example used, a class divided evenly among its holders.

    circulant: client n holds the classes n, ..., n + k - 1 modulo their number; random: any k.
    """

    clients: int
    k: int
    holders: Literal["circulant", "random"] = "circulant"

    def assign(self, labels: Array, group: Array | None, rng: Generator) -> Rows:
        totals = np.bincount(labels)
        check_clients(self.clients, len(labels))
        require(self.k >= 1, f"k = {self.k} < 1", "classes-per-client")
        require(self.k <= len(totals), f"k = {self.k} > {len(totals)} classes", "classes-per-client")
        holds = choice("holders", self.holders, HOLDERS)(totals, self.clients, self.k, rng)
        return _deal(labels, counts.divide(totals, holds.astype(float)), rng)


@dataclass(frozen=True)
class Quantity:
    """Sizes ~ Dir(beta, ..., beta), labels alike."""

    clients: int
    beta: float
    min_size: int = 1

    def assign(self, labels: Array, group: Array | None, rng: Generator) -> Rows:
        totals = np.array([len(labels)])  # a Dirichlet division of one single class: the labels play no part
        sizes = counts.dirichlet(totals, self.clients, "beta", self.beta, self.min_size, rng)
        return _deal(np.zeros_like(labels), sizes, rng)


@dataclass(frozen=True)
class LongTail:
    """Class counts fall from n_max, the smallest class of the data set, to rho * n_max; then as Dirichlet."""

    clients: int
    alpha: float
    rho: float = 0.01
    kind: Literal["exp", "step"] = "exp"
    min_size: int = 10

    def assign(self, labels: Array, group: Array | None, rng: Generator) -> Rows:
        limits = self.clients, "alpha", self.alpha, self.min_size
        return _deal(labels, counts.dirichlet(self.class_counts(labels), *limits, rng), rng)

    def class_counts(self, labels: Array) -> Array:
        """How many examples of each class are kept."""
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
class PowerLaw:
    """Li et al., MLSys 2020: client u holds the classes u and u + 1 (modulo their number), `least` examples of each first, more by LogNormal(0, sigma).

    Of each class the rest is shared out in proportion to the draws, cut to whole numbers; a client whose share would pass the end of the class is skipped.
    """

    clients: int
    least: int = 5
    sigma: float = 2.0

    def assign(self, labels: Array, group: Array | None, rng: Generator) -> Rows:
        totals = np.bincount(labels)
        classes = len(totals)
        check_clients(self.clients, len(labels))
        require(self.clients % classes == 0, f"{self.clients} clients for {classes} classes", "clients-per-class")
        require(self.least >= 1, f"least = {self.least} < 1", "least")
        require(0 < self.sigma < np.inf, f"sigma = {self.sigma} is not a number above 0", "sigma")
        first = 2 * self.least * self.clients // classes  # of each class, dealt to everybody who holds it
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
class Natural:
    """One client per distinct value of the group column, in its sorted order."""

    def assign(self, labels: Array, group: Array | None, rng: Generator) -> Rows:
        if group is None:
            raise PartitionError(
                "this data has no natural clients",
                why="it comes without a group column",
                fix="name one when loading the data, or choose another scheme",
                code="no-group",
            )
        keys, owner = np.unique(group, return_inverse=True)
        return Rows.by_owner(owner, len(keys))

    @staticmethod
    def match(group: Array, test_group: Array) -> Rows:
        """Every client's own test examples; those of groups without training examples belong to nobody."""
        keys = np.unique(group)
        place = np.searchsorted(keys, test_group)
        known = keys[np.minimum(place, len(keys) - 1)] == test_group
        return Rows.by_owner(np.where(known, place, -1), len(keys))


SCHEMES: Mapping[str, type[Scheme]] = {
    "iid": IID,
    "dirichlet": Dirichlet,
    "shards": Shards,
    "classes": Classes,
    "quantity": Quantity,
    "long_tail": LongTail,
    "power_law": PowerLaw,
    "natural": Natural,
}


def match_test(train_labels: Array, train_parts: Sequence[Array], test_labels: Array, rng: Generator) -> Rows:
    """Divides every class of the test examples in proportion to the clients' training examples of that class.

    A test example is used once if anybody trains on its class, else not at all.
    """
    classes = int(max(train_labels.max(), test_labels.max())) + 1
    totals = np.bincount(test_labels, minlength=classes)
    shares = table(train_labels, train_parts, classes).astype(float)
    return _deal(test_labels, counts.divide(totals, shares), rng)


def _deal(labels: Array, held: Array, rng: Generator) -> Rows:
    """Random examples of each class by the table; those left over belong to nobody."""
    owner = np.full(len(labels), -1)
    for c, column in enumerate(held.T):
        rows = rng.permutation(np.flatnonzero(labels == c))
        owner[rows[: column.sum()]] = np.repeat(np.arange(len(column)), column)
    return Rows.by_owner(owner, len(held))
