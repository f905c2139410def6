"""A damaged checkpoint is refused, a disk that fails leaves the old one."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sordino.engine import checkpoint
from sordino.engine.checkpoint import latest, load
from sordino.errors import RunError
from sordino.ledger import files
from sordino.ledger.files import atomic_write
from tests.engine.checkpoint_workers import template
from tests.engine.saved import Ask, is_state, refusal, saved


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
@pytest.mark.slow
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
        broken.setattr(files if call == "open" else os, call, failing, raising=call != "open")
        assert refusal(lambda: saved(tmp_path, 5)).code == code
    assert os.listdir(tmp_path) == ["round-000004.ckpt"]
    assert is_state(load(tmp_path, template))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_where_no_file_may_be_opened_it_waits_and_then_names_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """What holds the files may let go of them, and a round that has drawn its noise is worth a minute."""
    left, clock = [3.0], [0.0]

    def opening(*given: object, **named: object) -> object:
        if left[0] > 0:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        return open(*given, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(files.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    monkeypatch.setattr(files.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(files, "open", opening, raising=False)
    saved(tmp_path, 4)
    assert is_state(load(tmp_path, template))
    left[0] = math.inf
    refused = refusal(lambda: saved(tmp_path, 5))
    assert (refused.code, clock[0] >= 60) == ("no-file-left", True)
    assert "Too many open files" in refused.why
    assert "nothing is wrong with the folder" in refused.fix
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
