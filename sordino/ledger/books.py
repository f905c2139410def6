"""Books of a ledger: names of its operations, and the totals computed from its records, the only arithmetic on budgets.

Records are canonical JSON, each hashed together with the hash before it. Nothing derived from them is stored, so no
total can disagree with its history.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from operator import add
from typing import Any, Literal, NamedTuple, TypeAlias

from pydantic import TypeAdapter

from sordino.accounting.claims import Amount, Currency, Subject
from sordino.accounting.composition import LedgerNote, parsed
from sordino.accounting.events import Json
from sordino.accounting.facts import read_json
from sordino.errors import COUNT, LedgerError, check_range
from sordino.ledger.storage import damaged

EVERYONE = "*"
NOTHING = "none"  # is promised
ORIGIN = bytes(32)
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)  # what reading any bytes may raise

canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


class LedgerPosition(NamedTuple):
    """Position in a ledger, or in a site's answered rounds: number of records so far, and hash of the last one."""

    length: int
    head: str

    @classmethod
    def parse(cls, text: str) -> LedgerPosition:
        length, head = text.split(":")
        return cls(int(length), head)

    def __str__(self) -> str:
        return f"{self.length}:{self.head}"


@dataclass(frozen=True)
class LedgerScope:
    """Scope of a ledger: the data set, whom its budgets protect against whom, delta, and the currency in which it
    counts privacy loss (a quantity that adds up over releases, such as rho of zCDP). If one of them changes, budgets
    need a new ledger."""

    dataset: str
    subject: Subject | None  # of the guarantee that is paid for; None: there is none
    delta: float | None
    currency: Currency
    names: tuple[str, ...] = ()  # of the clients "0", "1", ..., for whoever reads the ledger; no budget depends on them

    def to_json(self) -> Json:
        """The scope as JSON, without the names of clients. Delta is text: a ledger holds no floats."""
        return {
            "dataset": self.dataset,
            **(dict.fromkeys(Subject.model_fields, NOTHING) if self.subject is None else dict(self.subject)),
            "delta": repr(self.delta),
            "currency": asdict(self.currency),
        }

    @classmethod
    def from_json(cls, record: Json, names: tuple[str, ...]) -> LedgerScope:
        about = {name: record[name] for name in Subject.model_fields}
        return cls(
            record["dataset"],
            None if set(about.values()) == {NOTHING} else Subject(**about),
            None if record["delta"] == "None" else float(record["delta"]),
            TypeAdapter(Currency).validate_json(canonical(record["currency"]), strict=True),
            names,
        )


class EqualCaps(NamedTuple):
    """One cap for all clients numbered "0", "1", ... that have no cap of their own: a million equal caps take
    one line.
    """

    clients: int
    cap: Amount


class Caps(Mapping[str, Amount]):
    """Caps on spending: for single clients, and one for a group with equal caps. Other clients are unlimited."""

    def __init__(self, single: Mapping[str, Amount], each: EqualCaps | None = None) -> None:
        self.single, self.each = single, each

    def __getitem__(self, name: str) -> Amount:
        if name in self.single:
            return self.single[name]
        if self.each is None or not self._numbered(name):
            raise KeyError(name)
        return self.each.cap

    def __iter__(self) -> Iterator[str]:
        yield from self.single
        yield from (name for name in map(str, range(self._clients)) if name not in self.single)

    def __len__(self) -> int:
        return len(self.single) + self._alike

    def told_apart(self, names: Iterable[str]) -> Iterator[str]:
        """Clients whose caps must be checked one by one: those with a single cap, those of the group in `names`, and
        one that represents the rest of the group.
        """
        yield from self.single
        alike = {name for name in names if name not in self.single and self._numbered(name)}
        yield from alike
        if len(alike) < self._alike:
            known = alike | self.single.keys()
            yield next(name for name in map(str, range(self._clients)) if name not in known)

    def to_json(self) -> Json:
        each = {} if self.each is None else {"each": list(self.each)}
        return {"caps": self.single, **each}

    @property
    def _clients(self) -> int:
        return self.each.clients if self.each else 0

    @property
    def _alike(self) -> int:
        """Number of clients in the group: those without a single cap."""
        return self._clients - sum(map(self._numbered, self.single))

    def _numbered(self, name: str) -> bool:
        # as `str` writes it: "01" and "١" are other names
        short = len(name) <= len(str(self._clients))
        return short and name.isdecimal() and str(int(name)) == name and int(name) < self._clients


class State(StrEnum):
    """States of an operation in the ledger, in their order."""

    RESERVED = "reserved"
    DRAWN = "drawn"
    STORED = "stored"
    PUBLISHED = "published"


BEFORE = {  # drawn may be implied by stored, nothing else is skipped
    State.DRAWN: (State.RESERVED,),
    State.STORED: (State.RESERVED, State.DRAWN),
    State.PUBLISHED: (State.STORED,),
}


class Entry(NamedTuple):
    """One operation and its present state. `charges`: those granted; `hash`: of its latest record."""

    sequence: int
    op: str
    state: State
    charges: dict[str, Amount]
    plan: str
    digest: str | None
    note: str
    hash: str
    refused: frozenset[str] = frozenset()  # clients that could not pay

    @property
    def parsed(self) -> LedgerNote:
        """The note, parsed; where it is malformed, the ledger is damaged."""
        try:
            return parsed(self.note)
        except MALFORMED as error:
            raise damaged(f"the note of {self.op} (record {self.sequence}) is malformed") from error

    @property
    def released(self) -> str:
        """The note without the clients that could not pay: they abstained, and nothing of theirs was released."""
        parsed = self.parsed
        for group in parsed.releases if self.refused else ():
            if group["clients"] != EVERYONE:
                group["clients"] = [k for k in group["clients"] if str(k) not in self.refused]
        return canonical(parsed._asdict()) if self.refused else self.note


class OperationStanding(NamedTuple):
    """Newest state of an operation, and the numbers of its entries."""

    state: State
    reserved: int
    stored: int | None
    last: int


class Books:
    """Totals computed from a ledger's records. Only `fold` changes them; spending never falls."""

    def __init__(self, scope: LedgerScope, caps: Caps) -> None:
        self.scope, self.caps = scope, caps
        self.sequence, self.head = -1, ORIGIN
        self.own: dict[str, Amount] = {}
        self.ops: dict[str, OperationStanding] = {}
        self.seals: set[str] = set()

    def genesis(self) -> Json:
        names = {"names": list(self.scope.names)} if self.scope.names else {}
        return {"kind": "scope", "scope": self.scope.to_json(), **names, **self.caps.to_json()}

    def spent(self, principal: str) -> Amount:
        shared = self.own.get(EVERYONE, self.scope.currency.zero())
        if principal == EVERYONE or principal not in self.own:
            return shared
        return tuple(map(add, self.own[principal], shared))

    def fits(self, principal: str, extra: Amount) -> bool:
        cap = self.caps.get(principal)
        return cap is None or self.scope.currency.fits(tuple(map(add, self.spent(principal), extra)), cap)

    def all_fit(self, extra: Amount) -> bool:
        """True where every client with a cap has room for this charge. Clients without charges of their own have spent
        the same, so one of them is checked for all.
        """
        return all(self.fits(name, extra) for name in self.caps.told_apart(self.own))

    def granted(self, charges: Mapping[str, Amount]) -> frozenset[str]:
        """Names of the clients that can pay their charge. A charge to everyone is considered first, and must fit under
        every cap."""
        names, below = set(), self.scope.currency.zero()
        if EVERYONE in charges and self.all_fit(charges[EVERYONE]):
            names, below = {EVERYONE}, charges[EVERYONE]
        for name in charges.keys() - {EVERYONE}:
            if self.fits(name, tuple(map(add, charges[name], below))):
                names.add(name)
        return frozenset(names)

    def fold(self, sequence: object, digest: object, body: object) -> None:
        following = self.sequence + 1
        if sequence != following or not isinstance(body, bytes) or digest != (head := link(self.head, body)):
            raise damaged(f"record {following} does not follow from the record before it")
        try:
            record = read_json(body.decode())
            _FOLDS[record["kind"]](self, following, record)
        except LedgerError:
            raise
        except MALFORMED as error:
            raise damaged(f"record {following} is malformed") from error
        self.sequence, self.head = following, head

    def _open(self, sequence: int, record: Json) -> None:
        ours = json.loads(canonical(self.genesis()))
        if sequence:
            raise damaged(f"record {sequence} is a second scope, and a ledger has one")
        if record["scope"] != ours["scope"]:
            parts = (part for part, value in ours["scope"].items() if record["scope"].get(part) != value)
            raise LedgerError(
                f"the ledger has another scope: it differs in {', '.join(parts)}",
                why="budgets add up only for the same data, clients, units, neighbours and currency",
                fix="keep the data, partition and seed of the earlier runs, or start a new ledger",
                code="ledger-foreign",
            )
        if any(record.get(part) != ours.get(part) for part in ("caps", "each")):
            raise LedgerError(
                "the ledger was created with other caps",
                why="a cap that can be changed later protects no one",
                fix="give the caps that the ledger was created with, or start a new ledger",
                code="ledger-caps-changed",
            )

    def _reserve(self, sequence: int, record: Json) -> None:
        if record["op"] in self.ops:
            raise damaged(f"record {sequence} reserves {record['op']!r} a second time")
        for amount, _ in record["charges"]:
            self.scope.currency.charge(tuple(amount), what="a charge")
        names = [name for _, group in record["charges"] for name in group]
        _texts(record["op"], record["plan"], record["note"], *names)
        if len(set(names)) < len(names):
            raise damaged(f"record {sequence} charges a name twice")
        if refused := frozenset(record["refused"]):  # who is refused counts for nothing
            asked = {name: tuple(amount) for amount, group in record["charges"] for name in group}
            if not refused <= asked.keys() - self.granted(asked):
                raise damaged(f"record {sequence} refuses somebody who could pay")
        for name, charge in charged(record):
            self.own[name] = tuple(map(add, self.own[name], charge)) if name in self.own else charge
        self.ops[record["op"]] = OperationStanding(State.RESERVED, sequence, None, sequence)

    def _advance(self, sequence: int, record: Json) -> None:
        to, before = State(record["kind"]), self.ops[record["op"]]
        if before.state not in BEFORE[to]:
            raise damaged(f"record {sequence} moves {record['op']!r} to the state {to.value}, which cannot follow here")
        if to is State.STORED:
            _texts(record["digest"])
        stored = sequence if to is State.STORED else before.stored
        self.ops[record["op"]] = OperationStanding(to, before.reserved, stored, sequence)

    def _seal(self, sequence: int, record: Json) -> None:
        self.seals.add(bytes.fromhex(record["digest"]).hex())


_FOLDS = {
    "scope": Books._open,
    "sealed": Books._seal,
    State.RESERVED.value: Books._reserve,
    **{state.value: Books._advance for state in BEFORE},
}


def _texts(*values: object) -> None:
    if {*map(type, values)} - {str}:
        raise TypeError("a text is of another type")


def read_genesis(body: bytes) -> tuple[LedgerScope, Caps]:
    """The scope and the caps in the first record of a ledger."""
    record = read_json(body.decode())
    scope = LedgerScope.from_json(record["scope"], tuple(record.get("names", ())))
    _texts(scope.dataset, *scope.names)
    amount = partial(scope.currency.amount, what="a cap")
    each = EqualCaps(record["each"][0], amount(tuple(record["each"][1]))) if "each" in record else None
    check_range("the number of clients with one cap", each.clients if each else 1, COUNT, "malformed")
    return scope, Caps({k: amount(tuple(v)) for k, v in record["caps"].items()}, each)


def link(previous: bytes, body: bytes) -> bytes:
    return hashlib.sha256(previous + body).digest()


def grouped(charges: Mapping[str, Amount]) -> list[list[Any]]:
    """Charges as [[cost, names], ...]: a round charges many clients the same vector."""
    groups: dict[Amount, list[str]] = {}
    for name in sorted(charges):
        groups.setdefault(charges[name], []).append(name)
    return [[list(charge), groups[charge]] for charge in sorted(groups)]


def charged(record: Json) -> Iterator[tuple[str, Amount]]:
    refused = frozenset(record["refused"])
    for charge, names in record["charges"]:
        amount = tuple(charge)
        yield from ((name, amount) for name in names if name not in refused)


PUBLIC_TENSORS = "public_tensors"  # the phase of the one message to everybody before the first round
TRAINING = "training"
Way: TypeAlias = Literal["down", "up"]  # of a message


class Op(NamedTuple):
    """Name of a ledger operation, which is one round of one phase: RUN/t, or RUN.PHASE/t in a preparation."""

    run: str
    phase: str  # nothing: the training
    round: int

    def __str__(self) -> str:
        return of_round(self.name, self.round)

    @property
    def name(self) -> str:
        """The name of the phase, unique among all phases of all runs."""
        return of_phase(self.run, self.phase)

    @classmethod
    def of(cls, text: str) -> Op:
        name, _, t = text.rpartition("/")
        run, _, phase = name.partition(".")
        return cls(run, phase, int(t) if t.isdecimal() else -1)  # -1: somebody else's operation, and no round


def of_round(name: str, t: int) -> str:
    """The name of the operation for round t of the phase with this `name`."""
    return f"{name}/{t}"


def of_phase(run: str, phase: str) -> str:
    """The name of a phase, unique among all phases of all runs."""
    return f"{run}.{phase}" if phase else run
