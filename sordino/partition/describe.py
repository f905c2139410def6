"""What a partition looks like: who holds how many of which class, in one table and in a few numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sordino.partition.rows import Array, RowNumbers

__all__ = ["Array", "summary", "table"]


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
