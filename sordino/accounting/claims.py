"""Subjects of guarantees, claims (the cost of one release to one subject), and the policy of a phase: whether its noise
is real, its cohort hidden, its uploads unreadable. They hold public facts only.

Privacy costs as vectors of integers, in pico-units: 10**12 to 1.0 of the quantity.

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
from functools import lru_cache
from itertools import pairwise
from operator import le
from typing import Annotated, Literal, get_args

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema

from sordino.accounting.events import Event, Json, NonPrivate, check_event, from_json, leaves, to_json
from sordino.accounting.facts import Fact
from sordino.errors import InvalidBudget, UnsoundGuarantee

UNIT = 10**12
Amount = tuple[int, ...]

_RULES: dict[str, Callable[[Iterable[bool]], bool]] = {"all": all, "any": any}


@dataclass(frozen=True)
class Currency:
    """Currency of privacy costs: the names of its components, and the rule by which a total fits under a cap."""

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


# checked in this order: later tests rely on earlier ones
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


# image: an example whose label is given; cell: a fixed part of a client's examples; person: all examples with one value
# of the key, as many as the schema allows (no claim is about it: group privacy gives its guarantee); test example: part
# of no other unit, since nothing is trained on it
Unit = Literal["pixel", "image", "example", "cell", "person", "client", "test example"]
UNITS: tuple[Unit, ...] = ("pixel", "image", "example", "cell", "person", "client")  # from small to large
Neighbours = Literal["replace", "zero_out"]
Adversary = Literal["server", "participants", "public"]
Status = Literal["proved", "conditional", "nominal", "none"]

ADVERSARIES: tuple[Adversary, ...] = ("server", "participants", "public")
STATUSES: tuple[Status, ...] = ("proved", "conditional", "nominal", "none")  # from strong to empty


def check_neighbours(neighbours: object) -> None:
    """Refuses every neighbour relation but `replace` and `zero_out`, above all add-or-remove, under which it is secret
    that a unit exists."""
    if neighbours not in get_args(Neighbours):
        raise UnsoundGuarantee(
            f"there are no neighbours called {neighbours!r}",
            why="participants and their numbers of examples are public here, and the noise is scaled by them: what can "
            "be hidden is the contribution of a unit, not its existence. The number that other programs print for "
            "add_remove is that of zero_out, but it promises something else",
            fix='write neighbours = "replace" or "zero_out"',
            code="unknown-neighbours",
        )


def standing(status: str, simulated: bool) -> str:
    """Status as reports display it: marked "(simulation)" where noise can be repeated from a seed. Such noise protects
    nobody, however well its epsilon is proved."""
    return f"{status} (simulation)" if simulated and status != "none" else status


class Subject(Fact):
    """Subject of a guarantee: the protected unit, its neighbours (which change of the unit is hidden), and the
    adversary from whom the change is hidden.
    """

    unit: Unit = Field(
        description="The protected unit: a pixel, an image, an example, a cell of examples, a person with several "
        "examples, or everything of a client."
    )
    neighbours: Neighbours = Field(
        description="The change of one unit that the guarantee hides: `replace` (it has another value), `zero_out` "
        "(its contribution is counted or not; that it exists, and how many there are, is public)."
    )
    adversary: Adversary = Field(
        description="The observer: the `server` sees every upload, `participants` every model that is sent out, the "
        "`public` what is published."
    )

    @property
    def subject(self) -> Subject:
        """The unit, neighbours and adversary alone, without the other fields of a subclass."""
        return Subject(unit=self.unit, neighbours=self.neighbours, adversary=self.adversary)


def _event(given: object) -> Event:
    if isinstance(given, Event):
        return given
    try:
        return from_json(given)
    except (TypeError, ArithmeticError) as error:  # what an event refuses by itself is a ValueError
        raise ValueError(str(error)) from None


AN_EVENT: Json = {"type": "object", "title": "Event"}
Written = Annotated[Event, PlainValidator(_event), PlainSerializer(to_json), WithJsonSchema(AN_EVENT)]


@lru_cache(maxsize=1024)
def _private(event: Event) -> bool:
    return not any(isinstance(leaf, NonPrivate) for leaf in leaves(event))


class Claim(Subject):
    """Privacy guarantee of one release: its cost as an event, the status of the proof, and its assumptions."""

    event: Written
    status: Status
    because: tuple[str, ...]  # assumptions, or the reason why nothing is promised
    drift: float = Field(default=0.0, ge=0.0)  # total variation between the noise drawn and the ideal law of the event

    @classmethod
    def to_everyone(
        cls, unit: Unit, neighbours: Neighbours, event: Event, status: Status, because: tuple[str, ...]
    ) -> list[Claim]:
        """The same claim three times: against the server, the participants and the public."""
        return [
            cls(unit=unit, neighbours=neighbours, adversary=a, event=event, status=status, because=because)
            for a in ADVERSARIES
        ]

    @property
    def finite(self) -> bool:
        """True where something is guaranteed: no part of the event is without protection."""
        return _private(self.event)

    def resting_on(self, *because: str) -> Claim:
        """Copy of the claim with these assumptions added; a proved claim becomes `conditional` by them."""
        weaker: Status = max(self.status, "conditional", key=STATUSES.index) if because else self.status
        return self.beside(status=weaker, because=(*self.because, *because))

    def to_json(self) -> Json:
        check_event(self.event)
        return super().to_json()


def is_real(noise: str) -> bool:
    """True for noise of the operating system, the only one that protects anybody: any other can be drawn again from a
    seed.
    """
    return noise == "system"


@dataclass(frozen=True)
class Policy:
    """Facts of a phase on which its claims rest: the source of noise, whether the cohort is hidden, and whether uploads
    are secret.
    """

    noise: str  # as [privacy] names it, and as notes in a ledger do
    hidden: bool  # who takes part in a round is secret
    secure: bool  # uploads are summed without being readable one by one

    @property
    def real(self) -> bool:
        return is_real(self.noise)

    @property
    def secret_cohort(self) -> bool:
        """True where nobody may learn who takes part (hidden cohort, real noise): client sampling must not be repeated
        from a seed, and a site must not show its own rounds.
        """
        return self.real and self.hidden
