"""The offer, the claims and the paid reads that all readers with priced noise have in common.

A reader of its own says only what differs.
"""

from __future__ import annotations

from abc import abstractmethod

from sordino.accounting.claims import Status
from sordino.accounting.events import Event, Poisson, Repeat, check_multiplier
from sordino.errors import PrivacyError
from sordino.privacy.noise.laws import GaussianNoise, LaplaceNoise
from sordino.privacy.readers.covered import check_apart
from sordino.privacy.uplink.stages import Clip
from sordino.types import ADVERSARIES, Claim, Neighbours, Offer, Reader, Task, Unit, Work

SIZES = "the number of examples of each client is public"
PAID = "every noisy read is paid for before the round starts"


class Noised(Reader):
    """A reader whose answers carry noise at a multiplier that is typed into it or bought by the budget."""

    def __post_init__(self) -> None:
        check_multiplier(self.multiplier, "give a multiplier above 0, or a budget in [privacy]")

    @property
    @abstractmethod
    def mechanism(self) -> GaussianNoise | LaplaceNoise:
        """The law of the noise."""

    @property
    @abstractmethod
    def neighbours(self) -> Neighbours:
        """The change that the noise hides: one unit replaced, or what it contributes counted or not."""

    @property
    def unit(self) -> Unit:
        """The unit that the promise protects: an example, or a cell of examples."""
        return "example"

    @property
    def status(self) -> Status:
        """How far the promise is proved."""
        return "proved"

    @property
    def because(self) -> tuple[str, ...]:
        """What the promise assumes, said with every claim."""
        return (SIZES,)

    @property
    def sampled(self) -> float | None:
        """The probability with which a unit comes into a read, where that is secret; None where all come."""
        return None

    def offer(self) -> Offer:
        rate = 1.0 if self.sampled is None else self.sampled
        return Offer(self.unit, self.neighbours, "server", self.mechanism, everyone_pays=False, rate=rate)

    def used(self, planned: float | None) -> float:
        """The multiplier of the noise: the typed one, or else what the plan gives."""
        multiplier = self.multiplier if self.multiplier is not None else planned
        assert multiplier is not None, "the plan prices every private reader before a round"
        return multiplier

    def event(self, multiplier: float) -> Event:
        """What one read costs, as an event of the ledger."""
        event: Event = self.mechanism.event(multiplier)
        return event if self.sampled is None else Poisson(self.sampled, event)

    def claims(self, work: Work, size: int, multiplier: float | None) -> list[Claim]:
        event, reads = self.event(self.used(multiplier)), self.reads(work, size)
        event = Repeat(event, reads) if reads > 1 else event
        return [Claim(self.unit, self.neighbours, a, event, self.status, self.because) for a in ADVERSARIES]


class Clipped(Noised):
    """A noised reader that cuts what each unit gives to the length `clip`, whatever the others are."""

    clip: float

    def __post_init__(self) -> None:
        Clip(self.clip)
        super().__post_init__()

    @property
    def cut(self) -> float:
        return self.clip

    def check(self, work: Work, task: Task) -> None:
        check_apart(task)


def check_reservation(opened: bool, reads: int, reserved: int | None, what: str) -> None:
    """Refuses a second pass over a shard, and more noisy reads of it than the round has paid for."""
    if opened or (reserved is not None and reads > reserved):
        raise PrivacyError(
            f"a second pass over the {what}" if opened else f"{reads} reads, but only {reserved} were reserved",
            why=PAID,
            fix="return the true number of reads from the algorithm's `work`, and go over the examples once",
            code="read-beyond-reservation",
        )


def check_unread(read: bool, what: str, fix: str) -> None:
    """Refuses to answer the same noisy question again."""
    if read:
        raise PrivacyError(f"{what} was read a second time", why=PAID, fix=fix, code="read-beyond-reservation")
