"""What holds for every fact."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

import sordino
from sordino.accounting.events import DiscreteGaussian, Gaussian, Laplace
from sordino.accounting.facts import Fact, at_least_text, epsilon_text, parsed
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


def test_what_is_printed_of_an_epsilon_is_never_less_and_of_a_lower_bound_never_more() -> None:
    rng = random.Random(1)
    for value in (10 ** rng.uniform(-3, 3) for _ in range(2000)):
        for digits in (3, 4):
            assert value * (1 - 1e-9) <= float(epsilon_text(value, digits)) <= value * (1 + 10.0 ** (1 - digits))
        assert value * 0.99 <= float(at_least_text(value)) <= value
        drawn = DiscreteGaussian(value), Gaussian(value), Laplace(value)
        told = [re.search(r"of (\S+) times", event.words) for event in drawn]
        assert all(found and value * 0.99 <= float(found[1]) <= value for found in told)
    assert [epsilon_text(x, 4) for x in (8.0, 3.9991, 0.0)] == ["8", "4", "0"]
    assert [at_least_text(x) for x in (0.0, 1.2399, 3.0)] == ["0", "1.23", "3"]


def test_no_text_rounds_an_epsilon_to_the_nearest_number() -> None:
    """Half of the numbers that a format makes are too small: 9.9994 is not 9.999. A publication's number is read beside
    what holds, so it is rounded alike.
    """
    names = r"(?:\w*epsilon|printed|composed|claimed\w*|at_least\w*)"
    formats = re.compile(rf"\{{[^{{}}]*\b{names}:\.[1-6][fg]\}}|\bnumber\([^()]*\b{names}\)")
    for told in ('f"buys epsilon {q.epsilon:.4g} at"', 'f"{row.nominal_epsilon:.3g}"', "number(p.nominal_epsilon)"):
        assert formats.search(told)
    places = sorted(Path(sordino.__file__).parent.rglob("*.py"))
    assert [(p.name, found[0]) for p in places if (found := formats.search(p.read_text(encoding="utf-8")))] == []
