"""Clients whose answers a test gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sordino.engine.executor import Answers, Clients
from sordino.types import Terms

Says = Callable[[int, Any, Mapping[int, Terms]], Iterable[tuple[int, Any]]]


class Doing(Clients):
    """Clients that answer as a function says."""

    def __init__(self, answers: Says) -> None:
        self._answers = answers

    def __call__(self, t: int, down: Any, terms: Mapping[int, Terms]) -> Answers:
        return Answers(self._answers(t, down, terms))


def answers_of(uploads: Says) -> Callable[..., Answers]:
    """A round whose answers are the uploads that this function yields: in place of `Site.__call__`."""
    return lambda *asked: Answers(uploads(*asked))
