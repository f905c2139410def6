"""A claim: what one release costs one unit against one adversary. It holds public facts only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from sordino.accounting.events import Event, Json, from_json, to_json
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
    """Refuses every relation but these two, above all the one that hides whether somebody exists."""
    if neighbours not in get_args(Neighbours):
        raise UnsoundGuarantee(
            f"there are no neighbours called {neighbours!r}",
            why="who takes part, and with how many examples, is public here, and the noise is scaled by it: what can "
            "be hidden is what a unit contributes, not that it exists. The number that other programs print under "
            "add_remove is that of zero_out, its sentence is not",
            fix='write neighbours = "replace" or "zero_out"',
            code="unknown-neighbours",
        )


def standing(status: str, simulated: bool) -> str:
    """A status as it is shown: a simulation protects nobody, however well its numbers are proved."""
    return f"{status} (simulation)" if simulated and status != "none" else status


@dataclass(frozen=True)
class Claim:
    unit: Unit
    neighbours: Neighbours
    adversary: Adversary
    event: Event
    status: Status
    because: tuple[str, ...] = ()  # assumptions, or the reason why nothing is promised
    drift: float = 0.0  # total variation between the noise that was drawn and the ideal law that the event names

    def resting_on(self, *because: str) -> Claim:
        """The same, if these conditions hold, too."""
        weaker: Status = max(self.status, "conditional", key=STATUSES.index) if because else self.status
        return replace(self, status=weaker, because=(*self.because, *because))

    def to_json(self) -> Json:
        return {
            **({"drift": self.drift} if self.drift else {}),
            "unit": self.unit,
            "neighbours": self.neighbours,
            "adversary": self.adversary,
            "event": to_json(self.event),
            "status": self.status,
            "because": list(self.because),
        }

    @classmethod
    def from_json(cls, record: Json) -> Claim:
        return cls(
            record["unit"],
            record["neighbours"],
            record["adversary"],
            from_json(record["event"]),
            record["status"],
            tuple(record["because"]),
            record.get("drift", 0.0),
        )
