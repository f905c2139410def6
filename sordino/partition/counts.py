"""Counts [clients, classes]: how many examples of each class a client gets. A partition that cannot be made is refused,
and the error names the bound that fails.

Even division by given class lists is that of active-class induced diversity (Li, Xiao and Chen, Chinese Journal of
Computers 2024):

Examples are given out one by one: a random client among those with the fewest takes one of the class it holds least of.
Where none of its classes is left, it takes an example over from another client, which replaces it in the same way,
until one client in the chain finds an unused example; the shortest chain is chosen, so it ends. A client that no chain
can serve is done. If it was then one short, no division gives every client its even share: the clients that it can
reach by chains hold no more than an even share, and no client beyond holds more than one example of any of their
classes.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from numpy.random import Generator

from sordino.errors import PartitionError
from sordino.partition.row_numbers import Array

T = TypeVar("T")

MAX_DRAWS = 100
MAX_CELLS = 10_000_000  # of all draws together: a table of ten classes for a million clients is drawn once
_log = logging.getLogger(__name__)

FIXES = {
    "clients": "use at least 1 client and at most one per example",
    "concentration": "0.1 is very uneven, 1 uneven, 100 nearly even",
    "min-size": "use fewer clients or a smaller min_size",
    "shards-per-client": "2 is usual",
    "too-many-shards": "use fewer clients or fewer shards per client",
    "classes-per-client": "k counts the classes of one client: at least 1, at most all",
    "unheld-class": "use more clients or a larger k",
    "thin-class": "use fewer clients or a smaller k",
    "unfillable-lists": 'use circulant lists, a larger k, or the scheme "classes", where sizes may differ',
    "rho": "rho is the smallest class over the largest: at most 1, and enough for one example",
    "missing-class": "renumber the labels without gaps",
    "clients-per-class": "use a multiple of the number of classes, for instance 1000",
    "least": "5 is usual",
    "sigma": "2 is very uneven, 0.5 uneven",
    "too-few-examples": "use fewer clients or a smaller least",
    "unknown-choice": "use one of those listed",
}


def require(met: bool | np.bool_, bound: str, code: str) -> None:
    """Raises an error unless `met`: the partition cannot be made. `bound`: the condition that fails, in words."""
    if not met:
        raise PartitionError("this partition cannot be made", why=bound, fix=FIXES[code], code=code)


def check_clients(clients: int, examples: int) -> None:
    require(clients >= 1, f"clients = {clients} < 1", "clients")
    require(clients <= examples, f"clients = {clients} > {examples} examples", "clients")


def choice(field: str, value: str, choices: Mapping[str, T]) -> T:
    require(value in choices, f"{field} = {value!r} is not one of {', '.join(choices)}", "unknown-choice")
    return choices[value]


def largest_remainder(total: int, weights: Array, debt: Array | float = 0.0) -> Array:
    """Whole numbers that add up to `total`, each the floor or the ceiling of its share by weight; weight 0 gets 0."""
    quota = total * (weights / weights.sum())
    counts: Array = np.floor(quota).astype(np.int64)
    rank = np.where(weights > 0, quota - counts + debt, -np.inf)
    counts[np.argsort(-rank, kind="stable")[: total - counts.sum()]] += 1
    return counts


def divide(totals: Array, weights: Array) -> Array:
    """Divides each class among clients by largest remainders. A client's rounding errors are carried on from class to
    class, to even out sizes.
    """
    counts = np.zeros(weights.shape, np.int64)
    debt = np.zeros(len(weights))
    for c in np.flatnonzero((totals > 0) & weights.any(0)):
        counts[:, c] = largest_remainder(totals[c], weights[:, c], debt)
        debt += totals[c] * weights[:, c] / weights[:, c].sum() - counts[:, c]
    return counts


def dirichlet(
    totals: Array,
    clients: int,
    name: str,
    alpha: float,
    min_size: int,
    rng: Generator,
    balanced: bool = False,
) -> Array:
    """Counts from Dirichlet proportions, drawn again until every client has `min_size` examples: at most MAX_DRAWS
    times, and less often where clients times classes are many. The last draw is then repaired. `balanced`: a client
    that holds its fair share gets no more of the classes that follow.
    """
    n = int(totals.sum())
    check_clients(clients, n)
    require(0 < alpha < np.inf, f"{name} = {alpha} is not a finite number above 0", "concentration")
    require(min_size * clients <= n, f"clients * min_size = {clients * min_size} > {n} examples", "min-size")
    for _ in range(max(1, min(MAX_DRAWS, MAX_CELLS // (clients * len(totals))))):
        counts = np.zeros((clients, len(totals)), np.int64)
        for c, logs in enumerate(_log_gamma_variates(alpha, (len(totals), clients), rng)):
            if balanced and totals[c]:
                logs[counts.sum(1) >= n / clients] = -np.inf  # never all of them: this class is still to come
            counts[:, c] = largest_remainder(totals[c], np.exp(logs - logs.max()))
        if counts.sum(1).min() >= min_size:
            return counts
    return _repair(counts, min_size, rng)


def _log_gamma_variates(alpha: float, shape: tuple[int, ...], rng: Generator) -> Array:
    """Logarithms of gamma variates: for small alpha all variates of a class would underflow to 0 and leave no
    proportions.

    Gamma(a) = Gamma(a + 1) * U^(1/a) (Marsaglia and Tsang, 2000). Below 1e-200 every draw is one-hot already.
    """
    alpha = max(alpha, 1e-200)
    return np.log(rng.standard_gamma(alpha + 1, shape)) + np.log1p(-rng.random(shape)) / alpha


def _repair(counts: Array, min_size: int, rng: Generator) -> Array:
    """Moves random examples from the largest client to those below min_size.

    It ends: while one client is below min_size and the total suffices, the largest client is above it, so each move
    lowers the deficit.
    """
    sizes = counts.sum(1)
    moved = int(np.maximum(min_size - sizes, 0).sum())
    # the largest first, the lower number where they are alike; only those above the minimum ever give
    able = np.flatnonzero(sizes > min_size).tolist()
    givers = [(-int(sizes[k]), k) for k in able]
    heapq.heapify(givers)
    for poor in np.flatnonzero(sizes < min_size):
        for _ in range(min_size - sizes[poor]):
            size, rich = givers[0]
            c = np.searchsorted(counts[rich].cumsum(), rng.integers(-size), side="right")
            counts[rich, c], counts[poor, c] = counts[rich, c] - 1, counts[poor, c] + 1
            heapq.heapreplace(givers, (size + 1, rich))
    _log.info("partition repaired: %d examples moved to reach min_size = %d", moved, min_size)
    return counts


# ---- classes of each client: boolean [clients, classes]


def circulant(totals: Array, clients: int, k: int, rng: Generator) -> Array:
    """Class lists, boolean [clients, classes]: client n holds the classes n, ..., n + k - 1 modulo their number."""
    classes = len(totals)
    holds = (np.arange(classes) - np.arange(clients)[:, None]) % classes < k
    holders = holds.sum(0)
    nobody = np.flatnonzero((holders == 0) & (totals > 0)).tolist()
    reach = f"clients + k - 1 = {clients + k - 1} < {classes} classes"
    require(not nobody, f"no client holds class {', '.join(map(str, nobody))}: {reach}", "unheld-class")
    thin = int(np.argmax(holders - totals))
    bound = f"class {thin} has {totals[thin]} examples for {holders[thin]} holders"
    require(totals[thin] >= holders[thin], bound, "thin-class")
    return holds


def random(totals: Array, clients: int, k: int, rng: Generator) -> Array:
    """Class lists, boolean [clients, classes]: any k classes for each client, such that every class has a holder and no
    more holders than examples.

    A class with room for r more holders can serve min(r, m) of the m clients still to come, which need m * k places
    (Gale and Ryser, 1957). The places beyond that are the slack. A class is scarce if it has room for no more holders
    than clients are still to come; this client may take as many scarce classes as there is slack.
    """
    places, present = clients * k, int((totals > 0).sum())
    room = np.minimum(totals, clients)
    require(places >= present, f"clients * k = {places} < {present} classes: one stays unheld", "unheld-class")
    require(places <= room.sum(), f"clients * k = {places} > {room.sum()} places in classes", "thin-class")
    holds = np.zeros((clients, len(totals)), bool)
    for client in range(clients):
        later = clients - client - 1
        order = rng.permutation(np.flatnonzero(room))
        plenty_first = order[np.argsort(room[order] <= later, kind="stable")]
        unheld = plenty_first[~holds[:, plenty_first].any(0)]
        must = unheld[: max(len(unheld) - later * k, 0)]
        order = np.concatenate([must, order[~np.isin(order, must)]])
        scarce = room[order] <= later
        slack = np.minimum(room, later).sum() - later * k
        chosen = order[~scarce | (scarce.cumsum() <= slack)][:k]
        assert len(chosen) == k, "the two bounds above leave k classes to every client"
        holds[client, chosen] = True
        room[chosen] -= 1
    return holds[rng.permutation(clients)]  # the first had the freest choice, and its number must not show it


def fill(totals: Array, holds: Array, rng: Generator) -> Array:
    """Counts [clients, classes] from class sizes and the class lists `holds`. A client that has an example of one of
    its classes keeps at least one.
    """
    return _Filling(totals, holds, rng).counts()


def can_be_even(totals: Array, holds: Array) -> bool:
    """True if sizes can differ by at most one while every client gets at least one example of each of its classes.

    Decided by a maximum flow from clients to classes above these lower bounds: each client takes its even share, and at
    most one more of the examples left over.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    clients, classes = holds.shape
    each, over = divmod(int(totals.sum()), clients)
    wanted, spare = each - holds.sum(1), totals - holds.sum(0)
    if (wanted < 0).any() or (spare < 0).any():
        return False
    people, kinds = np.arange(clients) + 2, np.arange(classes) + 2 + clients
    (who, what), sink = np.nonzero(holds), clients + classes + 2
    arcs = [
        (0, people, wanted),
        (0, 1, over),
        (1, people, 1),
        (people[who], kinds[what], int(totals.sum())),
        (kinds, sink, spare),
    ]
    start, end, room = (
        np.concatenate([np.ravel(column) for column in side])
        for side in zip(*(np.broadcast_arrays(*arc) for arc in arcs), strict=True)
    )
    room, start, end = (column.astype(np.int32) for column in (room, start, end))  # as old versions of scipy want them
    graph = coo_array((room, (start, end)), shape=(sink + 1, sink + 1)).tocsr()
    return bool(maximum_flow(graph, 0, sink).flow_value == spare.sum())


class _Filling:
    """Lists of classes, one for each client, from which numbers of examples are filled up."""

    def __init__(self, totals: Array, holds: Array, rng: Generator) -> None:
        classes = holds.shape[1]
        self._rng, self._shape = rng, holds.shape
        # from its own number on: in circulant lists ties are then broken for every class equally often
        self._lists = [
            sorted(np.flatnonzero(row).tolist(), key=lambda c: (c - client) % classes)
            for client, row in enumerate(holds)
        ]
        self._holders = [np.flatnonzero(column) for column in holds.T]
        self._unused: list[int] = np.where(holds.any(0), totals, 0).tolist()
        self._rest = sum(self._unused)
        self._held = [dict.fromkeys(groups, 0) for groups in self._lists]

    def counts(self) -> Array:
        hungry = list(range(self._shape[0]))
        while hungry and self._rest:  # once around: all of them have equally many
            turns = self._rng.permutation(hungry).tolist()
            hungry = [client for client in turns if self._rest and (self._take(client) or self._take_over(client))]
        counts = np.zeros(self._shape, np.int64)
        for client, held in enumerate(self._held):
            counts[client, list(held)] = list(held.values())
        return counts

    def _take(self, client: int) -> bool:
        """Gives the client one unused example: of its classes with any left, the one that it holds least of. False if
        none is left.
        """
        held = self._held[client]
        left = [c for c in self._lists[client] if self._unused[c]]
        if left:
            chosen = min(left, key=held.__getitem__)
            held[chosen] += 1
            self._unused[chosen] -= 1
            self._rest -= 1
        return bool(left)

    def _take_over(self, client: int) -> bool:
        """Gives the client an example of another client, a random one of the nearest, which gets a replacement in the
        same way; False if no such chain ends in an unused example.
        """
        giver: dict[int, tuple[int, int]] = {client: (client, -1)}  # who asked it, and for which class
        asked: set[int] = set()
        waiting = deque([client])
        while waiting:
            taker = waiting.popleft()
            for c in self._lists[taker]:
                if c in asked:
                    continue
                asked.add(c)
                for other in self._rng.permutation(self._holders[c]).tolist():
                    if other in giver or self._held[other][c] < 2:
                        continue
                    giver[other] = taker, c
                    waiting.append(other)
                    if self._take(other):
                        while other != client:
                            taker, c = giver[other]
                            self._held[other][c] -= 1
                            self._held[taker][c] += 1
                            other = taker
                        return True
        return False
