"""Privacy budgets turned into noise multipliers, sampling rates and shares, by client and round.

A plan divides a budget into one price for each client and each round in which it takes part.

Budgets of clients: one epsilon for all, or one for each; and schedules, which divide a client's budget over the rounds
in which it takes part.

    epsilon = 1.0
    epsilon = {groups = {"1" = 0.54, "2" = 0.37, "4" = 0.09}}     shares of the clients, dealt by the seed
    epsilon = {linspace = [1.0, 4.0], levels = 20}                equal groups between two budgets, dealt by the seed
    epsilon = {clients = {"North" = 1.0, "South" = 2.0}}          one by one: by name, or by number if they have none
    epsilon = {file = "budgets.csv"}                              two columns: client, epsilon

Budgets are public (Jorgensen, Yu and Cormode 2015): what a client's choice of budget reveals about its data is not
covered.

The shares of a schedule add up to 1, in any measure of privacy loss that adds up over rounds. A schedule fixed in
advance composes by any accountant. `Adaptive` chooses each share after seeing earlier releases, which is legitimate
under a hard cap in a measure with a valid filter (pure epsilon: Rogers et al. 2016; Renyi: Feldman & Zrnic 2021; mu^2:
Smith & Thakurta 2022), and in the spirit of Lee & Kifer 2018: early gradients are large and need little precision, so
spend late, when progress stalls.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sordino import keys
from sordino.accounting.facts import delta_text
from sordino.errors import COUNT, POSITIVE, BudgetExhausted, InvalidBudget, UnsoundGuarantee, check_range, is_number

Floats = NDArray[np.float64]


class _Clients(NamedTuple):
    many: int
    names: tuple[str, ...]

    def number(self, word: str) -> int | None:
        """Index of the client with this name, or only if clients have no names, with this index as text. None for an
        unknown client.
        """
        if self.names:
            return self.names.index(word) if word in self.names else None
        return int(word) if word.isdecimal() and int(word) < self.many else None

    def __str__(self) -> str:
        return ", ".join(self.names) if self.names else f"0 to {self.many - 1}"


def personal(given: Mapping[str, object], clients: int, key: keys.Key, names: Sequence[str] = ()) -> Floats:
    """Budget (epsilon) of each client. `names`: the clients' names, if they have any."""
    named = [name for name in RULES if name in given]
    extra = sorted(given.keys() - {*named, *(["levels"] if named == ["linspace"] else [])})
    if len(named) != 1 or extra:
        raise InvalidBudget(
            f"privacy.epsilon = {dict(given)!r}",
            why=f"{', '.join(extra)} is unknown here" if extra else "it must hold exactly one rule",
            fix=f"use one of {', '.join(RULES)}; linspace also takes levels",
            code="budget-rule",
        )
    rule = named[0]
    budgets = RULES[rule](given[rule], _Clients(clients, tuple(names)), keys.fold(key, "budgets"), given)
    for k in np.flatnonzero(~((budgets > 0) & np.isfinite(budgets))).tolist()[:1]:
        raise InvalidBudget(
            f"the budget of client {names[k] if names else k} is {budgets[k]}",
            why="a budget is a finite number above 0; a client without a budget cannot take part",
            fix="give a number above 0, or leave the client's data out",
            code="epsilon-not-positive",
        )
    return budgets


def _groups(table: object, clients: _Clients, key: keys.Key, given: Mapping[str, object]) -> Floats:
    if not isinstance(table, Mapping) or not all(is_number(share) and 0 <= share <= 1 for share in table.values()):
        raise _malformed(f"groups = {table!r}", 'a table {"epsilon" = share of the clients, ...}')
    levels = np.array([_number(level) for level in table])
    shares = np.array(list(table.values()), dtype=np.float64)
    if abs(math.fsum(shares) - 1) > 1e-9:
        raise _malformed(f"groups with shares that add up to {math.fsum(shares):g}", "shares that add up to 1")
    ends = np.rint(np.cumsum(shares) * clients.many).astype(np.int64)
    return _dealt(np.repeat(levels, np.diff(ends, prepend=0)), key)


def _linspace(ends: Any, clients: _Clients, key: keys.Key, given: Mapping[str, object]) -> Floats:
    levels = given.get("levels", 20)
    pair = isinstance(ends, list) and len(ends) == 2 and all(map(is_number, ends))
    if not pair or isinstance(levels, bool) or not isinstance(levels, int) or levels < 1:
        raise _malformed(
            f"linspace = {ends!r}, levels = {levels!r}", "linspace = [lo, hi] and a whole number of levels"
        )
    steps = np.linspace(ends[0], ends[1], levels)
    return _dealt(steps[np.arange(clients.many) * levels // clients.many], key)


def _clients(table: object, clients: _Clients, key: keys.Key, given: Mapping[str, object]) -> Floats:
    if not isinstance(table, Mapping):
        raise _malformed(f"clients = {table!r}", 'a table {"client" = epsilon, ...}')
    return _listed([(str(client), epsilon) for client, epsilon in table.items()], clients, "privacy.epsilon.clients")


def _file(path: Any, clients: _Clients, key: keys.Key, given: Mapping[str, object]) -> Floats:
    try:
        with open(Path(path), newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, skipinitialspace=True))
    except (OSError, TypeError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidBudget(
            f"cannot read the budgets in {path}",
            why=str(error),
            fix="give a readable CSV file with the columns client and epsilon",
            code="budget-file",
        ) from None
    if not rows or not {"client", "epsilon"} <= rows[0].keys():
        raise _malformed(f"{path} without the columns client and epsilon", "a first line `client,epsilon`")
    return _listed([(str(row["client"]), row["epsilon"]) for row in rows], clients, str(path))


def _listed(pairs: list[tuple[str, object]], clients: _Clients, where: str) -> Floats:
    budgets: dict[int, float] = {}
    for name, epsilon in pairs:
        client = clients.number(name.strip())
        if client is None or client in budgets:
            raise InvalidBudget(
                f"{where} lists client {name.strip()!r}" + (", which does not exist" if client is None else " twice"),
                why=f"the clients of this federation are {clients}, each with one budget",
                fix="list every client exactly once",
                code="budget-unknown-client",
            )
        budgets[client] = _number(epsilon)
    missing = [k for k in range(clients.many) if k not in budgets]
    if missing:
        raise InvalidBudget(
            f"{where} gives no budget for {len(missing)} of {clients.many} clients, the first is "
            f"{clients.names[missing[0]] if clients.names else missing[0]}",
            why="a client without a budget cannot take part",
            fix="add a line for every client, or leave its data out",
            code="budget-missing",
        )
    return np.array([budgets[k] for k in range(clients.many)])


def _dealt(budgets: Floats, key: keys.Key) -> Floats:
    return budgets[keys.order(keys.word(key), len(budgets))]


def _number(text: Any) -> float:
    try:
        if isinstance(text, bool):
            raise ValueError
        return float(text)
    except (TypeError, ValueError):
        raise _malformed(f"a budget of {text!r}", "a number") from None


def _malformed(what: str, wanted: str) -> InvalidBudget:
    return InvalidBudget(
        what,
        why="sordino does not guess a budget: a promise needs an exact one",
        fix=f"give {wanted}",
        code="budget-malformed",
    )


RULES: dict[str, Callable[[Any, _Clients, keys.Key, Mapping[str, object]], Floats]] = {
    "groups": _groups,
    "linspace": _linspace,
    "clients": _clients,
    "file": _file,
}


Shares: TypeAlias = NDArray[np.float64]

_ROUNDING = 1e-12  # by which a sum of shares may miss 1 because they are floats


class Schedule(Protocol):
    """Interface of schedules: the shares of a client's budget, one for each round in which it takes part."""

    def shares(self, participations: int, total: float = 1.0) -> Shares:
        """Share of the budget for each participation 1..T: none negative, with sum at most 1. `total`: the whole
        budget, by which absolute amounts are divided."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Equal shares of the budget for all participations."""

    def shares(self, participations: int, total: float = 1.0) -> Shares:
        return _normalised(np.ones(_count(participations)))


@dataclass(frozen=True)
class LinearFront:
    """Shares 2(T-j+1) / (T(T+1)) of the budget for participation j of T, the largest at the start."""

    def shares(self, participations: int, total: float = 1.0) -> Shares:
        return _normalised(np.arange(_count(participations), 0.0, -1.0))


@dataclass(frozen=True)
class LinearBack:
    """Shares 2j / (T(T+1)) of the budget for participation j of T, the largest at the end."""

    def shares(self, participations: int, total: float = 1.0) -> Shares:
        return _normalised(np.arange(1.0, _count(participations) + 1))


@dataclass(frozen=True)
class Geometric:
    """Shares that are each `ratio` times the one before: below 1 they fall, above 1 they rise."""

    ratio: float

    def __post_init__(self) -> None:
        check_range("ratio", self.ratio, POSITIVE, "ratio-not-positive", error=InvalidBudget)

    def shares(self, participations: int, total: float = 1.0) -> Shares:
        steps = np.arange(_count(participations)) * math.log(self.ratio)
        return _normalised(np.exp(steps - steps.max()))


@dataclass(frozen=True)
class Explicit:
    """Shares from the user's list: relative weights, or absolute spends whose sum may not exceed the total.

    A client that takes part less often than the list has entries uses the first ones.
    """

    values: tuple[float, ...]
    absolute: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        if not (all(is_number(v) and 0 < v < math.inf for v in self.values) and 0 < sum(self.values) < math.inf):
            raise InvalidBudget(
                f"the shares {list(self.values)} make no schedule",
                why="each share must be above 0, and their sum finite: a client without one would not take part again",
                fix="give for example values = [1, 1, 2]",
                code="shares-not-a-budget",
            )

    def shares(self, participations: int, total: float = 1.0) -> Shares:
        if _count(participations) > len(self.values):
            raise InvalidBudget(
                f"a schedule of {len(self.values)} shares for {participations} participations",
                why="each round in which a client takes part needs a share",
                fix=f"give {participations} shares",
                code="shares-too-few",
            )
        chosen = np.array(self.values[:participations], dtype=np.float64)
        if not self.absolute:
            return _normalised(chosen)
        if math.fsum(chosen) > total * (1 + _ROUNDING):
            raise _too_much(f"the scheduled spends add up to {math.fsum(chosen):g} of a budget of {total:g}")
        return chosen / total


@dataclass(frozen=True)
class Adaptive:
    """Shares that start low and grow when training stalls; each later participation keeps at least `floor` of an equal
    share. The proof (a privacy filter) is for the epsilon of the whole budget, since releases decide how much of it is
    spent.

    The trigger behind `stalled` may read released values only: the loss of the released model on a public set, or the
    norm of the averaged noisy update against its expected noise norm. A trigger that reads raw client losses would
    itself be an unaccounted release.
    """

    start: float = 0.5
    growth: float = 0.5
    floor: float = 0.1

    def __post_init__(self) -> None:
        numbers = all(is_number(v) and math.isfinite(v) for v in (self.start, self.growth, self.floor))
        if not numbers or self.growth < 0 or not 0 < self.floor <= self.start <= 1:
            raise InvalidBudget(
                f"adaptive schedule with start {self.start!r}, growth {self.growth!r}, floor {self.floor!r}",
                why="needed are 0 < floor <= start <= 1, in parts of a uniform share, and growth >= 0",
                fix="leave them out to use start 0.5, growth 0.5, floor 0.1",
                code="adaptive-out-of-range",
            )

    def next_share(
        self, history: Sequence[float], remaining: float, left: int, stalled: bool, participations: int
    ) -> float:
        """Share of the next participation. `history`: shares spent so far; `left`: number of participations left, this
        one included; `stalled`: the last update was no larger than its noise, so the share grows.
        """
        if left < 1 or remaining <= 0:
            raise BudgetExhausted(
                "nothing is left of this client's budget",
                why="all planned participations of this client are over, and a spent budget never comes back",
                fix="let this client take no further part",
                code="budget-exhausted",
            )
        uniform = 1 / _count(participations)
        wanted = history[-1] * (1 + self.growth * stalled) if history else self.start * uniform
        return max(0.0, min(wanted, remaining - (left - 1) * self.floor * uniform))


SCHEDULES: dict[str, type[Uniform | LinearFront | LinearBack | Geometric | Explicit | Adaptive]] = {
    "uniform": Uniform,
    "linear_front": LinearFront,
    "linear_back": LinearBack,
    "geometric": Geometric,
    "list": Explicit,
    "adaptive": Adaptive,
}


def integer_shares(shares: Sequence[float] | Shares, cap: int) -> list[int]:
    """Integer shares of `cap`, by cumulative flooring: their sum is never above it, and equal to it when the shares add
    up to 1.
    """
    exact = [Fraction(float(share)) for share in shares]
    whole = sum(exact, Fraction(0))
    if whole > 1 + Fraction(_ROUNDING):
        raise _too_much(f"the shares add up to {float(whole):g} of the whole")
    scale = 1 / whole if abs(whole - 1) <= Fraction(_ROUNDING) else Fraction(1)
    parts, taken, passed = [], 0, Fraction(0)
    for share in exact:
        passed += share
        reached = math.floor(cap * scale * passed)
        parts.append(reached - taken)
        taken = reached
    return parts


def _normalised(weights: Shares) -> Shares:
    return weights / math.fsum(weights)


def _count(participations: int) -> int:
    check_range("participations", participations, COUNT, "releases-not-positive", error=InvalidBudget)
    return int(participations)


def _too_much(what: str) -> InvalidBudget:
    return InvalidBudget(
        what,
        why="a schedule only divides the budget, it cannot make it larger",
        fix="lower the values, or give them as weights (absolute = false)",
        code="shares-exceed-the-budget",
    )


def below_unit(epsilon: float, delta: float) -> UnsoundGuarantee:
    """Error for a plan with a participation that costs less than the ledger's smallest unit."""
    return UnsoundGuarantee(
        f"epsilon {epsilon:g} at delta {delta:g} is less than a ledger can count",
        why="a client would pay less than the unit in which budgets are kept, and could take no further part",
        fix="set a larger epsilon or delta, plan fewer rounds, or make the shares of the schedule more equal",
        code="budget-below-unit",
    )


def lacks_delta(delta: float, least: float) -> UnsoundGuarantee:
    """Error for a plan with real noise whose deviation from the ideal law needs a delta of `least`, or more."""
    raised = f"set privacy.delta above {delta_text(1.1 * least)}, or " if least < 0.9 else "set "
    return UnsoundGuarantee(
        f"privacy.delta is {delta:g}, with real noise",
        why="real noise, as a computer draws it, differs a little from its ideal law, and delta must cover that "
        "over the whole run at its epsilon; on a ledger that runs share, a quarter of delta must, over all of them",
        fix=f"{raised}a smaller epsilon, a larger noise multiplier, fewer rounds or a smaller model",
        code="noise-lacks-delta",
    )
