"""Events: records of what was done with the data, as the ledger stores them.

An event holds which noise was added, how often, on which sample, and knows what that costs (`mechanisms`). Accountants
compose events, the ledger stores them as JSON, the report prints them. Noise is always relative to the sensitivity
under the neighbours that the statement names, so an event needs no clip bound. The vocabulary is that of Google's
dp-accounting; this module needs neither it, nor torch, nor scipy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeAlias

from sordino.accounting.mechanisms import DiscreteGaussian as DiscreteGaussian
from sordino.accounting.mechanisms import Event as Event
from sordino.accounting.mechanisms import Gaussian as Gaussian
from sordino.accounting.mechanisms import Laplace as Laplace
from sordino.accounting.mechanisms import Orders as Orders
from sordino.accounting.mechanisms import Response as Response
from sordino.accounting.mechanisms import amplified as amplified
from sordino.accounting.mechanisms import check_multiplier as check_multiplier
from sordino.accounting.mechanisms import noise, settle
from sordino.accounting.mechanisms import valid_delta as valid_delta
from sordino.accounting.mechanisms import valid_epsilon as valid_epsilon
from sordino.errors import COUNT, FRACTION, InvalidBudget, UnsupportedEvent, check_range


@dataclass(frozen=True)
class DrawnOnce(Event):
    """An event whose noise is drawn once in a run and then reused: each further release under the same name costs
    nothing more."""

    meaning = "`event`, drawn once under this `name` and then only looked at again."

    fresh = False

    name: str
    event: Event

    def __post_init__(self) -> None:
        _check_text(self.name, "the name of an event", why="releases that repeat are found by this name")
        check_event(self.event)

    def unfold(self, times: int, seen: set[Event], whole: bool) -> Iterator[tuple[Event, int]]:
        if self not in seen:
            seen.add(self)
            yield from [(self, 1)] if whole else self.event.unfold(1, seen, whole)

    def stretched(self, number: float) -> Event | None:
        inner = self.event.stretched(number)
        return inner and DrawnOnce(self.name, inner)


@dataclass(frozen=True)
class Poisson(Event):
    """An event on a secret sample, in which every unit takes part independently with probability `rate`."""

    meaning = "`event`, on a secret sample in which each unit takes part with probability `rate`."

    rate: float
    event: Event

    def __post_init__(self) -> None:
        rate = noise(self.rate)
        check_range("a sampling rate", rate, FRACTION, "rate-out-of-range", error=InvalidBudget)
        settle(self, "rate", rate)
        check_event(self.event)

    @property
    def fresh(self) -> bool:
        return draws_afresh(self.event)

    def settled(self, neighbours: str) -> Iterator[tuple[Event | None, int]]:
        if self.rate == 1.0:  # everyone takes part: nothing is sampled
            for leaf, times in leaves(self.event).items():
                for settled, n in leaf.settled(neighbours):
                    yield settled, n * times
            return
        inside = reduce(self.event, neighbours)
        if not inside.private:
            yield None, 1
        elif read := _single(inside):
            _only_zero_out(neighbours)
            yield Poisson(self.rate, read), 1

    @property
    def words(self) -> str:
        return f"on a secret sample (each unit with probability {self.rate:.4g}): {'; '.join(descriptions(self.event))}"

    def pure(self, rate: float = 1.0) -> float | None:
        return self.event.pure(rate * self.rate)

    def renyi(self, orders: Orders, rate: float = 1.0) -> Any:
        return self.event.renyi(orders, rate * self.rate)

    def loss(self, pld: Any, grid: float, rate: float = 1.0, added: bool = False) -> Any:
        return self.event.loss(pld, grid, rate * self.rate, added)

    def loss_size(self, rate: float = 1.0) -> tuple[float, float] | None:
        return self.event.loss_size(rate * self.rate)


@dataclass(frozen=True)
class Repeat(Event):
    """An event that happens `count` times, each with fresh randomness."""

    meaning = "`event`, `count` times, each with fresh noise."

    event: Event
    count: int

    def __post_init__(self) -> None:
        check_event(self.event)
        check_range("the number of repetitions", self.count, COUNT, "count-not-positive", error=InvalidBudget)
        settle(self, "count", int(self.count))

    def unfold(self, times: int, seen: set[Event], whole: bool) -> Iterator[tuple[Event, int]]:
        return self.event.unfold(times * self.count, seen, whole)

    def stretched(self, number: float) -> Event | None:
        inner = self.event.stretched(number)
        return inner and Repeat(inner, self.count)


@dataclass(frozen=True)
class Together(Event):
    """The composition of several events on the same data."""

    meaning = "All of `events`, on the same data."

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        settle(self, "events", tuple(self.events))
        for event in self.events:
            check_event(event)

    def unfold(self, times: int, seen: set[Event], whole: bool) -> Iterator[tuple[Event, int]]:
        for event in self.events:
            yield from event.unfold(times, seen, whole)

    def stretched(self, number: float) -> Event | None:
        parts = [event.stretched(number) for event in self.events]
        return None if None in parts else Together(tuple(filter(None, parts)))


@dataclass(frozen=True)
class NonPrivate(Event):
    """Access without any protection: it costs infinity. The reason is shown in receipts."""

    meaning = "Access without protection, and the `reason`."

    reason: str

    fresh = False

    @property
    def words(self) -> str:
        return f"a release without noise ({self.reason})"

    def __post_init__(self) -> None:
        _check_text(self.reason, "the reason of a non-private event", why="the receipt shows it to its readers")


@dataclass(frozen=True)
class NoAccess(Event):
    """No access to the data: costs nothing."""

    meaning = "No access to the data."

    fresh = False

    def unfold(self, times: int, seen: set[Event], whole: bool) -> Iterator[tuple[Event, int]]:
        return iter(())

    def stretched(self, number: float) -> Event:
        return self


Json: TypeAlias = dict[str, Any]  # what JSON and TOML hold

KINDS: dict[str, type[Any]] = {
    "gaussian": Gaussian,
    "discrete_gaussian": DiscreteGaussian,
    "laplace": Laplace,
    "response": Response,
    "poisson": Poisson,
    "repeat": Repeat,
    "once": DrawnOnce,
    "together": Together,
    "non_private": NonPrivate,
    "nothing": NoAccess,
}
_NAMES = {cls: kind for kind, cls in KINDS.items()}
_FIELDS = {cls: {field.name for field in fields(cls)} for cls in _NAMES}


def leaves(event: Event, whole: bool = False) -> Counter[Event]:
    """Elementary events inside an event, with their counts; nested counts are multiplied. An event whose noise is drawn
    once, and released again in every round, counts once; `whole` keeps it as one event and does not open it.
    """
    found: Counter[Event] = Counter()
    for leaf, times in event.unfold(1, set(), whole):
        found[leaf] += times
    return found


def compact(events: Iterable[Event]) -> Event:
    """Group equal events: a thousand identical rounds become one `Repeat`."""
    counted = leaves(Together(tuple(events)), whole=True)
    grouped = tuple(event if count == 1 else Repeat(event, count) for event, count in counted.items())
    if not grouped:
        return NoAccess()
    return grouped[0] if len(grouped) == 1 else Together(grouped)


def draws_afresh(event: Event) -> bool:
    """True where the event draws new noise in each release, unlike noise that is drawn once in a run."""
    return any(leaf.fresh for leaf in leaves(event, whole=True))


def descriptions(event: Event) -> list[str]:
    """Noise of an event in words, relative to the change that one unit can make."""
    found: Counter[str] = Counter()
    for leaf, count in leaves(event).items():
        found[leaf.words] += count
    return [f"{words}, {count:,} time{'s' * (count != 1)}" for words, count in found.items()]


class ComposedEvents(NamedTuple):
    """Composed events in the form that accountants take: all plain Gaussians as one, every other mechanism with the
    number of its uses. `private` is False if any part is without protection.
    """

    gaussian: Gaussian | None
    others: tuple[tuple[Event, int], ...]
    private: bool

    @property
    def counted(self) -> tuple[tuple[Event, int], ...]:
        return ((self.gaussian, 1), *self.others) if self.gaussian else self.others


def reduce(event: Event, neighbours: str) -> ComposedEvents:
    """Reduces an event to what accountants compose: all plain Gaussians as one (their mu^2 added up), and every other
    mechanism with the number of its uses.
    """
    mus: list[float] = []
    others: Counter[Event] = Counter()
    private = True
    for leaf, times in leaves(event).items():
        for settled, n in leaf.settled(neighbours):
            if settled is None:
                private = False
            elif (mu := settled.mu(n * times)) is not None:
                mus.append(mu)
            else:
                others[settled] += n * times
    return ComposedEvents(Gaussian(1 / math.hypot(*mus)) if mus else None, tuple(others.items()), private)


def _only_zero_out(neighbours: str) -> None:
    if neighbours != "zero_out":
        raise UnsupportedEvent(
            f"Poisson sampling with {neighbours} neighbours",
            why="the price of a Poisson sample is proved only for one unit that is counted or not",
            fix='use neighbours = "zero_out"',
            code="poisson-needs-zero-out",
        )


def _single(inside: ComposedEvents) -> Event | None:
    """The one mechanism inside a Poisson sample; several Gaussians count as one, and other combinations are refused."""
    if not inside.others:
        return inside.gaussian
    (event, count), *more = inside.others
    if more or count > 1 or inside.gaussian or not event.sampled:
        raise UnsupportedEvent(
            "one Poisson sample is read by several different mechanisms",
            why="no accountant here has a proof for it",
            fix="give each mechanism its own sample, or use Gaussian noise only",
            code="sampled-event-not-supported",
        )
    return event


def to_json(event: Event) -> Json:
    """The event as plain data, its kind first; `from_json` reads an equal event."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [to_json(part) for part in value]
        return to_json(value) if type(value) in _NAMES else value

    return {"kind": _NAMES[type(event)]} | {f.name: plain(getattr(event, f.name)) for f in fields(event)}


def from_json(data: Any) -> Event:
    """Decodes an event from plain data (see `to_json`). Accepts only kinds listed in `KINDS`, with exactly their
    fields."""
    if not isinstance(data, Mapping):
        raise _malformed(f"{data!r} is not an event", 'an event is a JSON object with a key "kind"')
    kind = data.get("kind")
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise UnsupportedEvent(
            f"there is no event of kind {kind!r}", fix=f"use one of {', '.join(KINDS)}", code="unknown-event-kind"
        )
    expected = _FIELDS[cls]
    if data.keys() - {"kind"} != expected:
        found = sorted(set(data) - {"kind"})
        raise _malformed(f"a {kind} event has the fields {found}", f"it must have exactly {sorted(expected)}")
    read: dict[str, Callable[[Any], Any]] = {"event": from_json, "events": _each}
    event: Event = cls(**{name: read[name](data[name]) if name in read else data[name] for name in expected})
    return event


AS_WRITTEN = "read events only from a ledger or receipt that sordino wrote"


def _malformed(what: str, why: str, fix: str = AS_WRITTEN) -> UnsupportedEvent:
    return UnsupportedEvent(what, why=why, fix=fix, code="malformed-event")


def check_event(value: object) -> None:
    """Refuses a value that is not an event of this module, or a subclass of one, since no ledger could store it."""
    if type(value) not in _NAMES:
        raise _malformed(
            f"{value!r} is not an event",
            "events are written into the ledger, and priced again by whoever reads them there",
            f"make it with one of {', '.join(KINDS)}; a response of the same epsilon with 2 levels covers every pure "
            "mechanism",
        )


def _check_text(value: object, what: str, why: str) -> None:
    if not isinstance(value, str):
        raise _malformed(f"{what} must be a text", why, "give a text")


def _each(parts: object) -> tuple[Event, ...]:
    if not isinstance(parts, list | tuple):
        raise _malformed("the parts of a composition are not a list", "", "give a list of events")
    return tuple(from_json(part) for part in parts)
