"""A second library beside dp-accounting, on which our accountants rest: opake-accounting gives the same epsilons.

Its numbers are kept in tests/golden/opake.json; where it is installed it is asked anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sordino.accounting.accountants import best
from sordino.accounting.events import Event, Gaussian, Poisson, Repeat, Together
from tests.golden.make_opake import CASES, Case, epsilon, opake

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "opake.json").read_text())["cases"]
CLOSE = 1e-3  # its grid of 1e-4 adds up over hundreds of releases; both bounds are pessimistic


def event(case: Case) -> Event:
    return Together(tuple(Repeat(Poisson(q, Gaussian(z)), count) for z, q, count in case[0]))


def ours(case: Case) -> float:
    return best(event(case), case[1], "zero_out").epsilon


def check(asked: Callable[[Case], float], rows: list[tuple[Case, float]]) -> None:
    for case, theirs in rows:
        assert asked(case) == pytest.approx(theirs, rel=CLOSE), case


ROWS = [(case, row["epsilon"]) for case, row in zip(CASES, GOLDEN, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [[*ROWS[:9:2], ROWS[12]], ROWS], ids=len)
def test_the_second_library_gives_the_same(rows: list[tuple[Case, float]]) -> None:
    check(ours, rows)
    for case, theirs in rows:
        if all(rate == 1.0 for _, rate, _ in case[0]):
            assert ours(case) <= theirs * (1 + 1e-8), case  # ours is exact there, and theirs is searched


def test_the_numbers_are_those_of_the_cases() -> None:
    assert [([tuple(part) for part in row["parts"]], row["delta"]) for row in GOLDEN] == CASES


@pytest.mark.parametrize(
    "change", [lambda z, q, n: (z * 1.01, q, n), lambda z, q, n: (z, q, n - 1 if n > 50 else n + 1)]
)
def test_a_little_too_much_noise_is_noticed(change: Callable[[float, float, int], tuple[float, float, int]]) -> None:
    """The negative control: one per cent of noise, or one release, that was not there."""
    for row in (ROWS[0], ROWS[2], ROWS[4]):
        with pytest.raises(AssertionError):
            check(lambda case: ours(([change(*part) for part in case[0]], case[1])), [row])


@pytest.mark.slow
def test_it_still_gives_these_numbers() -> None:
    library = opake()
    if library is None:
        pytest.skip("opake-accounting is not installed: pip install sordino[oracle]")
    assert [epsilon(library, case) for case in CASES] == pytest.approx([row["epsilon"] for row in GOLDEN], rel=1e-9)
