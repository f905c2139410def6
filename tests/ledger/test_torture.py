"""The ledger under SIGKILL, races, damage, a full disk and rollbacks: real processes, real files."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from sordino.accounting.claims import Amount
from sordino.errors import LedgerError
from sordino.ledger.ledger import State
from tests.ledger.ledger_workers import (
    KILL_POINTS,
    PLAN,
    World,
    crowded,
    folder_in_memory,
    perform,
    raced,
    read_log,
    violations,
)

Command = Callable[..., Any]
slow = pytest.mark.slow


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield Path(folder)


@pytest.fixture
def disk() -> Iterator[Path]:
    """A real one, whose syncs let writers overtake each other."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def command() -> Iterator[Command]:
    """Runs a command in the process that forks and kills writers."""
    worker = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("ledger_workers.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None

    def send(name: str, **arguments: Any) -> Any:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(json.dumps([name, arguments], default=str) + "\n")
        worker.stdin.flush()
        return json.loads(worker.stdout.readline())

    yield send
    worker.stdin.close()
    worker.wait()


# ---------------------------------------------------------------- G12: killed


@pytest.mark.one_fast
@pytest.mark.parametrize("point", KILL_POINTS)
def test_kill_at_every_point_then_finish_the_operation(command: Command, tmp_path: Path, point: str) -> None:
    """Real processes; every state of the disk between these points is in `test_crashes`."""
    path, log, world = tmp_path / "ledger", tmp_path / "log", crowded(100)
    assert command("kill_at", path=path, log=log, point=point) == "killed"
    with world.open(path) as ledger:
        assert ledger.state("op0") is KILL_POINTS[point]
        assert violations(ledger, world, read_log(log)) == []
        perform(ledger, world, "op0", log, b"drawn again")
        assert ledger.state("op0") is State.PUBLISHED
        charges = world.charges("op0")
        assert all(ledger.spent(name) == charges[name] for name in charges)  # charged once
        assert violations(ledger, world, read_log(log)) == []


def test_a_writer_that_publishes_before_it_stores_is_caught(command: Command, tmp_path: Path) -> None:
    path, log, world = tmp_path / "ledger", tmp_path / "log", crowded(100)
    assert command("kill_at", path=path, log=log, point="stored COMMIT", careless=True) == "killed"
    with world.open(path) as ledger:
        assert any(line.startswith("I3") for line in violations(ledger, world, read_log(log)))
        perform(ledger, world, "op0", log, b"drawn again")
        assert any(line.startswith("I2") for line in violations(ledger, world, read_log(log)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_hundred_random_kills_of_racing_writers(command: Command, disk: Path, seed: int) -> None:
    operations, path, log = 2000, disk / "ledger", disk / "log"
    arguments = {"world": "crowded", "operations": operations, "writers": 2 + seed % 3, "seed": seed}
    assert command("storm", path=path, log=log, kills=100, **arguments) == 100
    seen, world = read_log(log), crowded(operations)
    with world.open(path) as ledger:
        assert violations(ledger, world, seen) == []
        states = {entry.state for entry in ledger.entries()}
    assert State.PUBLISHED in states
    assert 10 < len({event["op"] for event in seen}) < operations  # there was new work from the first kill to the last


# ---------------------------------------------------------------- G13: racing


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(("processes", "each"), [(4, 40), pytest.param(16, 500, marks=slow)])
def test_race_on_one_cap_fills_it_exactly(command: Command, disk: Path, processes: int, each: int, gated: bool) -> None:
    world, arguments = raced(processes * each), {"world": "raced", "processes": processes, "each": each, "gated": gated}
    for again in range(5):  # whom SQLite's own lock lets in is the processor's choice: until it did so in turn
        path = disk / f"ledger-{again}"
        assert command("race", path=path, **arguments) == [0] * processes
        with world.open(path) as ledger:
            assert violations(ledger, world, []) == []  # nobody above the cap, nobody refused who still fitted
            entries = list(ledger.entries())
            assert ledger.spent("ada") == world.caps["ada"]  # with costs from 1 to 9 the last gap is always filled
        assert len(entries) == processes * each
        assert 0 < sum(not entry.charges for entry in entries) < len(entries)
        turns = [entry.op.split("-")[0] for entry in entries]
        if sum(map(str.__ne__, turns, turns[1:])) > 2 * processes:
            return
    pytest.fail("they never did interleave")


def test_a_ledger_that_looks_before_it_locks_is_caught(command: Command, tmp_path: Path) -> None:
    path, world = tmp_path / "ledger", raced(8 * 30)
    command("race", path=path, world="raced", processes=8, each=30, stale=True)
    with pytest.raises(LedgerError, match="spent more than its cap"):
        world.open(path)


# ---------------------------------------------------------------- G14: damaged, full, rolled back


def written(path: Path, world: World, operations: range) -> str:
    """Publish some operations; the head the world has seen."""
    with world.open(path) as ledger:
        for number in operations:
            perform(ledger, world, f"op{number}", path.with_suffix(".log"), random.Random(number).randbytes(200))
        return ledger.head()


def outcome(path: Path, world: World, head: str, spent: tuple[int, ...]) -> str:
    """What became of a damaged ledger; `forgot` is the one answer that must not occur."""
    try:
        with world.open(path) as ledger:
            if not ledger.descends_from(head):
                return "rolled back, and seen to be"
            for entry in ledger.entries():
                ledger.entry(entry.op)
            return "kept" if ledger.spent("ada") >= spent else "forgot"
    except LedgerError as error:
        return error.code


def damage(
    tmp_path: Path, source: Path, world: World, head: str, spoil: Callable[[bytearray, int], None], cases: range
) -> dict[str, int]:
    with world.open(source) as ledger:
        spent = ledger.spent("ada")
    victim, counts = tmp_path / "victim", dict[str, int]()
    content = source.read_bytes()
    for case in cases:
        spoilt = bytearray(content)
        spoil(spoilt, case)
        victim.write_bytes(spoilt)
        found = outcome(victim, world, head, spent)
        counts[found] = counts.get(found, 0) + 1
        for name in ("-wal", "-shm"):
            Path(f"{victim}{name}").unlink(missing_ok=True)
    return counts


def cut(content: bytearray, case: int) -> None:
    del content[len(content) - 1 - case :]


def flip(content: bytearray, case: int) -> None:
    bit = random.Random(case).randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("step", [64, pytest.param(1, marks=slow)])
def test_a_cut_file_is_refused_or_kept(tmp_path: Path, step: int) -> None:
    path, world = tmp_path / "ledger", crowded(100)
    head = written(path, world, range(12))
    counts = damage(tmp_path, path, world, head, cut, range(0, 4096, step))
    assert set(counts) <= {"kept", "ledger-damaged"}
    assert counts["ledger-damaged"] > 0


@pytest.mark.slow
def test_a_flipped_bit_is_refused_or_kept(tmp_path: Path) -> None:
    path, world = tmp_path / "ledger", crowded(100)
    head = written(path, world, range(12))
    counts = damage(tmp_path, path, world, head, flip, range(1000))
    assert set(counts) <= {"kept", "ledger-damaged", "ledger-version"}
    assert counts["ledger-damaged"] > 250  # most of the file is evidence


@pytest.mark.parametrize("step", [512, pytest.param(16, marks=slow)])
def test_a_cut_journal_is_refused_or_seen_to_go_back(command: Command, tmp_path: Path, step: int) -> None:
    path, log, world = tmp_path / "ledger", tmp_path / "log", crowded(100)
    command("kill_at", path=path, log=log, point="published")  # leaves its journal behind
    head = next(event["head"] for event in read_log(log) if event["saw"] == "published")
    charge = world.charges("op0").get("ada", (0,))
    main, journal = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    counts: dict[str, int] = {}
    victim = tmp_path / "victim"
    for length in [*range(0, len(journal), step), len(journal)]:
        victim.write_bytes(main)
        Path(f"{victim}-shm").unlink(missing_ok=True)
        Path(f"{victim}-wal").write_bytes(journal[:length])
        found = outcome(victim, world, head, charge)
        counts[found] = counts.get(found, 0) + 1
    assert set(counts) <= {"kept", "ledger-damaged", "rolled back, and seen to be"}
    assert counts["kept"] > 0
    assert counts["rolled back, and seen to be"] > 0


def test_a_ledger_that_starts_anew_when_damaged_is_caught(tmp_path: Path) -> None:
    path, world = tmp_path / "ledger", crowded(100)
    head = written(path, world, range(12))
    path.unlink()
    with pytest.raises(LedgerError, match="is gone"):
        world.open(path)
    Path(f"{path}-lock").unlink()  # the broken twin: nothing is left that says that there was one
    with world.open(path) as fresh:
        assert not fresh.descends_from(head)
        assert any(line.startswith("I4") for line in violations(fresh, world, read_log(path.with_suffix(".log"))))


@pytest.mark.parametrize(
    "rooms", [range(60_000, 400_000, 85_000), pytest.param(range(40_000, 400_000, 2_000), marks=slow)]
)
def test_a_full_disk_is_said_and_leaves_nothing_half_written(command: Command, tmp_path: Path, rooms: range) -> None:
    world = crowded(400)
    for room in rooms:
        path, log = tmp_path / f"{room}.ledger", tmp_path / f"{room}.log"
        assert command("fill", path=path, log=log, room=room) == 0
        *seen, last = read_log(log)
        assert last["saw"] == "ledger-disk-full"
        with world.open(path) as ledger:
            assert violations(ledger, world, seen) == []
            perform(ledger, world, last["op"], log, b"with room again")
            published = [event for event in read_log(log) if event["saw"] != "ledger-disk-full"]
            assert violations(ledger, world, published) == []


@pytest.mark.slow
def test_twenty_rollbacks_are_seen_by_whoever_saw_a_later_head(tmp_path: Path) -> None:
    path, world, heads = tmp_path / "ledger", crowded(100), []
    for stage in range(21):
        heads.append(written(path, world, range(stage, stage + 1)))
        shutil.copy(path, tmp_path / f"copy{stage}")
    for stage in range(20):
        with world.open(tmp_path / f"copy{stage}") as old:
            assert [old.descends_from(head) for head in heads] == [n <= stage for n in range(21)]
            old.reserve("another future", {"eve": (1,)}, PLAN)
            assert not old.descends_from(heads[stage + 1])
    with world.open(path) as ledger:
        assert all(ledger.descends_from(head) for head in heads)
        assert not ledger.descends_from("00" * 32)


# ---------------------------------------------------------------- G15: repeated


@pytest.mark.slow
def test_a_hundred_replays_are_one_charge_and_the_same_bytes(tmp_path: Path) -> None:
    path, log, world = tmp_path / "ledger", tmp_path / "log", crowded(100)
    for replay in range(100):
        with world.open(path) as ledger:
            perform(ledger, world, "op0", log, b"draw %d" % replay)
    seen = read_log(log)
    with world.open(path) as ledger:
        assert violations(ledger, world, seen) == []
        assert ledger.entry("op0").digest == seen[1]["digest"] == hashlib.sha256(b"draw 0").hexdigest()
        assert [entry.op for entry in ledger.entries()] == ["op0"]
        head = ledger.head()
        others: list[dict[str, Amount]] = [{}, {"eve": (1,)}, {**world.charges("op0"), "zoe": (1,)}]
        others += [{**world.charges("op0"), name: (10,)} for name in world.charges("op0")]
        for charges in others:
            with pytest.raises(LedgerError) as refusal:
                ledger.reserve("op0", charges, PLAN)
            assert refusal.value.code == "op-conflict"
        with pytest.raises(LedgerError) as refusal:
            ledger.reserve("op0", world.charges("op0"), b"another plan")
        assert refusal.value.code == "op-conflict"
        assert ledger.head() == head
    assert len({event["digest"] for event in seen if event["saw"] == "published"}) == 1


# ---------------------------------------------------------------- G16: personal caps


@pytest.mark.slow
def test_a_thousand_personal_caps() -> None:
    rounds = 10_000
    draw = random.Random(16)
    people = [f"client{number}" for number in range(1000)]
    # a client takes part in a tenth of the rounds, at costs from 1 to 9: half of them run out, or never do
    caps = {name: (draw.randrange(1, rounds),) for name in people}
    world = World(caps, None, lambda op: {})
    spent = dict.fromkeys(people, 0)
    refused = 0
    with world.open(":memory:") as ledger:
        for number in range(rounds):
            charges = {name: (draw.randrange(1, 10),) for name in draw.sample(people, 100)}
            granted = ledger.reserve(f"round{number}", charges, PLAN)
            fair = {name for name, (amount,) in charges.items() if spent[name] + amount <= caps[name][0]}
            assert granted == fair
            refused += len(charges) - len(fair)
            for name in fair:
                spent[name] += charges[name][0]
            ledger.stored(f"round{number}", b"digest")
            ledger.published(f"round{number}")
        ledger.check()
        assert all(ledger.spent(name) == (spent[name],) <= caps[name] for name in people)
    assert refused > rounds  # the caps did bind
