"""Row numbers of all clients, stored as two arrays: a million clients then need no million objects. Also a partition in
numbers: a table of counts, and a summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from sordino.errors import PartitionError

Array = NDArray[Any]


class RowNumbers(Sequence[Array]):
    """Row numbers of each client, stored in one array with the start of each client's part; `rows[k]` is a view of
    client k's.
    """

    def __init__(self, numbers: Array, starts: Array) -> None:
        assert starts[0] == 0
        assert starts[-1] == len(numbers)
        self.numbers, self.starts = numbers, starts  # starts: one more than there are clients

    @classmethod
    def of(cls, parts: Iterable[Array]) -> RowNumbers:
        """Row numbers of all clients, given as one array for each."""
        if isinstance(parts, RowNumbers):
            return parts
        listed = [np.asarray(part, np.int64) for part in parts]
        starts = np.cumsum([0, *map(len, listed)])
        return cls(np.concatenate([np.empty(0, np.int64), *listed]), starts)

    @classmethod
    def by_owner(cls, owner: Array, clients: int) -> RowNumbers:
        """Row numbers from the client that owns each row; rows with the owner -1 belong to no client. A client's rows
        are in rising order.
        """
        if owner.dtype.kind not in "iu":
            raise unfit("it gives rows to clients by numbers that are not whole")
        order = np.argsort(owner, kind="stable")
        ends = np.searchsorted(owner[order], np.arange(clients + 1))
        return cls(order[ends[0] :], ends - ends[0])

    def held_back(self, fraction: float, rng: np.random.Generator) -> tuple[RowNumbers, RowNumbers]:
        """Training rows and test rows of every client: a random `fraction` is held back for tests. A client always
        keeps one row to train on.
        """
        order = np.lexsort((rng.random(len(self.numbers)), self.owners))
        sizes = np.diff(self.starts)
        kept = np.maximum(np.minimum(1, sizes), ((1 - fraction) * sizes).astype(np.int64))
        place = np.arange(len(self.numbers)) - np.repeat(self.starts[:-1], sizes)
        training = place < np.repeat(kept, sizes)
        parts = []
        for chosen, each in ((training, kept), (~training, sizes - kept)):
            starts = np.concatenate([[0], np.cumsum(each)])
            numbers = self.numbers[order][chosen]
            parts.append(RowNumbers(numbers[np.lexsort((numbers, np.repeat(np.arange(len(self)), each)))], starts))
        return parts[0], parts[1]

    @property
    def sizes(self) -> RowCounts:
        return RowCounts(self.starts)

    @property
    def owners(self) -> Array:
        """The client of each entry of `numbers`."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def __len__(self) -> int:
        return len(self.starts) - 1

    @overload
    def __getitem__(self, k: int) -> Array: ...
    @overload
    def __getitem__(self, k: slice) -> list[Array]: ...
    def __getitem__(self, k: int | slice) -> Array | list[Array]:
        if isinstance(k, slice):
            return [self[i] for i in range(len(self))[k]]
        k = range(len(self))[k]
        return self.numbers[self.starts[k] : self.starts[k + 1]]


def checked(parts: Iterable[Array], rows: int) -> RowNumbers:
    """Row numbers from a user's own scheme, checked: each is below `rows` and belongs to one client at most, since a
    row of two clients would leak twice what the guarantee allows. In rising order, whatever order the scheme gives:
    what a client draws once in a run is drawn for places, and after a restart each row must be in its place again.
    """
    try:
        parts = parts if isinstance(parts, RowNumbers) else [np.asarray(part) for part in parts]
        if any(len(part) and part.dtype.kind not in "iu" for part in parts):
            raise unfit("it gives row numbers that are not whole")
        found = RowNumbers.of(parts)
    except (TypeError, ValueError) as error:
        raise unfit(f"it gives no list of row numbers for each client: {error}") from None
    if not len(found):
        raise unfit("it gives no clients")
    if len(found.numbers) and (found.numbers.min() < 0 or found.numbers.max() >= rows):
        raise unfit(f"it gives row numbers that are not among the {rows} rows, which are 0 to {rows - 1}")
    if len(np.unique(found.numbers)) < len(found.numbers):
        raise unfit("it gives some row to two clients, or twice to one")
    return RowNumbers(found.numbers[np.lexsort((found.numbers, found.owners))], found.starts)


def unfit(why: str) -> PartitionError:
    return PartitionError(
        "the partition of your own does not fit the data",
        why=why,
        fix="return one list of row numbers for each client, with every row in at most one of them",
        code="own-partition",
    )


class RowCounts(Sequence[int]):
    """Number of rows of each client, as a sequence; computed on access."""

    def __init__(self, starts: Array) -> None:
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, k: int) -> int: ...
    @overload
    def __getitem__(self, k: slice) -> list[int]: ...
    def __getitem__(self, k: int | slice) -> int | list[int]:
        if isinstance(k, slice):
            return [self[i] for i in range(len(self))[k]]
        k = range(len(self))[k]
        return int(self._starts[k + 1] - self._starts[k])

    def __iter__(self) -> Iterator[int]:
        return iter(np.diff(self._starts).tolist())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.diff(self._starts).astype(dtype or np.int64, copy=False)


# in numbers -----------------------------------------------------------------------------------------------------------


def table(labels: Array, parts: Sequence[Array], classes: int) -> Array:
    """The counts [clients, classes] of a partition."""
    rows = RowNumbers.of(parts)
    cells = rows.owners * classes + np.asarray(labels)[rows.numbers]
    return np.bincount(cells, minlength=len(rows) * classes).reshape(len(rows), classes)


def summary(labels: Array, parts: Sequence[Array], classes: int) -> dict[str, float]:
    """Sizes over all clients; the other numbers are means over the clients that hold anything.

    total_variation: distance of a client's label distribution to that of all together, 0 (alike) to 1.
    effective_classes: exp(entropy) of a client's labels, 1 (one class) to `classes` (all equally often).
    """
    counts = table(labels, parts, classes)
    sizes = counts.sum(1)
    held = counts[sizes > 0]
    share = held / held.sum(1, keepdims=True)
    overall = counts.sum(0) / max(counts.sum(), 1)
    entropy = -(share * np.log(np.where(share > 0, share, 1.0))).sum(1)
    return {
        "clients": len(parts),
        "examples": int(sizes.sum()),
        "size_min": int(sizes.min()),
        "size_median": float(np.median(sizes)),
        "size_max": int(sizes.max()),
        "classes_per_client": float((held > 0).sum(1).mean()),
        "total_variation": float(np.abs(share - overall).sum(1).mean() / 2),
        "effective_classes": float(np.exp(entropy).mean()),
    }
