"""Labels to divide, and what is wrong with a division."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sordino.errors import PartitionError
from sordino.partition import (
    Scheme,
)

Array = NDArray[Any]


sizes_of_classes = st.lists(st.integers(1, 40), min_size=1, max_size=8)


any_settings = settings(deadline=None, max_examples=60)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels_of(sizes: list[int], seed: int | None = 0) -> Array:
    ordered = np.repeat(np.arange(len(sizes)), sizes)
    return ordered if seed is None else rng(seed).permutation(ordered)


def flaws(parts: list[Array], n: int, complete: bool = True) -> set[str]:
    """What keeps `parts` from being a partition of range(n)."""
    joined = np.concatenate(parts)
    found = {
        "overlap": len(np.unique(joined)) < len(joined),
        "incomplete": complete and len(np.unique(joined)) < n,
        "outside": bool(((joined < 0) | (joined >= n)).any()),
        "unsorted": any((np.diff(part) < 0).any() for part in parts),
        "dtype": any(part.dtype != np.int64 for part in parts),
    }
    return {flaw for flaw, present in found.items() if present}


def code_of(scheme: Scheme, labels: Array, group: Array | None = None) -> str:
    """The code of a refusal that must come before any draw: the generator given cannot draw."""
    with pytest.raises(PartitionError) as caught:
        scheme.assign(labels, group, object())  # type: ignore[arg-type]
    return str(caught.value.code)
