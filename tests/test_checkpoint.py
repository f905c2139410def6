"""A checkpoint is the old state or the new one, never half: crashes, damage, full disks, broken twins."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_workers import FAILPOINTS, acknowledged, meta, state, template
from laws import warm

from sordino import tree
from sordino.engine import checkpoint
from sordino.engine.checkpoint import Loaded, atomic_write, digest_trees, latest, load, save
from sordino.errors import RunError

Ask = Callable[..., str]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Talks to the process that saves and dies, forked from one that has imported everything."""
    arguments = [sys.executable, "-m", "checkpoint_workers"]
    worker = warm.Process(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdin is not None
    assert worker.stdout is not None
    to, back = worker.stdin, worker.stdout

    def tell(action: str, directory: Path, **arguments: Any) -> str:
        to.write(json.dumps({"action": action, "directory": str(directory), **arguments}).encode() + b"\n")
        to.flush()
        return str(json.loads(back.readline()))

    yield tell
    worker.communicate()
    assert worker.returncode == 0


def saved(directory: Path, *steps: int) -> Path:
    for step in steps:
        save(directory, step, state(step), meta(step))
    return directory


def is_state(found: Loaded | None) -> bool:
    """Whether this is exactly some round's state, nothing mixed, nothing lost."""
    return (
        found is not None
        and digest_trees(found.trees) == digest_trees(state(found.step))
        and list(found.trees) == list(state(found.step))
        and found.meta == meta(found.step)
    )


def refusal(call: Callable[[], object]) -> RunError:
    with pytest.raises(RunError) as refused:
        call()
    return refused.value


# --- what is saved comes back ---


def test_every_kind_of_leaf_survives_bit_for_bit(tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    trees = {
        "odd": {
            "nan": torch.tensor([0x7FC12345, 0x80000000 - 2**32], dtype=torch.int32).view(torch.float32),
            "bf16": torch.randn(3).to(torch.bfloat16),
            "flag": torch.tensor([True, False]),
            "empty": torch.zeros(0, 2, dtype=torch.float64),
            "scalar": torch.tensor(-(2**63)),
            "strided": torch.arange(6.0).reshape(2, 3).T,
            "grad": torch.nn.Parameter(torch.ones(2)),
        },
        "shared/1": shared,
        "shared/2": (shared, shared[2:]),
        "nothing": (),
    }
    note: dict[str, Any] = {"nested": [1, 2.5, None, True, {"ü": "\n"}], "infinite": float("inf")}
    save(tmp_path, 12, trees, note)
    found = load(tmp_path, trees.__getitem__)
    assert found is not None
    assert found.step == 12
    assert found.meta == note
    assert digest_trees(found.trees) == digest_trees(trees)
    assert (tmp_path / "round-000012.ckpt").exists()
    for (name, leaf), (expected, original) in zip(
        tree.named(tuple(found.trees.values())), tree.named(tuple(trees.values())), strict=True
    ):
        assert name == expected
        assert (leaf.dtype, leaf.shape) == (original.dtype, original.shape)
        bits = [x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (leaf, original)]
        assert torch.equal(*bits)


def test_clients_come_and_go_and_a_round_may_be_saved_again(tmp_path: Path) -> None:
    for step in (0, 1, 2, 3, 3, 7):
        saved(tmp_path, step)
        assert is_state(load(tmp_path, template))
        assert latest(tmp_path) == step


def test_no_checkpoint_is_none_and_strangers_are_ignored(tmp_path: Path) -> None:
    assert load(tmp_path / "absent", template) is None
    assert latest(tmp_path / "absent") is None
    for name in ("round-1.ckpt", "round-000001.ckpt.bak", "xround-000001.ckpt", ".round-000001.ckpt.ab.tmp"):
        (tmp_path / name).write_bytes(b"half")
    assert load(tmp_path, template) is None


@pytest.mark.parametrize("keep", [0, 1, 2, 5])
def test_previous_checkpoints_are_kept_and_stale_temporaries_go(tmp_path: Path, keep: int) -> None:
    for step in range(999_998, 1_000_004):  # where six digits become seven
        (tmp_path / f".round-{step:06d}.ckpt.dead.tmp").write_bytes(b"half")
        save(tmp_path, step, state(step), meta(step), keep=keep)
        kept = {f"round-{k:06d}.ckpt" for k in range(max(999_998, step - keep), step + 1)}
        assert set(os.listdir(tmp_path)) == kept
        assert latest(tmp_path) == step


def test_an_earlier_round_never_hides_behind_a_later_one(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    assert refusal(lambda: saved(tmp_path, 4)).code == "checkpoint-order"
    assert latest(tmp_path) == 5


def test_the_digest_tells_states_apart() -> None:
    base = {"a": {"x": torch.zeros(2, 3), "y": torch.ones(1)}}
    same = {"a": {"y": torch.ones(1), "x": torch.zeros(3, 2).T}}
    assert digest_trees(base) == digest_trees(same)
    others: list[dict[str, Any]] = [
        {"b": base["a"]},
        {"a": {"x": torch.zeros(3, 2), "y": torch.ones(1)}},
        {"a": {"x": torch.zeros(2, 3, dtype=torch.int32), "y": torch.ones(1)}},
        {"a": {"x": -torch.zeros(2, 3), "y": torch.ones(1)}},
        {"a": {"x": torch.zeros(2, 3)}},
        {"a": {"x": torch.ones(1), "y": torch.zeros(2, 3)}},
    ]
    assert len({digest_trees(trees) for trees in [base, *others]}) == 1 + len(others)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("wrong name", lambda s: s._replace(weights={"v": s.weights["w"], "b": s.weights["b"]})),
        ("wrong shape", lambda s: s._replace(weights={**s.weights, "b": torch.ones(1)})),
        ("wrong dtype", lambda s: s._replace(round=torch.tensor(1.0))),
        ("missing here", lambda s: s._replace(weights={"w": s.weights["w"]})),
        ("missing there", lambda s: s._replace(weights={**s.weights, "c": torch.ones(1)})),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, name: str, other: Any) -> None:
    saved(tmp_path, 4)
    assert refusal(lambda: load(tmp_path, lambda _: other(template("server")))).code == "checkpoint-unfitting"
    assert is_state(load(tmp_path, template))


def test_a_tree_nobody_knows_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    known = {"server": template("server")}
    assert refusal(lambda: load(tmp_path, known.__getitem__)).code == "checkpoint-unfitting"


# --- crashes ---


def crash(ask: Ask, directory: Path, point: str, saves: int, delay: float = 0, broken: bool = False) -> str | None:
    """Kill a saving process; what is wrong afterwards, None if nothing is."""
    before = -1 if (newest := latest(directory)) is None else newest
    answer = ask("crash", directory, start=before + 1, point=point, saves=saves, delay=delay, broken=broken)
    if answer != "killed":
        return f"not killed: {answer}"
    done = max(before, acknowledged(directory))
    try:
        found = load(directory, template)
    except RunError as error:
        return error.code
    if found is None:
        return None if done == -1 else "a finished checkpoint is gone"
    if not is_state(found):
        return "a wrong state"
    if found.step not in (done, done + 1):
        return f"round {found.step} was loaded, {done} had been saved"
    return None


def crashes(ask: Ask, directory: Path, each: int, seed: int, at_random: int) -> list[str]:
    source = random.Random(seed)
    plan = [(point, source.randint(1, 3), 0.0) for point in FAILPOINTS for _ in range(each)]
    plan += [("", 0, source.uniform(0.001, 0.1)) for _ in range(at_random)]
    source.shuffle(plan)  # each crash finds what the one before left
    return [f"{case}: {wrong}" for case in plan if (wrong := crash(ask, directory, *case)) is not None]


def test_a_killed_save_leaves_the_old_state_or_the_new(ask: Ask, tmp_path: Path) -> None:
    assert crashes(ask, tmp_path, each=2, seed=1, at_random=8) == []
    assert len(list(tmp_path.glob("*.tmp"))) <= 1
    saved(tmp_path, 10_000)
    assert list(tmp_path.glob("*.tmp")) == []


@pytest.mark.slow
def test_two_hundred_and_ten_kills_at_seven_points(ask: Ask, tmp_path: Path) -> None:
    assert crashes(ask, tmp_path, each=30, seed=2, at_random=100) == []


@pytest.mark.parametrize("point", FAILPOINTS)
def test_a_kill_at_each_point_of_the_very_first_save(ask: Ask, tmp_path: Path, point: str) -> None:
    assert crash(ask, tmp_path, point, saves=1) is None
    expected = 0 if point in ("replaced", "directory-synced") else None
    assert latest(tmp_path) == expected, "the failpoint is not where its name says"


def test_a_save_that_writes_in_place_is_caught(ask: Ask, tmp_path: Path) -> None:
    assert crash(ask, tmp_path, "half-written", saves=2, broken=True) == "checkpoint-damaged"


def test_data_is_synced_before_its_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SIGKILL cannot show this, a power cut would: the page cache survives the one and not the other."""
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def syncing(descriptor: int) -> None:
        found = os.fstat(descriptor)
        calls.append("sync directory" if stat.S_ISDIR(found.st_mode) else f"sync {found.st_size} bytes")
        fsync(descriptor)

    def replacing(source: Path, target: Path) -> None:
        assert source.parent == target.parent
        calls.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "replace", replacing)
    atomic_write(tmp_path / "file", b"12345")
    assert calls == ["sync 5 bytes", "replace", "sync directory"]


# --- damage ---


def damage(directory: Path, harm: Callable[[bytes], bytes]) -> str:
    """What loading does with a newest file harmed like this: "refused", "right", or how it is wrong."""
    newest = directory / "round-000005.ckpt"
    good = newest.read_bytes()
    newest.write_bytes(harm(good))
    try:
        found = load(directory, template)
        return "right" if is_state(found) and found is not None and found.step == 5 else "a wrong state"
    except RunError as error:
        right_words = newest.name in str(error) and "round 4" in error.fix
        return "refused" if error.code == "checkpoint-damaged" and right_words else f"{error.code}: {error}"
    except Exception as error:
        return type(error).__name__
    finally:
        newest.write_bytes(good)


def flips(count: int, seed: int) -> list[Callable[[bytes], bytes]]:
    source = random.Random(seed)

    def flip(place: float, bit: int) -> Callable[[bytes], bytes]:
        def harm(data: bytes) -> bytes:
            changed = bytearray(data)
            changed[int(place * len(data))] ^= 1 << bit
            return bytes(changed)

        return harm

    # half of them in the first two percent, where the header is
    places = [source.random() * (0.02 if k % 2 else 1) for k in range(count)]
    return [flip(place, source.randrange(8)) for place in places]


def cuts(count: int, seed: int) -> list[Callable[[bytes], bytes]]:
    source = random.Random(seed)
    kept = [source.random() ** (1 + k % 4) for k in range(count)]  # also short ones
    return [lambda data, part=part: data[: int(part * len(data))] for part in kept]  # type: ignore[misc]


def test_flipped_bits_are_refused_or_harmless(tmp_path: Path) -> None:
    saved(tmp_path, 4, 5)
    outcomes = [damage(tmp_path, harm) for harm in flips(256, seed=3)]
    assert set(outcomes) <= {"refused", "right"}
    assert outcomes.count("refused") >= 250
    assert damage(tmp_path, lambda data: data) == "right"


def test_cut_files_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, 4, 5)
    assert {damage(tmp_path, harm) for harm in cuts(256, seed=4)} == {"refused"}


def test_a_load_that_does_not_check_its_digest_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_seal", lambda text, flat: "unchecked")
    saved(tmp_path, 4, 5)
    assert "a wrong state" in {damage(tmp_path, harm) for harm in flips(32, seed=3)}


def test_hostile_files_are_refused_at_once(tmp_path: Path) -> None:
    saved(tmp_path, 4, 5)

    def tensors(header: bytes, body: bytes = b"") -> bytes:
        return struct.pack("<Q", len(header)) + header + body

    def claim(dtype: str, shape: list[int], end: int) -> bytes:
        return json.dumps({"server/round": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}).encode()

    files = [
        b"",
        b"\x00" * 7,
        b"\x00" * 8,
        struct.pack("<Q", 2**64 - 1) + b"{}",
        struct.pack("<Q", 2**31) + bytes(100),
        tensors(b"[" * 100_000),
        tensors(b'{"__metadata__":' + b"[" * 100_000),
        tensors(b"{}"),
        tensors(b"[]"),
        tensors(b'{"__metadata__":null}'),
        tensors(b'{"__metadata__":{"state":"","sha256":""}}'),
        tensors(b'{"__metadata__":{"state":3,"sha256":4}}'),
        tensors(b"\xff\xfe{}"),
        tensors(b"1" * 10_000),
        tensors(claim("I64", [2**40], 2**43)),
        tensors(claim("I64", [2**62, 2**62], 8), bytes(8)),
        tensors(claim("OBJECT", [1], 8), bytes(8)),
        b"PK\x03\x04" + bytes(100),
        b"\x80\x04cos\nsystem\n(S'false'\ntR.",
        (tmp_path / "round-000004.ckpt").read_bytes(),  # an earlier round under a later name
        (tmp_path / "round-000005.ckpt").read_bytes() + b"x",
    ]
    assert {damage(tmp_path, lambda _, file=file: file) for file in files} == {"refused"}  # type: ignore[misc]


def test_falling_back_is_explicit_and_lasting(tmp_path: Path) -> None:
    saved(tmp_path, 3, 4, 5)
    for step in (5, 4):
        path = tmp_path / f"round-{step:06d}.ckpt"
        path.write_bytes(path.read_bytes()[:-1])
    assert refusal(lambda: load(tmp_path, template)).code == "checkpoint-damaged"
    found = load(tmp_path, template, fallback=True)
    assert found is not None
    assert found.step == 3
    assert is_state(found)
    assert is_state(load(tmp_path, template)), "the damaged ones are out of the way"
    assert len(list(tmp_path.glob("*.damaged"))) == 2
    saved(tmp_path, 4)
    assert latest(tmp_path) == 4


def test_a_run_that_lost_everything_does_not_look_new(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    (tmp_path / "round-000005.ckpt").write_bytes(b"")
    for fallback in (False, True, True, False):
        error = refusal(lambda fallback=fallback: load(tmp_path, template, fallback=fallback))  # type: ignore[misc]
        assert error.code == "checkpoint-damaged"
        assert "no earlier checkpoint" in error.fix


def test_another_model_is_no_damage_and_never_falls_back(tmp_path: Path) -> None:
    saved(tmp_path, 4, 5)
    known = {"server": torch.ones(1)}
    assert refusal(lambda: load(tmp_path, known.__getitem__, fallback=True)).code == "checkpoint-unfitting"
    assert latest(tmp_path) == 5


def test_another_format_is_no_damage_and_never_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 4)
    with monkeypatch.context() as later:
        later.setattr(checkpoint, "_FORMAT", 2)
        saved(tmp_path, 5)
    assert refusal(lambda: load(tmp_path, template, fallback=True)).code == "checkpoint-unfitting"
    assert latest(tmp_path) == 5


# --- disks ---


def test_a_file_size_limit_raises_and_leaves_the_old(ask: Ask, tmp_path: Path) -> None:
    saved(tmp_path, 4)
    for limit in (0, 1, 4096, 70_000):
        assert ask("limited", tmp_path, step=5, limit=limit) == "disk-full"
        assert os.listdir(tmp_path) == ["round-000004.ckpt"]
        assert is_state(load(tmp_path, template))
    assert ask("limited", tmp_path, step=5, limit=1 << 20) == "done"
    assert latest(tmp_path) == 5


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "disk-full"),
        (errno.EDQUOT, "disk-full"),
        (errno.EROFS, "not-writable"),
        (errno.EIO, "disk-error"),
    ],
)
def test_every_failing_call_raises_and_leaves_the_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, code: str
) -> None:
    saved(tmp_path, 4)

    def failing(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(checkpoint if call == "open" else os, call, failing, raising=call != "open")
        assert refusal(lambda: saved(tmp_path, 5)).code == code
    assert os.listdir(tmp_path) == ["round-000004.ckpt"]
    assert is_state(load(tmp_path, template))


def test_a_read_only_directory_raises_and_leaves_the_old(ask: Ask) -> None:
    open_to_all = Path(tempfile.mkdtemp())  # pytest's own folders are closed to other users
    try:
        directory = saved(open_to_all / "run", 4)
        directory.chmod(0o555)
        open_to_all.chmod(0o755)
        assert ask("unprivileged", directory, step=5) == "not-writable"
        assert is_state(load(directory, template))
        assert os.listdir(directory) == ["round-000004.ckpt"]
        directory.chmod(0o777)
        assert ask("unprivileged", directory, step=5) == "done", "the control"
    finally:
        open_to_all.chmod(0o755)
        shutil.rmtree(open_to_all)


def test_a_directory_that_is_a_file_raises(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    assert refusal(lambda: saved(file / "run", 1)).code == "not-writable"
    assert refusal(lambda: saved(file, 1)).code == "not-readable"
    assert refusal(lambda: atomic_write(file / "x", b"")).code == "not-writable"
    assert refusal(lambda: atomic_write(tmp_path / "absent" / "x", b"")).code == "not-writable"
    assert refusal(lambda: load(file, template)).code == "not-readable"
    assert file.read_text() == "precious"


def test_atomic_write_replaces_and_keeps_the_old_when_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    atomic_write(path, b"old")
    atomic_write(path, b"new" * 100_000)
    assert path.read_bytes() == b"new" * 100_000

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        atomic_write(path, b"newer")
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_bytes() == b"new" * 100_000
