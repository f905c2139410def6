"""The privacy ledger: the budget that each client has spent, and on which release. It survives a crash at any instant.

    RESERVED  ->  DRAWN  ->  STORED(digest)  ->  PUBLISHED        each arrow is durable; the last two may be one commit

Callers reserve before any data is read, store before publishing, and repeat an operation under its name. So a crash may
lose budget but never gives a release for free, and no operation is released with two contents. Nothing is refunded.

The file holds hash-chained records and no totals: budgets, states and grants are computed from the records (`books`)
whenever a ledger is opened. A writer takes SQLite's write lock, reads what others appended, decides, appends and
commits with a full sync. If an older copy replaces the file, the file itself cannot show it: `runs.witness` keeps notes
outside of the run folder, and stops a run whose ledger is behind them.

Where a cost depends on a client's data, that client's grants, `spent` and `remaining` are shown to that client only
(individual filters, Feldman and Zrnic 2021).
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import sub
from pathlib import Path

from sordino.accounting.claims import Amount
from sordino.accounting.events import Json
from sordino.errors import LedgerError
from sordino.ledger.books import (
    BEFORE,
    EVERYONE,
    MALFORMED,
    ORIGIN,
    Books,
    Caps,
    Entry,
    EqualCaps,
    LedgerPosition,
    LedgerScope,
    Op,
    State,
    canonical,
    charged,
    grouped,
    link,
    read_genesis,
)
from sordino.ledger.storage import check_pages, damaged, identity, open_database, read_database, refusals, turnstile

__all__ = ["EVERYONE", "MEMORY", "Entry", "EqualCaps", "Ledger", "LedgerPosition", "LedgerScope", "State"]

MEMORY = ":memory:"

_ORDER = list(State)


def of_run(ledger: Ledger, run: str) -> list[Entry]:
    """The operations of a run, its preparation included, in the order of their reservation."""
    return [entry for entry in ledger.entries() if Op.of(entry.op).run == run]


class Ledger:
    """Privacy ledger: budgets, and what every release has spent, in one SQLite file (":memory:" for a simulation).
    Threads and processes may use it at once; reopen it after a fork.
    """

    def __init__(self, connection: sqlite3.Connection, place: Path | None, books: Books) -> None:
        self._connection: sqlite3.Connection | None = connection
        self._place, self._books = place, books
        self._file, self._process = identity(place), os.getpid()
        self._mutex = threading.RLock()

    @classmethod
    def open(
        cls,
        path: Path | str,
        scope: LedgerScope,
        caps: Mapping[str, Amount] | None = None,
        total: Amount | None = None,
        each: EqualCaps | None = None,
        reading: bool = False,
    ) -> Ledger:
        """Creates the ledger, or opens it again with the scope and caps that it was created with. `reading`: a copy of
        its present state in memory, to be read only.

        `caps` limit single clients, `each` limits the clients "0", "1", ... without a cap of their own, all others are
        unlimited; `total` limits what is charged to everyone.
        """
        amount = scope.currency.amount
        limits = {_name(name): amount(cap, what=f"cap of {name}") for name, cap in (caps or {}).items()}
        if EVERYONE in limits:
            raise LedgerError(f"{EVERYONE!r} has a cap", why="it means all", fix="use total=...", code="name-invalid")
        if total is not None:
            limits[EVERYONE] = amount(total, what="total cap")
        if each is not None:
            each = EqualCaps(each.clients, amount(each.cap, what="cap of each client"))
        books = Books(scope, Caps(limits, each))
        # a loop of links is found by whoever opens it
        place = None if str(path) == MEMORY else Path(os.path.realpath(path))
        body = canonical(books.genesis()).encode()
        with refusals():
            if reading and place is not None:
                return cls._checked(read_database(place), None, books)
            return cls._checked(open_database(place, (link(ORIGIN, body), body)), place, books)

    @classmethod
    def _checked(cls, connection: sqlite3.Connection, place: Path | None, books: Books) -> Ledger:
        ledger = cls(connection, place, books)
        try:
            ledger.check()
        except BaseException:
            ledger.close()
            raise
        return ledger

    @classmethod
    def as_founded(cls, path: Path | str) -> Ledger:
        """Opens a ledger for reading by the scope and caps in its first record, to check it without the experiment."""
        with refusals():
            connection = read_database(Path(path))
            try:
                row = connection.execute("SELECT body FROM record WHERE sequence = 0").fetchone()
                books = Books(*read_genesis(row[0]))
            except MALFORMED as error:
                connection.close()
                raise damaged("its first record is gone, or malformed") from error
        return cls._checked(connection, None, books)

    def reserve(self, op: str, charges: Mapping[str, Amount], plan: bytes, note: str = "") -> frozenset[str]:
        """Charges, durably, the clients that can pay, and returns their names: the others must abstain.

        The same operation again returns the same answer and charges nothing; its first note stays. `charges` may be
        empty (a cohort nobody was drawn into). `note` is public text, kept in the chain.
        """
        record = {
            "kind": State.RESERVED.value,
            "op": _name(op),
            "charges": grouped({_name(k): self._books.scope.currency.charge(v, what=k) for k, v in charges.items()}),
            "plan": plan.hex(),
            "note": note,
        }
        with self._turn() as books:
            if op in books.ops:
                known = self._record(books.ops[op].reserved)
                if any(known[part] != record[part] for part in ("charges", "plan")):
                    raise LedgerError(
                        f"operation {op!r} was reserved with other charges or another plan",
                        why="one operation is one release",
                        fix="repeat it without changes, or give the new operation another name",
                        code="op-conflict",
                    )
                return frozenset(charges) - frozenset(known["refused"])
            granted = books.granted(charges)
            self._append({**record, "refused": sorted(frozenset(charges) - granted)})
        return granted

    def drawn(self, op: str) -> bool:
        """Records that an operation's noise is drawn, so that from now on it counts as having read data. True for the
        first call only.
        """
        return self._advance(op, {State.DRAWN: {}})

    def stored(self, op: str, digest: bytes) -> None:
        """Records the digest of the release of this operation, which may never have another content."""
        self._advance(op, {State.STORED: {"digest": digest.hex()}})

    def published(self, op: str, digest: bytes | None = None) -> None:
        """Records that the release is out; `digest`: its own, stored in the same commit, where it has not been."""
        stored = {} if digest is None else {State.STORED: {"digest": digest.hex()}}
        self._advance(op, {**stored, State.PUBLISHED: {}})

    def seal(self, digest: bytes) -> None:
        """Records, once, the digest of files that were computed from the releases and are published with them."""
        with self._turn() as books:
            if digest.hex() not in books.seals:
                self._append({"kind": "sealed", "digest": digest.hex()})

    def sealed(self, digest: bytes) -> bool:
        with self._reading() as books:
            return digest.hex() in books.seals

    def state(self, op: str) -> State | None:
        with self._reading() as books:
            return books.ops[op].state if op in books.ops else None

    def spent(self, principal: str) -> Amount:
        """The amount that this client has spent, charges to everyone included. It never falls."""
        with self._reading() as books:
            return books.spent(principal)

    def remaining(self, principal: str) -> Amount | None:
        """The client's cap minus what it has spent; None without a cap. A Rényi order may fall below zero where one
        order within its cap is enough (rule "any").
        """
        with self._reading() as books:
            cap = books.caps.get(principal)
            return None if cap is None else tuple(map(sub, cap, books.spent(principal)))

    def balances(self) -> dict[str, tuple[Amount, Amount | None]]:
        """Amount spent and cap of every client with a cap or a charge of its own, sorted by name, in one look-up."""
        with self._reading() as books:
            names = sorted((books.caps.keys() | books.own.keys()) - {EVERYONE})
            return {name: (books.spent(name), books.caps.get(name)) for name in names}

    @property
    def scope(self) -> LedgerScope:
        return self._books.scope

    def entries(self) -> Iterator[Entry]:
        """The operations, in the order of their reservation."""
        with self._reading() as books:
            names = list(books.ops)
        yield from map(self.entry, names)

    def entry(self, op: str) -> Entry:
        with self._reading() as books:
            state, reserved, stored, last = books.ops[op]
            record = self._record(reserved)
            digest = None if stored is None else self._record(stored)["digest"]
            head = self._row(last)[0].hex()
        refused = frozenset(record["refused"])
        return Entry(reserved, op, state, dict(charged(record)), record["plan"], digest, record["note"], head, refused)

    def head(self) -> str:
        """The hash of the last record, which through the chain covers every record."""
        return self.place().head

    def place(self) -> LedgerPosition:
        """Number of records and hash of the last one. The number only grows."""
        with self._reading() as books:
            return LedgerPosition(books.sequence + 1, books.head.hex())

    def descends_from(self, head: str) -> bool:
        """True where some record of this ledger has the hash `head`; a ledger restored from an older copy lacks it."""
        query = "SELECT 1 FROM record WHERE lower(hex(hash)) = ?"
        with self._reading():
            return self._db.execute(query, (head,)).fetchone() is not None

    def check(self) -> None:
        """Reads the whole chain again and checks every hash, every transition, and every total against its cap."""
        books = Books(self._books.scope, self._books.caps)
        with self._mutex, refusals():
            check_pages(self._db)
            for row in self._db.execute("SELECT sequence, hash, body FROM record ORDER BY sequence"):
                books.fold(*row)
                if books.sequence == self._books.sequence and books.head != self._books.head:
                    raise damaged("a record that was already read has changed")
            if books.sequence < max(self._books.sequence, 0):
                raise damaged("records that were already read are gone")
            for name in books.caps.told_apart(books.own):
                # totals only grow, so caps that hold at the end held all along
                if not books.fits(name, books.scope.currency.zero()):
                    raise damaged(f"{name} has spent more than its cap")
            self._books = books

    def close(self) -> None:
        with self._mutex:
            if self._connection is not None and os.getpid() == self._process:
                with refusals(), turnstile(self._place):
                    self._connection.close()
            self._connection = None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None or os.getpid() != self._process:
            raise LedgerError(
                "the ledger is closed in this process",
                why="the process was forked, and SQLite's locks do not survive that; or close() was called",
                fix="open the ledger again in this process",
                code="ledger-closed",
            )
        return self._connection

    @contextmanager
    def _reading(self) -> Iterator[Books]:
        """The books (totals), brought up to date with records that others have appended."""
        db = self._db
        with self._mutex, refusals():
            books = self._books
            query = "SELECT sequence, hash, body FROM record WHERE sequence >= ? ORDER BY sequence"
            rows = db.execute(query, (books.sequence,)).fetchall()
            if not rows or rows[0][:2] != (books.sequence, books.head):
                raise damaged("the last record that was read is gone")
            for row in rows[1:]:
                books.fold(*row)
            yield books

    @contextmanager
    def _turn(self) -> Iterator[Books]:
        """One durable write transaction: it sees all earlier records, and is committed as a whole or not at all."""
        db = self._db
        with self._mutex, refusals(), turnstile(self._place):
            if identity(self._place) != self._file:  # what is written to the old file now would never be read
                raise damaged("its file was moved or replaced")
            db.execute("BEGIN IMMEDIATE")
            try:
                with self._reading() as books:
                    yield books
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def _append(self, *records: Mapping[str, object]) -> None:
        # the books are not updated here: they are, when these records are read back
        head = self._books.head
        for sequence, record in enumerate(records, self._books.sequence + 1):
            body = canonical(record).encode()
            head = link(head, body)
            self._db.execute("INSERT INTO record VALUES (?, ?, ?)", (sequence, head, body))

    def _advance(self, op: str, steps: Mapping[State, Mapping[str, object]]) -> bool:
        with self._turn() as books:
            if op not in books.ops:
                raise LedgerError(
                    f"operation {op!r} was never reserved",
                    why="nothing may be released before it was reserved",
                    fix="call Ledger.reserve with this operation before its release",
                    code="op-unknown",
                )
            state, _, stored, _ = books.ops[op]
            records = list[dict[str, object]]()
            for to, content in steps.items():
                if _ORDER.index(state) >= _ORDER.index(to):
                    if stored is not None and any(self._record(stored)[part] != content[part] for part in content):
                        raise LedgerError(
                            f"operation {op!r} has already stored another content",
                            why="an operation releases one content: a second one would reveal the difference of both",
                            fix="publish what release() returns",
                            code="op-two-releases",
                        )
                    continue
                if state not in BEFORE[to]:
                    raise LedgerError(
                        f"operation {op!r} is {state.value}, so it cannot be {to.value}",
                        why="an operation is reserved, drawn, stored and published, in this order",
                        fix="do the earlier steps first",
                        code="op-skips-state",
                    )
                records.append({"kind": to.value, "op": op, **content})
                state = to
            self._append(*records)
        return bool(records)

    def _row(self, sequence: int) -> tuple[bytes, bytes]:
        query = "SELECT hash, body FROM record WHERE sequence = ?"
        row: tuple[bytes, bytes] | None = self._db.execute(query, (sequence,)).fetchone()
        if row is None:
            raise damaged(f"record {sequence} is gone")
        return row

    def _record(self, sequence: int) -> Json:
        """A record that was read before, with its hash checked again: the disk may have changed since."""
        (before, _), (digest, body) = self._row(sequence - 1), self._row(sequence)
        if link(before, body) != digest:
            raise damaged(f"record {sequence} has changed")
        record: Json = json.loads(body)
        return record


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise LedgerError(
            f"{name!r} is not a name", why="a name is a text that is not empty", fix="give a name", code="name-invalid"
        )
    return name
