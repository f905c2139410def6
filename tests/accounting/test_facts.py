"""What holds for every fact."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from sordino.accounting.facts import Fact
from sordino.config import Experiment, Section
from sordino.metrics.rows import RoundRow


def below(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for one in kind.__subclasses__():
        yield one
        yield from below(one)


def test_names_that_begin_with_model_are_no_warning() -> None:
    """pydantic before 2.10 keeps them for itself, and said so before every verb."""
    kinds = [*below(Fact), *below(Section)]
    assert {RoundRow, Experiment} <= set(kinds)
    for kind in kinds:
        if kind.__module__.startswith("sordino.") and any(name.startswith("model_") for name in kind.model_fields):
            assert kind.model_config.get("protected_namespaces") == (), kind
