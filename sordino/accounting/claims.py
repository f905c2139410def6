"""Subjects of guarantees, claims (the cost of one release to one subject), and the policy of a phase: whether its noise
is real, its cohort hidden, its uploads unreadable. They hold public facts only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal, get_args

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema

from sordino.accounting.events import Event, Json, NonPrivate, check_event, from_json, leaves, to_json
from sordino.accounting.facts import Fact
from sordino.errors import UnsoundGuarantee

# an image is an example whose label is given, a cell a fixed part of a client's examples; a person is all examples
# with one value of the key, as many as the schema allows, and no release speaks of it by itself; a test example lies
# in none of them, since nothing is trained on it
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
    drift: float = 0.0  # total variation between the noise that was drawn and the ideal law that the event names

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

    @classmethod
    def from_json(cls, record: Json) -> Claim:
        return cls.model_validate(record, strict=False)  # JSON has no tuples


def is_real(noise: str) -> bool:
    """True for noise of the operating system, the only one that protects anybody: any other can be drawn again from a
    seed.
    """
    return noise == "system"


@dataclass(frozen=True)
class Policy:
    noise: str  # as [privacy] names it, and as notes in a ledger do
    hidden: bool  # may nobody know who takes part in a round?
    secure: bool  # are uploads added up where nobody can read a single one?

    @property
    def real(self) -> bool:
        return is_real(self.noise)

    @property
    def secret_cohort(self) -> bool:
        """True where nobody may learn who takes part (hidden cohort, real noise): client sampling must not be repeated
        from a seed, and a site must not show its own rounds.
        """
        return self.real and self.hidden
