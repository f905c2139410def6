"""Even division of examples by given class lists: Li, Xiao and Chen, Chinese Journal of Computers 2024, active-class
induced diversity.

Examples are given out one by one: a random client among those with the fewest takes one of the class it holds least of.
Where none of its classes is left, it takes an example over from another client, which replaces it in the same way,
until one client in the chain finds an unused example; the shortest chain is chosen, so it ends. A client that no chain
can serve is done. If it was then one short, no division gives every client its even share: the clients that it can
reach by chains hold no more than an even share, and no client beyond holds more than one example of any of their
classes."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.random import Generator

from sordino.partition.row_numbers import Array


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
    graph = coo_array((room.astype(np.int32), (start, end)), shape=(sink + 1, sink + 1)).tocsr()
    return bool(maximum_flow(graph, 0, sink).flow_value == spare.sum())


class _Filling:
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
        self._held = [dict.fromkeys(mine, 0) for mine in self._lists]

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
        """Gives the client an unused example of that one of its classes, among those left, of which it holds least;
        False where none is left.
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
        """Gives the client an example of another client, random among the nearest, that can replace it or take one over
        in turn; False where no chain ends in an unused example.
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
