"""Privacy costs as vectors of integers, in pico-units: 10**12 to 1.0 of the quantity.

Integers add without rounding, so a total cannot drift and a subnormal cost cannot vanish. Costs are rounded up, caps
down. A currency says what is counted, such as rho of zCDP, which components it has, and when a total fits under a cap.
With `rule = "all"` every component must fit. With `rule = "any"` one Rényi order that fits is enough: the filter of
Feldman and Zrnic (2021) and Lécuyer (2021), which stays valid when each cost is chosen after seeing earlier outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from operator import le
from typing import Literal

from sordino.errors import InvalidBudget

UNIT = 10**12
Amount = tuple[int, ...]

_RULES: dict[str, Callable[[Iterable[bool]], bool]] = {"all": all, "any": any}


@dataclass(frozen=True)
class Currency:
    name: str
    parts: tuple[str, ...]
    rule: Literal["all", "any"]

    def zero(self) -> Amount:
        return (0,) * len(self.parts)

    def fits(self, total: Amount, cap: Amount) -> bool:
        return _RULES[self.rule](map(le, total, cap))

    def amount(self, value: object, *, what: str) -> Amount:
        """Checks a privacy cost or budget: a vector of non-negative integers, one for each component of this currency.
        Returns it; anything else is refused."""
        if not isinstance(value, tuple) or len(value) != len(self.parts):
            raise InvalidBudget(
                f"{what} {value!r} is not a vector of {len(self.parts)} integers",
                why=f"the ledger counts {self.name}: {', '.join(self.parts)}",
                fix="build it with cost(...) or cap(...)",
                code="amount-shape",
            )
        for part in value:
            if type(part) is not int or part < 0:
                raise InvalidBudget(
                    f"{what} has the component {part!r}",
                    why="the ledger counts in integers: floats are inexact, and a negative cost would refill a budget",
                    fix="build it with cost(...) or cap(...)",
                    code="amount-not-integer",
                )
        return value

    def charge(self, value: object, *, what: str) -> Amount:
        """Validates an amount above zero, and returns it; anything else is refused."""
        amount = self.amount(value, what=what)
        if not any(amount):
            raise InvalidBudget(
                f"{what} is zero",
                why="every release costs something, so its cost is above 0",
                fix="build it with cost(...)",
                code="amount-zero",
            )
        return amount


PURE = Currency("pure", ("epsilon",), "all")
APPROX = Currency("approx", ("epsilon", "delta"), "all")
ZCDP = Currency("zcdp", ("rho",), "all")


def rdp(orders: Sequence[float]) -> Currency:
    """The currency that counts Rényi divergences at orders fixed in advance; a total fits if it fits at one order."""
    alphas = [float(order) for order in orders]
    rising = all(low < high for low, high in pairwise(alphas))
    if not alphas or not rising or not all(1 < alpha < math.inf for alpha in alphas):
        raise InvalidBudget(
            f"{list(orders)} are not valid Rényi orders",
            why="orders must be finite, above 1, and each larger than the one before",
            fix="use for example (1.5, 2, 4, 8, 16, 32, 64)",
            code="orders-invalid",
        )
    return Currency("rdp", tuple(f"order {repr(alpha).removesuffix('.0')}" for alpha in alphas), "any")


def cost(values: Sequence[float]) -> Amount:
    """A cost in pico-units, rounded up: what is charged is never less than what is spent."""
    return tuple(math.ceil(value * UNIT) for value in _exact(values, "cost"))


def cap(values: Sequence[float]) -> Amount:
    """A cap in pico-units, rounded down. It is 0 at a Rényi order at which nothing is left to spend."""
    return tuple(math.floor(value * UNIT) for value in _exact(values, "cap"))


def _exact(values: Sequence[float], what: str) -> list[Fraction]:
    """Each float as the decimal that it prints as: 0.1 is 1/10, so that ten of them fill a cap of 1."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) or not values:
        raise InvalidBudget(
            f"{values!r} is not a {what}",
            why="it must be a sequence of numbers, one for each component of the currency",
            fix="give for example [0.1]",
            code=f"{what}-shape",
        )
    for value in values:
        for wrong, why, code in _FAULTS:
            if wrong(value):
                raise InvalidBudget(
                    f"{what} {value!r} {why}", fix="give finite numbers that are not negative", code=f"{what}-{code}"
                )
    if not any(values):
        raise InvalidBudget(
            f"{what} {values!r} is zero everywhere",
            why="privacy is never free" if what == "cost" else "nothing could be spent under it",
            fix="give at least one number above 0",
            code=f"{what}-zero",
        )
    return [Fraction(value if isinstance(value, int) else float.__repr__(value)) for value in values]


# in this order: a later test may rely on the earlier ones
_FAULTS: tuple[tuple[Callable[[float], bool], str, str], ...] = (
    (lambda value: isinstance(value, bool), "is a truth value, not a number", "bool"),
    (lambda value: not isinstance(value, (int, float)), "is not a number", "type"),
    (lambda value: value != value, "is not a number", "nan"),
    (lambda value: value in (math.inf, -math.inf), "is infinite", "infinite"),
    (lambda value: value < 0, "is negative: it would refill the budget", "negative"),
    (
        lambda value: value == 0 and math.copysign(1, value) < 0,
        "is a negative zero: a sign was lost",
        "negative-zero",
    ),
)
