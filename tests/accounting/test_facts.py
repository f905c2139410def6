"""What holds for every fact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from sordino.accounting.facts import Fact, parsed
from sordino.config import Experiment, Section
from sordino.errors import SordinoError
from sordino.metrics import RoundRow


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


class Told(Fact):
    epsilon: float
    more: dict[str, int] | None = None


@pytest.mark.parametrize("twice", ['{"epsilon": 8.0, "epsilon": 1.0}', '{"epsilon": 1.0, "more": {"a": 1, "a": 2}}'])
def test_a_name_that_occurs_twice_has_no_value(twice: str) -> None:
    """Two readers could take different ones."""
    assert parsed(Path("f"), '{"epsilon": 1.0, "more": {"a": 1}, "unknown": 2}', Told, "fix").epsilon == 1.0
    with pytest.raises(SordinoError, match="a name occurs twice") as refused:
        parsed(Path("f"), twice, Told, "fix")
    assert refused.value.fix == "fix"
