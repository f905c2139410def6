"""Clients whose answers a test gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sordino.engine.executor import Clients
from sordino.privacy.uplink import Summed
from sordino.types import Terms

Answers = Callable[[int, Any, Mapping[int, Terms]], Iterable[tuple[int, Any]] | Summed]


class Doing(Clients):
    """Clients that answer as a function says."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def __call__(self, t: int, down: Any, terms: Mapping[int, Terms]) -> Iterable[tuple[int, Any]] | Summed:
        return self._answers(t, down, terms)
