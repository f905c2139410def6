"""What attacks found, as it is written into attack.json and read from there: figures, pictures as bytes, and what was
promised. No tensor is needed to read it.
"""

from __future__ import annotations

from typing import Literal

from sordino.accounting.claims import Adversary, Neighbours, Status, Unit
from sordino.accounting.facts import FORMAT, Epsilon, Fact, Format, Number
from sordino.runs.shapes import LeftInRun

Verdict = Literal["broken", "reached", "stopped", "no power", "not tried"]
WARNING = "This file holds images of the training data. It is for whoever owns them, and for nobody else."
UNPOISONED = "attackers who send something false"
UNSEEN = (
    UNPOISONED,
    "attackers who see several rounds together",
    "how long things take",
    "attacks that nobody has written down yet",
)


class BesideGuess(Fact):
    """One figure of what an attack reached, beside the same of a guess and of the run without protection."""

    name: str
    unit: str = ""
    value: Number
    baseline: Number  # of somebody who saw nothing
    control: Number | None = None  # of the same attack on the same run without protection; None where there is no such
    low: Number | None = None  # of an interval around the value, at `level`
    high: Number | None = None
    level: float | None = None


class PictureRow(Fact):
    """Images side by side: what they are, and their bytes."""

    told: str
    shape: tuple[int, int, int, int]  # [n, height, width, 1 or 3]
    pixels: str  # base64


class Held(Fact):
    """A promise that the run makes against this attacker. It is about a unit, whatever the attack was after."""

    unit: Unit
    neighbours: Neighbours
    adversary: Adversary
    epsilon: Epsilon
    delta: float
    status: Status
    nominal_epsilon: Epsilon | None = None


class Roc(Fact):
    """How many members are found at how many false alarms, and the most that a promise allows."""

    points: tuple[tuple[float, float], ...]  # (false alarms, found)
    control: tuple[tuple[float, float], ...] = ()
    bound: Held | None = None  # of the release that was attacked: found <= e^epsilon alarms + delta


class AttackFinding(Fact):
    """What one attack reached."""

    attack: str
    what: str  # it does, in a sentence
    sees: Adversary
    verdict: Verdict
    why: str  # of the verdict, in a sentence
    measured: tuple[BesideGuess, ...] = ()  # the headline first
    pictures: tuple[PictureRow, ...] = ()
    roc: Roc | None = None
    promises: tuple[Held, ...] = ()
    heads: tuple[str, str] = ("guess", "without protection")  # of what stands beside each figure
    whole: bool = False  # was the whole run played, in place of listening to one round?


class Assault(LeftInRun):
    """What attackers reached of one run: the content of attack.json."""

    warning: str = WARNING
    format: Format = FORMAT
    algorithm: str
    round: int
    clients: tuple[int, ...]
    images: int  # that each attacked client holds in the attacked round; 0: all that it has
    seed: int
    simulated: bool
    replay: str  # how far the round is known to be the one that was played
    found: tuple[AttackFinding, ...]
    not_looked_at: tuple[str, ...] = UNSEEN

    def to_json(self) -> dict[str, object]:
        """The file stands by itself: it says what never changes, too."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def setting(self) -> str:
        """What was attacked, in a sentence."""
        if self.found and all(one.whole or one.verdict == "not tried" for one in self.found):
            return "The whole run was played with attackers among its clients, and without."
        many = f"{self.images} of its examples" if self.images else "all of its examples"
        who = ", ".join(map(str, self.clients))
        return f"Listened to was round {self.round}, in which each attacked client ({who}) holds {many}. {self.replay}"

    def having(self, *verdicts: str) -> list[AttackFinding]:
        return [one for one in self.found if one.verdict in verdicts]
