"""Processes that use a ledger and are killed, and the checker of what the world saw; run as a script by the tests.

The script imports once and forks a child for every writer, so a crash costs milliseconds. Commands come as JSON lines
on stdin, each answered by one JSON line when its children are gone. Children tell the world what they were granted and
what they published by appending lines to a log: the world remembers, whatever the ledger forgets.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from sordino.accounting.claims import ZCDP, Amount, Currency, Subject
from sordino.errors import LedgerError
from sordino.ledger import ledger as ledger_module
from sordino.ledger.ledger import Ledger, LedgerScope, State

CLIENT = Subject(unit="client", neighbours="zero_out", adversary="server")
PLAN = b"the plan"
PEOPLE = ("ada", "ben", "cyd", "dot", "eve")
# point of the kill -> the state the ledger must be found in
KILL_POINTS: dict[str, State | None] = {
    "founding": None,
    "founded": None,
    "opened": None,
    "reserve BEGIN": None,
    "reserve SELECT": None,
    "reserve INSERT INTO record": None,
    "reserve COMMIT": None,
    "reserved": State.RESERVED,
    "drawn INSERT INTO record": State.RESERVED,
    "drawn COMMIT": State.RESERVED,
    "drawn": State.DRAWN,
    "stored INSERT INTO record": State.DRAWN,
    "stored COMMIT": State.DRAWN,
    "stored": State.STORED,
    "published COMMIT": State.STORED,
    "published": State.PUBLISHED,
}


def folder_in_memory() -> TemporaryDirectory[str]:
    """For laws that are not about the disk, whose syncs take long when others keep it busy. SIGKILL is not either."""
    memory = Path("/dev/shm")
    return TemporaryDirectory(dir=memory if memory.is_dir() else None)


class World(NamedTuple):
    """What is public: the caps, and what each operation asks for."""

    caps: Mapping[str, Amount]
    total: Amount | None
    charges: Callable[[str], dict[str, Amount]]
    currency: Currency = ZCDP

    def open(self, path: Path | str, kind: type[Ledger] = Ledger) -> Ledger:
        scope = LedgerScope("data", CLIENT, 1e-5, self.currency)
        return kind.open(path, scope, self.caps, self.total)


def crowd(op: str) -> dict[str, Amount]:
    """A few people at costs that depend on the operation's name only; now and then everyone."""
    draw = random.Random(op)
    names = [*draw.sample(PEOPLE, 3), *(["*"] if draw.random() < 0.1 else [])]
    return {name: (draw.randrange(1, 10),) for name in names}


def lone(op: str) -> dict[str, Amount]:
    return {"ada": (random.Random(op).randrange(1, 10),)}


def crowded(operations: int) -> World:
    """Caps for about a third of what that many operations ask for."""
    return World(dict.fromkeys(PEOPLE[:4], (operations,)), (operations // 8,), crowd)


def raced(operations: int) -> World:
    return World({"ada": (3 * operations + 1,)}, None, lone)


WORLDS: dict[str, Callable[[int], World]] = {"crowded": crowded, "raced": raced}


# ---------------------------------------------------------------- the checker


def fits(rule: str, total: Amount, cap: Amount) -> bool:
    return {"all": all, "any": any}[rule](spent <= limit for spent, limit in zip(total, cap, strict=True))


class Model:
    """The rules once more, in the plainest way."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.caps = {**world.caps, **({} if world.total is None else {"*": world.total})}
        self.own: dict[str, list[int]] = {}

    def spent(self, name: str) -> Amount:
        names = {name, "*"} & self.own.keys()
        return tuple(sum(self.own[who][part] for who in names) for part in range(len(self.world.currency.parts)))

    def reserve(self, charges: Mapping[str, Amount]) -> dict[str, Amount]:
        granted = {}
        for name in sorted(charges):  # "*" sorts before every name used in the tests
            before = self.own.get(name, list(self.world.currency.zero()))
            self.own[name] = [old + new for old, new in zip(before, charges[name], strict=True)]
            bound = self.caps if name == "*" else {name} & self.caps.keys()
            if all(fits(self.world.currency.rule, self.spent(who), self.caps[who]) for who in bound):
                granted[name] = charges[name]
            else:
                self.own[name] = before
        return granted


def violations(ledger: Ledger, world: World, seen: list[dict[str, Any]]) -> list[str]:
    """Every breach of I1 to I4 and I7 by a ledger, given what the world saw of it."""
    found = []
    try:
        ledger.check()
    except LedgerError as error:
        found.append(f"I7: {error}")
    entries = {entry.op: entry for entry in ledger.entries()}
    model = Model(world)
    for entry in entries.values():
        fair = model.reserve(world.charges(entry.op))
        if entry.charges != fair:
            found.append(f"I1: {entry.op} was charged {entry.charges}, which should be {fair}")
    found += [f"I1: the total of {who} is wrong" for who in (*PEOPLE, "*") if ledger.spent(who) != model.spent(who)]
    digests: dict[str, str] = {}
    for event in seen:
        op, known = event["op"], entries.get(event["op"])
        if event["saw"] == "error":
            found.append(f"a writer failed: {event}")
        elif known is None or set(event["granted"]) != set(known.charges):
            found.append(f"I4: the ledger forgot {event}")
        elif event["saw"] == "published":
            if known.state is not State.PUBLISHED:
                found.append(f"I3: {op} is out, the ledger says {known.state}")
            if digests.setdefault(op, event["digest"]) != event["digest"] or known.digest != event["digest"]:
                found.append(f"I2: {op} has two releases")
            if not ledger.descends_from(event["head"]):
                found.append(f"I7: the ledger went back behind {op}")
    return found


def read_log(log: Path) -> list[dict[str, Any]]:
    events = []
    for line in log.read_text().splitlines() if log.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):  # a line cut by the kill: the world did not see it
            events.append(json.loads(line))
    return events


# ---------------------------------------------------------------- children


def tell(log: Path, **event: Any) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    # a newline on both sides: a line cut by a kill does not spoil its neighbour
    os.write(handle, f"\n{json.dumps(event)}\n".encode())
    os.close(handle)


def perform(ledger: Ledger, world: World, op: str, log: Path, draw: bytes) -> None:
    """One round by the book: reserve, draw, store, publish, and only then tell the world."""
    granted = sorted(ledger.reserve(op, world.charges(op), PLAN))
    tell(log, saw="granted", op=op, granted=granted)
    if (digest := ledger.entry(op).digest) is None:
        ledger.drawn(op)
        try:
            ledger.published(op, hashlib.sha256(draw).digest())
        except LedgerError as error:  # a racing writer was first: its release is the release
            if error.code != "op-two-releases":
                raise
        digest = ledger.entry(op).digest
    assert digest is not None
    ledger.published(op)
    tell(log, saw="published", op=op, granted=granted, digest=digest, head=ledger.head())


def write_for_ever(path: Path, log: Path, world: World, operations: int) -> None:
    draw = random.Random()
    op = ""
    try:
        with world.open(path) as ledger:
            while True:
                op = f"op{draw.randrange(operations)}"
                perform(ledger, world, op, log, draw.randbytes(40))
    except Exception as error:
        tell(log, saw="error", op=op, error=repr(error))


def pause_at(point: str, here: Callable[[], None], path: Path, log: Path, careless: bool) -> None:
    """Work through one operation and stop for ever at `point`; SQL points are the nth statement of their step."""

    def stop(where: str) -> None:
        if where == point:
            here()
            signal.pause()

    step = ""

    def watch(sql: str) -> None:
        if point.startswith(f"{step} ") and sql.startswith(point.removeprefix(f"{step} ")):
            stop(point)

    link = os.link

    def slow_link(*names: Any) -> None:
        stop("founding")
        link(*names)
        stop("founded")

    os.link = slow_link  # type: ignore[assignment]
    world = crowded(100)
    ledger = world.open(path)
    stop("opened")
    ledger._db.set_trace_callback(watch)
    step = "reserve"
    granted = sorted(ledger.reserve("op0", world.charges("op0"), PLAN))
    stop("reserved")
    tell(log, saw="granted", op="op0", granted=granted)
    step = "drawn"
    ledger.drawn("op0")
    stop("drawn")
    step, draw = "stored", os.urandom(40)
    digest = hashlib.sha256(draw).digest()
    if careless:  # the broken twin: the world sees the release before the ledger has it
        tell(log, saw="published", op="op0", granted=granted, digest=digest.hex(), head=ledger.head())
    ledger.stored("op0", digest)
    stop("stored")
    step = "published"
    ledger.published("op0")
    tell(log, saw="published", op="op0", granted=granted, digest=digest.hex(), head=ledger.head())
    stop("published")


def reserve_many(path: Path, world: World, operations: list[str], stale: bool, gated: bool, start: int) -> None:
    with world.open(path) as ledger:
        os.read(start, 1)  # returns when the parent closes its end
        if not gated:  # SQLite's own lock has to be enough
            vars(ledger_module)["turnstile"] = contextlib.nullcontext
        for op in operations:
            time.sleep(0.0005)  # let the others in
            if stale:  # the broken twin: looks first, charges later
                books = ledger._books
                with ledger._reading():
                    granted = books.granted(world.charges(op))
                time.sleep(0.002)
                with ledger._turn():
                    charges = [[list(amount), [name]] for name, amount in world.charges(op).items()]
                    refused = sorted(world.charges(op).keys() - granted)
                    record = {"kind": "reserved", "op": op, "charges": charges, "refused": refused}
                    ledger._append({**record, "plan": PLAN.hex(), "note": ""})
            else:
                ledger.reserve(op, world.charges(op), PLAN)


def run_out_of_space(path: Path, log: Path, room: int) -> None:
    """Write until no file may grow beyond `room` bytes."""
    world = crowded(400)
    op = ""
    try:
        with world.open(path) as ledger:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
            for number in range(400):
                op = f"op{number}"
                perform(ledger, world, op, log, random.Random(op).randbytes(2000))
    except LedgerError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        tell(log, saw=error.code, op=op, granted=[])


# ---------------------------------------------------------------- commands


def spawn(work: Callable[..., None], *arguments: Any) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work(*arguments)
    except BaseException as error:
        print(f"child failed: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def kill_at(path: str, log: str, point: str, careless: bool = False) -> str:
    reading, writing = os.pipe()
    child = spawn(pause_at, point, lambda: os.write(writing, b"!"), Path(path), Path(log), careless)
    os.close(writing)
    reached = os.read(reading, 1)  # empty when the child ended without getting there
    os.close(reading)
    kill(child)
    return "killed" if reached else "never got there"


def storm(path: str, log: str, world: str, operations: int, writers: int, kills: int, seed: int) -> int:
    """Kill a random one of the racing writers at a random moment, again and again, and replace it."""
    draw = random.Random(seed)
    work = (write_for_ever, Path(path), Path(log), WORLDS[world](operations), operations)
    children = [spawn(*work) for _ in range(writers)]
    for _ in range(kills):
        time.sleep(draw.uniform(0, 0.02))
        victim = draw.randrange(writers)
        kill(children[victim])
        children[victim] = spawn(*work)
    for child in children:
        kill(child)
    return kills


def race(path: str, world: str, processes: int, each: int, stale: bool = False, gated: bool = True) -> list[int]:
    """Reserve different operations on one cap from many processes at once."""
    rules = WORLDS[world](processes * each)
    rules.open(path).close()
    shares = [[f"p{who}-{n}" for n in range(each)] for who in range(processes)]
    start, gate = os.pipe()

    def run(share: list[str]) -> None:
        os.close(gate)
        reserve_many(Path(path), rules, share, stale, gated, start)

    children = [spawn(run, share) for share in shares]
    os.close(gate)
    os.close(start)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def fill(path: str, log: str, room: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(spawn(run_out_of_space, Path(path), Path(log), room), 0)[1])


COMMANDS: dict[str, Callable[..., Any]] = {"kill_at": kill_at, "storm": storm, "race": race, "fill": fill}


def main() -> None:
    for line in sys.stdin:
        command, arguments = json.loads(line)
        print(json.dumps(COMMANDS[command](**arguments)), flush=True)


if __name__ == "__main__":
    main()
