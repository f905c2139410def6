"""The common language of the ledger: what happened to the data, and nothing about how it is accounted.

An event says which noise was added, how often, behind which sampler. Accountants read events, the ledger stores
them as JSON, the report prints them. Noise is always relative to the sensitivity under the neighbours that the
statement names, so an event needs no clip bound. The vocabulary is that of Google's dp-accounting (`to_dp_event`
translates); this module needs neither it, nor torch, nor scipy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from sordino.errors import (
    BELOW_ONE,
    COUNT,
    FRACTION,
    INSIDE,
    NOT_NEGATIVE,
    POSITIVE,
    SEVERAL,
    InvalidBudget,
    UnsoundGuarantee,
    UnsupportedEvent,
    check_range,
    is_number,
)


@dataclass(frozen=True)
class Gaussian:
    """Normal noise; `noise_multiplier` = standard deviation / L2 sensitivity. Zero costs infinity."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        _settle(self, "noise_multiplier", _noise(self.noise_multiplier))


@dataclass(frozen=True)
class DiscreteGaussian:
    """Noise in whole steps, whose Renyi divergences are those of the continuous law (Canonne, Kamath and Steinke,
    NeurIPS 2020); its (epsilon, delta) curve is not below that one."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        _settle(self, "noise_multiplier", _noise(self.noise_multiplier))


@dataclass(frozen=True)
class Laplace:
    """Laplace noise; `scale` = b / L1 sensitivity, so one draw is (1/scale)-DP. Zero costs infinity."""

    scale: float

    def __post_init__(self) -> None:
        _settle(self, "scale", _noise(self.scale))


@dataclass(frozen=True)
class Response:
    """One of `levels` values, kept or replaced at random so that any two inputs differ by at most e^epsilon
    (Kairouz, Bonawitz and Ramage 2016).
    """

    epsilon: float
    levels: int

    def __post_init__(self) -> None:
        _settle(self, "epsilon", valid_epsilon(self.epsilon))
        check_range(
            "the levels of a response",
            self.levels,
            SEVERAL,
            "too-few-levels",
            error=InvalidBudget,
        )
        _settle(self, "levels", int(self.levels))

    @property
    def replaced(self) -> float:
        """The probability that the value is drawn anew from all of them: levels / (levels - 1 + e^epsilon)."""
        return self.levels / (self.levels - 1 + math.exp(min(self.epsilon, 700.0)))


@dataclass(frozen=True)
class Once:
    """An event that is drawn once and then looked at again: every further release under the same name costs nothing
    more.
    """

    name: str
    event: Event

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise UnsupportedEvent(
                "the name of an event must be a text",
                why="releases that repeat are found by this name",
                fix="give a text",
                code="malformed-event",
            )
        _require_event(self.event)


@dataclass(frozen=True)
class Poisson:
    """An event on a secret sample, in which every unit takes part independently with probability `rate`."""

    rate: float
    event: Event

    def __post_init__(self) -> None:
        rate = _noise(self.rate)
        check_range("a sampling rate", rate, FRACTION, "rate-out-of-range", error=InvalidBudget)
        _settle(self, "rate", rate)
        _require_event(self.event)


@dataclass(frozen=True)
class Repeat:
    """An event that happens `count` times, each with fresh randomness."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        _require_event(self.event)
        check_range("the number of repetitions", self.count, COUNT, "count-not-positive", error=InvalidBudget)
        _settle(self, "count", int(self.count))


@dataclass(frozen=True)
class Together:
    """The composition of several events on the same data."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        _settle(self, "events", tuple(self.events))
        for event in self.events:
            _require_event(event)


@dataclass(frozen=True)
class NonPrivate:
    """Access without any protection: it costs infinity, and the reader is shown the reason."""

    reason: str

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str):
            raise UnsupportedEvent(
                "the reason of a non-private event must be a text",
                why="the receipt shows it to its readers",
                fix="give a text",
                code="malformed-event",
            )


@dataclass(frozen=True)
class Nothing:
    """No access to the data: costs nothing."""


Json: TypeAlias = dict[str, Any]  # what JSON and TOML hold
Event: TypeAlias = (
    Gaussian | DiscreteGaussian | Laplace | Response | Poisson | Repeat | Once | Together | NonPrivate | Nothing
)

KINDS: dict[str, type[Event]] = {
    "gaussian": Gaussian,
    "discrete_gaussian": DiscreteGaussian,
    "laplace": Laplace,
    "response": Response,
    "poisson": Poisson,
    "repeat": Repeat,
    "once": Once,
    "together": Together,
    "non_private": NonPrivate,
    "nothing": Nothing,
}
_NAMES = {cls: kind for kind, cls in KINDS.items()}


def leaves(event: Event) -> Counter[Event]:
    """How often each elementary event happens. Only here are counts multiplied and repeats of one draw told apart."""
    found: Counter[Event] = Counter()
    seen: set[Event] = set()

    def walk(node: Event, times: int) -> None:
        if isinstance(node, Repeat):
            walk(node.event, times * node.count)
        elif isinstance(node, Together):
            for part in node.events:
                walk(part, times)
        elif isinstance(node, Once):
            if node not in seen:
                seen.add(node)
                walk(node.event, 1)
        elif not isinstance(node, Nothing):
            found[node] += times

    walk(event, 1)
    return found


def _grouped(event: Event) -> Counter[Event]:
    """Leaves as `compact` counts them: what was drawn once stays together, under its name."""
    if isinstance(event, Once):
        return Counter({event: 1})
    if isinstance(event, Repeat):
        return Counter(
            {part: 1 if isinstance(part, Once) else n * event.count for part, n in _grouped(event.event).items()}
        )
    if isinstance(event, Together):
        found: Counter[Event] = Counter()
        for part in event.events:
            for leaf, n in _grouped(part).items():
                found[leaf] = 1 if isinstance(leaf, Once) else found[leaf] + n
        return found
    return leaves(event)


def compact(events: Iterable[Event]) -> Event:
    """The same events with equal ones grouped: a thousand identical rounds become one `Repeat`."""
    counted = _grouped(Together(tuple(events)))
    grouped = tuple(event if count == 1 else Repeat(event, count) for event, count in counted.items())
    if not grouped:
        return Nothing()
    return grouped[0] if len(grouped) == 1 else Together(grouped)


def to_json(event: Event) -> Json:
    """The event as plain data with the kind first; `from_json` returns an equal event."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [to_json(part) for part in value]
        return to_json(value) if type(value) in _NAMES else value

    return {"kind": _NAMES[type(event)]} | {f.name: plain(getattr(event, f.name)) for f in fields(event)}


def from_json(data: Any) -> Event:
    """The event behind plain data. Only kinds listed in `KINDS` are read, with exactly their fields."""
    if not isinstance(data, Mapping):
        raise UnsupportedEvent(
            f"{data!r} is not an event",
            why='an event is a JSON object with a key "kind"',
            fix="read events only from a ledger or receipt that sordino wrote",
            code="malformed-event",
        )
    kind = data.get("kind")
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise UnsupportedEvent(
            f"there is no event of kind {kind!r}", fix=f"use one of {', '.join(KINDS)}", code="unknown-event-kind"
        )
    expected = {f.name for f in fields(cls)}
    if set(data) - {"kind"} != expected:
        raise UnsupportedEvent(
            f"a {kind} event has the fields {sorted(set(data) - {'kind'})}",
            why=f"it must have exactly {sorted(expected)}",
            fix="read events only from a ledger or receipt that sordino wrote",
            code="malformed-event",
        )
    read: dict[str, Callable[[Any], Any]] = {"event": from_json, "events": _each}
    return cls(**{name: read.get(name, _itself)(data[name]) for name in expected})


def to_dp_event(event: Event) -> Any:
    """The same event for dp-accounting (imported here: it takes a second)."""
    from dp_accounting import dp_event

    translate: dict[type, Callable[[Any], Any]] = {
        Gaussian: lambda e: dp_event.GaussianDpEvent(e.noise_multiplier),
        DiscreteGaussian: lambda e: dp_event.GaussianDpEvent(e.noise_multiplier),
        Laplace: lambda e: dp_event.LaplaceDpEvent(e.scale),
        Response: lambda e: dp_event.RandomizedResponseDpEvent(e.replaced, e.levels),
        Poisson: lambda e: dp_event.PoissonSampledDpEvent(e.rate, to_dp_event(e.event)),
        Repeat: lambda e: dp_event.SelfComposedDpEvent(to_dp_event(e.event), e.count),
        Once: lambda e: to_dp_event(e.event),
        Together: lambda e: dp_event.ComposedDpEvent([to_dp_event(part) for part in e.events]),
        NonPrivate: lambda e: dp_event.NonPrivateDpEvent(),
        Nothing: lambda e: dp_event.NoOpDpEvent(),
    }
    return translate[type(event)](event)


def valid_epsilon(epsilon: float) -> float:
    """A finite epsilon above zero, or a refusal."""
    if not is_number(epsilon) or math.isnan(epsilon) or epsilon <= 0:
        raise InvalidBudget(
            f"epsilon is {epsilon!r}",
            why="it must be a number above 0: with epsilon 0 the result could not depend on the data at all",
            fix="set for example epsilon = 8",
            code="epsilon-not-positive",
        )
    if not math.isfinite(epsilon):
        raise InvalidBudget(
            "epsilon is infinite",
            why="an infinite epsilon promises nothing, and no noise level belongs to it",
            fix="to run without privacy, leave epsilon out",
            code="epsilon-not-finite",
        )
    return float(epsilon)


def valid_delta(delta: float, *, zero: bool = False) -> float:
    """A delta with 0 < delta < 1, or a refusal. 0 is allowed only where a pure guarantee is asked for."""
    allowed = BELOW_ONE if zero else INSIDE
    check_range(
        "delta",
        delta,
        allowed,
        "delta-out-of-range",
        error=InvalidBudget,
        why="it should be well below 1 / (number of units)",
        fix="set for example delta = 1e-5",
    )
    return float(delta)


def check_multiplier(multiplier: float | None, fix: str, name: str = "noise multiplier") -> None:
    """Refuses a typed noise multiplier that gives the noise no size."""
    if multiplier is not None:
        why = "noise of size 0 protects nobody"
        check_range(name, multiplier, POSITIVE, "noise-not-positive", error=UnsoundGuarantee, why=why, fix=fix)


def _noise(value: float) -> float:
    check_range("a noise level or rate", value, NOT_NEGATIVE, "noise-not-a-number", error=InvalidBudget)
    return float(value) + 0.0  # -0.0 becomes 0.0: equal events must have equal JSON


def _settle(event: Event, field: str, value: object) -> None:
    object.__setattr__(event, field, value)


def _require_event(value: object) -> None:
    if type(value) not in _NAMES:
        raise UnsupportedEvent(
            f"{value!r} is not an event", fix=f"make it with one of {', '.join(KINDS)}", code="malformed-event"
        )


def _each(parts: object) -> tuple[Event, ...]:
    if not isinstance(parts, list | tuple):
        raise UnsupportedEvent(
            "the parts of a composition are not a list", fix="give a list of events", code="malformed-event"
        )
    return tuple(from_json(part) for part in parts)


def _itself(value: Any) -> Any:
    return value
