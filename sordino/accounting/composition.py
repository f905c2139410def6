"""Composition of releases: from the claims of single releases to the cost of all of them to one subject.

A subject is a unit under a relation: an example that is replaced, a client whose contribution is counted or not. The
cost of a release to a subject follows from a claim about that subject, or from a claim that covers it:

    a larger unit     an example lies in a cell, a cell in a client; any change within a unit is a change of the unit,
                      whether an example is replaced or left out
    another relation  a replacement is two steps: leave the unit out, then put in another (Dwork and Roth 2014, 2.3)

Never from a smaller unit (a client is many examples), and never from `replace` to `zero_out` of the same unit, or of a
part of anything but a client: "nothing" is not a value that replaces it. A release without a claim about a subject, and
without one that covers it, has an infinite cost to it.

What is composed are the notes of ledger entries: public text about a release, with its experiment, its noise, its
clients and its claims. Statements are computed from these texts alone. They are part of the hash chain, so editing the
experiment or its source of noise later changes nothing about a finished round.

Histories of releases form a tree: each node is a sequence of releases, and one more release leads to a child. Clients
with the same history share one pointer to their node, so a release about everyone only has to move the pointers.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from pydantic import TypeAdapter

from sordino.accounting.accountants import EXACT, EpsilonBound, best, checked, needed, of_one_change
from sordino.accounting.claims import STATUSES, UNITS, Adversary, Claim, Neighbours, Status, Subject, Unit, is_real
from sordino.accounting.events import Event, Json, Repeat, Together, compact
from sordino.accounting.facts import read_json

Release: TypeAlias = tuple[Claim, ...]  # what one operation guarantees about one client
Said: TypeAlias = Iterable[tuple[Sequence[int] | str, Sequence[Claim]]]  # who ('*' is every client), and which claims


class LedgerNote(NamedTuple):
    """One release as a ledger entry describes it. `config` is the digest of the experiment, `noise` the name of the
    noise source.
    """

    releases: list[Json]
    noise: str
    config: str


def note(claims: Said, noise: str = "", config: str = "") -> str:
    groups = [{"clients": clients, "claims": [claim.to_json() for claim in made]} for clients, made in claims]
    fields = {"releases": groups, "noise": noise, "config": config}
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def parsed(text: str) -> LedgerNote:
    """Reads a note. Anybody may have edited the ledger, so what is none fails, with one of the errors `MALFORMED`."""
    parsed = LedgerNote(**read_json(text))
    if [*map(type, parsed)] != [list, str, str]:
        raise TypeError("releases, noise or config are of another type")
    for group in parsed.releases:
        numbers = [0] if group["clients"] == "*" else group["clients"]
        if {*map(type, numbers)} - {int} or not 0 <= min(numbers, default=0) <= max(numbers, default=0) < NEVER:
            raise ValueError("clients are numbers from 0")
        claims_in(group)
    return parsed


def claims_in(group: Json) -> Release:
    """Claims of a note about each client of this group."""
    return _read(json.dumps(group["claims"]))


_read = lru_cache(maxsize=2**14)(TypeAdapter(Release).validate_json)


def under(parsed: LedgerNote, config: str) -> str:
    """The text of a note for another experiment that reuses its release: `config` becomes the digest of that
    experiment.
    """
    return json.dumps(parsed._replace(config=config)._asdict(), sort_keys=True, separators=(",", ":"))


def of_a_run(text: str, run: str) -> str:
    """Rewrites a ledger note for a statement over several runs: noise that is drawn once in a run is renamed after the
    run, so that two runs do not count as one draw.
    """

    def renamed(part: object) -> Any:
        if isinstance(part, dict):
            made = {name: renamed(value) for name, value in part.items()}
            return {**made, "name": f"{made['name']} of {run}"} if part.get("kind") == "once" else made
        return [renamed(each) for each in part] if isinstance(part, list) else part

    return json.dumps(renamed(json.loads(text)), sort_keys=True, separators=(",", ":"))


def named(parsed: LedgerNote) -> list[int]:
    """The clients that a note names one by one; none where it is about everyone."""
    return [k for group in parsed.releases if group["clients"] != "*" for k in group["clients"]]


def simulated(texts: Iterable[str]) -> bool:
    """True where these ledger notes record noise that a seed can repeat, or noise of an unnamed source."""
    return any(not is_real(parsed(text).noise) for text in texts)


def noised(texts: Iterable[str]) -> bool:
    """True where these ledger notes record a release with noise: a claim about it has a status other than "none",
    proved or not."""
    groups = (group for text in texts for group in parsed(text).releases)
    return any(claim["status"] != "none" for group in groups for claim in group["claims"])


def histories(texts: Iterable[str], population: int) -> Histories[Release]:
    """Sequences of releases about each client, in order; equal sequences are stored once."""

    found: Histories[Release] = Histories(population)
    for text in texts:
        for group in parsed(text).releases:
            clients, words = group["clients"], json.dumps(group["claims"])
            if (made := _read(words)) and clients:
                found.add(range(population) if clients == "*" else clients, made, words)
    return found


def read_notes(texts: Iterable[str], population: int) -> dict[int, list[Release]]:
    """The releases about each client. Of clients with equal histories only the first is in the result."""
    return histories(texts, population).distinct()


R = TypeVar("R")  # what is known of one release

NEVER = 2**63 - 1
INSIDE, OUTSIDE = 0, 1  # first cells (clients of equal history): of those that "everyone" means, and of others


class Histories(Generic[R]):
    """Sequence of releases about each client; clients with the same sequence share one copy."""

    def __init__(self, population: int) -> None:
        self._tree: list[tuple[int, R | None]] = [(0, None)]  # of each node: its parent, and the last release
        self._children: dict[tuple[int, Hashable], int] = {}
        self._node = [0, 0]  # of each cell
        self._inside = [True, False]  # of each cell
        self._cells = {(0, True): INSIDE, (0, False): OUTSIDE}
        self._cell = np.full(population, INSIDE, np.int32)  # of each client
        self._since = np.full(population, NEVER)  # position of each client in the order of first mention
        self._spoken, self._all_spoken = 0, False

    def add(self, clients: Sequence[int], release: R, words: Hashable) -> None:
        """Appends a release to the histories of these clients; a `range` means all of them. `words`: a key that is the
        same for equal releases.
        """
        (self._everyone if isinstance(clients, range) else self._some)(clients, release, words)

    def _everyone(self, clients: Sequence[int], release: R, words: Hashable) -> None:
        if not self._all_spoken:
            new = np.arange(self._spoken, self._spoken + len(clients))
            self._since[: len(clients)] = np.minimum(self._since[: len(clients)], new)
            self._all_spoken = True
        self._spoken += len(clients)
        for cell, inside in enumerate(self._inside):
            if inside:
                self._node[cell] = self._child(self._node[cell], release, words)
        self._cells = {(node, inside): i for i, (node, inside) in enumerate(zip(self._node, self._inside, strict=True))}

    def _some(self, clients: Sequence[int], release: R, words: Hashable) -> None:
        """Appends a release to the histories of the clients listed, as often as each of them is listed."""
        who, first, times = np.unique(np.asarray(clients, np.int64), return_index=True, return_counts=True)
        self._reach(int(who[-1]) + 1)
        self._since[who] = np.minimum(self._since[who], self._spoken + first)
        self._spoken += len(clients)
        while len(who):
            cells, place = np.unique(self._cell[who], return_inverse=True)
            moved = [self._next_cell(cell, release, words) for cell in cells.tolist()]
            self._cell[who] = np.asarray(moved, np.int32)[place]
            who, times = who[times > 1], times[times > 1] - 1

    def distinct(self, among: Sequence[int] | None = None) -> dict[int, list[R]]:
        """The distinct histories (of these clients), each keyed by the first client that has it, in order of first
        appearance.
        """
        node, since = np.asarray(self._node)[self._cell], self._since
        if among is not None:
            since = np.full_like(self._since, NEVER)
            since[among] = self._since[among]
        first = np.full(len(self._tree), NEVER)
        np.minimum.at(first, node, since)
        clients = np.flatnonzero((since == first[node]) & (since < NEVER))
        return {k: self._path(int(node[k])) for k in clients[np.argsort(self._since[clients])].tolist()}

    def _child(self, node: int, release: R, words: Hashable) -> int:
        if (node, words) not in self._children:
            self._children[node, words] = len(self._tree)
            self._tree.append((node, release))
        return self._children[node, words]

    def _next_cell(self, cell: int, release: R, words: Hashable) -> int:
        at = self._child(self._node[cell], release, words), self._inside[cell]
        if at not in self._cells:
            self._cells[at] = len(self._node)
            self._node.append(at[0])
            self._inside.append(at[1])
        return self._cells[at]

    def _reach(self, clients: int) -> None:
        more = clients - len(self._cell)
        if more > 0:
            self._cell = np.pad(self._cell, (0, more), constant_values=OUTSIDE)
            self._since = np.pad(self._since, (0, more), constant_values=NEVER)

    def _path(self, node: int) -> list[R]:
        path = []
        while node:
            node, release = self._tree[node]
            assert release is not None
            path.append(release)
        return path[::-1]


class CountedPart(NamedTuple):
    """Releases with claims about one unit and relation, composed into one event. `steps`: how many changes of that unit
    make one change of the subject asked about.
    """

    unit: Unit
    neighbours: Neighbours
    steps: int
    event: Event


class TotalCost(NamedTuple):
    """Total privacy cost to one subject of all releases about one client. `parts` is empty if that cost is infinite."""

    parts: tuple[CountedPart, ...]
    status: Status
    because: tuple[str, ...]
    drift: float = 0.0

    @property
    def event(self) -> Event:
        return self.parts[0].event if len(self.parts) == 1 else Together(tuple(part.event for part in self.parts))


class Bounded(NamedTuple):
    epsilon: float
    accountant: str
    accountants: dict[str, float]


def steps(claimed: Subject, asked: Subject) -> int | None:
    """Number of changes of the claimed subject that make up one change of the asked one: 1, or 2 by group privacy. None
    where the claim says nothing about the asked subject.
    """
    unit, how, part, change = claimed.unit, claimed.neighbours, asked.unit, asked.neighbours
    if (unit, how) == (part, change):
        return 1
    if "person" in (unit, part):  # several clients may hold its examples, and no release states how many
        return None
    if unit == part:
        return 2 if how == "zero_out" else None
    if UNITS.index(unit) < UNITS.index(part) or ((how, change) == ("replace", "zero_out") and unit != "client"):
        return None
    return 1 if how == "replace" else 2


def subjects(releases: Iterable[Release], adversary: Adversary) -> list[Subject]:
    """All subjects that the releases have claims about, in the order in which they first appear."""
    spoken = (claim.subject for release in releases for claim in release if claim.adversary == adversary)
    return list(dict.fromkeys(spoken))


def cost(releases: Sequence[Release], asked: Subject) -> TotalCost:
    """Total privacy cost to one subject of all releases about one client."""
    parts: dict[tuple[Unit, Neighbours, int], list[Event]] = {}
    open_: list[Claim] = []
    status: Status = STATUSES[0]
    because: dict[str, None] = {}
    drift, silent = 0.0, False
    for release, count in Counter(releases).items():
        chosen = _cheapest(release, asked)
        if chosen is None:
            larger = [
                claim
                for claim in _claims(release, asked.adversary)
                if UNITS.index(claim.unit) >= UNITS.index(asked.unit) and not claim.finite
            ]
            silent = silent or not larger
            open_ += larger
            continue
        subject, number, claims = chosen
        together = claims[0].event if len(claims) == 1 else Together(tuple(claim.event for claim in claims))
        spent = parts.setdefault((subject.unit, subject.neighbours, number), [])
        spent.append(Repeat(together, count) if count > 1 else together)
        status = max((status, *(claim.status for claim in claims)), key=STATUSES.index)
        drift += count * math.fsum(claim.drift for claim in claims)
        because |= dict.fromkeys(reason for claim in claims for reason in claim.because)
        if number > 1 or subject.unit != asked.unit:
            ending = " (group privacy)" if number > 1 else ""
            because |= {f"implied by the {subject.unit} row{ending}": None}
    if open_ or silent:
        reasons = dict.fromkeys(reason for claim in open_ for reason in claim.because)
        if silent:
            reasons[f"a release promises nothing about the {asked.unit} under {asked.neighbours}"] = None
        weakest = [claim.status for claim in open_ if claim.subject == asked] or ["none"]
        return TotalCost((), max(weakest, key=STATUSES.index), tuple(reasons))
    made = tuple(CountedPart(*key, compact(events)) for key, events in parts.items())
    return TotalCost(made, status, tuple(because), drift)


def covered(release: Release, asked: Subject) -> bool:
    """True where the release, taken alone, guarantees something about the subject."""
    return _cheapest(release, asked) is not None


def _claims(release: Release, adversary: Adversary) -> list[Claim]:
    return [claim for claim in release if claim.adversary == adversary]


def _cheapest(release: Release, asked: Subject) -> tuple[Subject, int, list[Claim]] | None:
    """The claims of a release that bound its cost to the asked subject: all about one subject, the one with the fewest
    `steps` to the asked one. Returns that subject, the number of steps and the claims; None if no claim covers the
    asked subject.
    """
    by: dict[Subject, list[Claim]] = {}
    for claim in _claims(release, asked.adversary):
        by.setdefault(claim.subject, []).append(claim)
    found = [
        (number, UNITS.index(subject.unit), subject, claims)
        for subject, claims in by.items()
        if (number := steps(subject, asked)) is not None and all(claim.finite for claim in claims)
    ]
    if not found:
        return None
    number, _, subject, claims = min(found, key=lambda one: (one[2] != asked, *one[:2]))
    return subject, number, claims


@lru_cache(maxsize=4096)
def bounded(parts: tuple[CountedPart, ...], delta: float, neighbours: Neighbours, check: bool = False) -> Bounded:
    """Epsilon of all `parts` (composed releases) together, and the bound by each accountant. `check`: also a lower and
    an upper limit of an exact one, by numerical integration.
    """
    if len(parts) == 1:
        return _alone(parts[0], delta, check)
    summed = math.fsum(_alone(part, delta / len(parts), check).epsilon for part in parts)
    listed = {f"sum of {len(parts)} kinds of claims": summed}
    stretched = [part.event if part.steps == 1 else part.event.stretched(part.steps) for part in parts]
    if all(event is not None for event in stretched):
        together = compact([event for event in stretched if event is not None])
        listed |= _by_accountant(together, delta, neighbours, check)
    accountant = _tightest(listed)
    return Bounded(listed[accountant], accountant, listed)


@lru_cache(maxsize=4096)
def least(parts: tuple[CountedPart, ...], delta: float, neighbours: Neighbours) -> float:
    """Epsilon of all `parts` (composed releases) together, without the list of each accountant's bound that `bounded`
    adds: for a single part this is faster.
    """
    if len(parts) == 1 and parts[0].steps == 1:
        return best(parts[0].event, delta, parts[0].neighbours).epsilon
    return bounded(parts, delta, neighbours).epsilon


def _by_accountant(event: Event, delta: float, neighbours: Neighbours, check: bool) -> dict[str, float]:
    """Epsilon of an event by each accountant that applies. `check`: also a lower and an upper limit of an exact one, by
    numerical integration."""
    asked: list[EpsilonBound] = (checked if check else needed)(event, delta, neighbours)
    return {bound.accountant: bound.epsilon for bound in asked}


def _tightest(listed: dict[str, float]) -> str:
    """Name of the accountant whose bound is used: the exact one if there is one, else that of the smallest bound."""
    return EXACT if EXACT in listed else min(listed, key=lambda name: listed[name])


def _alone(part: CountedPart, delta: float, check: bool) -> Bounded:
    unit, neighbours, number, event = part
    listed = _by_accountant(event, delta, neighbours, check)
    accountant = _tightest(listed)
    if number == 1:
        return Bounded(listed[accountant], accountant, listed)
    name = f"{accountant}, two steps of the {unit} row"
    epsilon = two_steps(event, delta, neighbours)
    return Bounded(epsilon, name, {name: epsilon})


@lru_cache(maxsize=64)
def two_steps(event: Event, delta: float, neighbours: Neighbours) -> float:
    """The epsilon of group privacy for two changes in a row, such as removing a client and adding it again with one
    example changed: (2 epsilon, (1 + e^epsilon) delta) (Dwork and Roth 2014, 2.3).
    """
    return 2 * of_one_change(lambda smaller: (best(event, smaller, neighbours).epsilon, smaller), delta, 2)[0]
