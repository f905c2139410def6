"""The public weights of all clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Weights(Sequence[float]):
    """The weight of every client, by its size: sizes are fewer than clients."""

    sizes: Sequence[int]
    of: Mapping[int, float]

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, client: Any) -> Any:
        return self.of[self.sizes[client]]

    def __iter__(self) -> Iterator[float]:
        return map(self.of.__getitem__, self.sizes)
