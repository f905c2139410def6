"""What only the server has beside its state. Client processes never get it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sordino.keys import Key
from sordino.types import Examples, Task


@dataclass(frozen=True)
class ServersHome:
    """The server's own data. What takes hours to draw is drawn when somebody asks for it."""

    task: Task
    key: Key
    sizes: Sequence[int]
    _probe: Callable[[], Examples | None] = field(repr=False)
    _tested: Callable[[], Examples] = field(repr=False)
    _candidates: Callable[[], Examples | None] = field(repr=False)
    _story: Callable[[], Mapping[str, Any] | None] = field(repr=False)

    @cached_property
    def probe(self) -> Examples | None:
        return self._probe()

    @cached_property
    def tested(self) -> Examples:
        return self._tested()

    @cached_property
    def candidates(self) -> Examples | None:
        return self._candidates()

    @property
    def story(self) -> Mapping[str, Any] | None:
        return self._story()
