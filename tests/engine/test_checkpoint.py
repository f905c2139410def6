"""A checkpoint is the old state or the new one, never half: crashes, damage, full disks, broken twins."""

from __future__ import annotations

import os
import random
import stat
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as unpack
from safetensors.torch import load_file
from safetensors.torch import save as pack

from sordino import tree
from sordino.engine.checkpoint import digest_trees, latest, load, save, tensors
from sordino.errors import RunError
from sordino.ledger.files import atomic_write
from tests.engine.checkpoint_workers import FAILPOINTS, acknowledged, meta, state, template
from tests.engine.saved import Ask, is_state, refusal, saved


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


def test_tensors_of_a_type_that_torch_has_not_are_refused(tmp_path: Path) -> None:
    head, file = b'{"x":{"dtype":"F8_E8M0","shape":[1],"data_offsets":[0,1]}}', tmp_path / "model.safetensors"
    file.write_bytes(len(head).to_bytes(8, "little") + head + b"x")
    assert refusal(lambda: tensors(file)).code == "run-file-damaged"


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


@pytest.mark.slow
def test_a_killed_save_leaves_the_old_state_or_the_new(ask: Ask, tmp_path: Path) -> None:
    assert crashes(ask, tmp_path, each=1, seed=1, at_random=3) == []
    assert len(list(tmp_path.glob("*.tmp"))) <= 1
    saved(tmp_path, 10_000)
    assert list(tmp_path.glob("*.tmp")) == []


@pytest.mark.slow
def test_two_hundred_and_ten_kills_at_seven_points(ask: Ask, tmp_path: Path) -> None:
    assert crashes(ask, tmp_path, each=30, seed=2, at_random=100) == []


@pytest.mark.one_fast
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


def test_a_checkpoint_is_a_file_of_the_library_and_copies_no_state(tmp_path: Path) -> None:
    """States of many clients may fill the memory: nothing is made of them but the file. The library's writer copies."""
    table = torch.arange(1 << 21, dtype=torch.float32).reshape(1024, -1)
    state = {"whole": table, "row": table[1], "half": table[2].half(), "none": torch.empty(0, 3), "on": table[3] > 0}
    save(tmp_path, 1, {"server": {}}, {})  # what is imported and remembered
    tracemalloc.start()
    try:
        path = save(tmp_path, 1, {"server": state}, {})
        held = tracemalloc.get_traced_memory()[1]
        packed = pack(state | {"row": table[1].clone()})
        assert tracemalloc.get_traced_memory()[1] > table.nbytes
    finally:
        tracemalloc.stop()
    assert held < table.nbytes / 8
    ours, theirs = load_file(path), unpack(packed)
    for name, leaf in theirs.items():
        assert torch.equal(ours[f"server/{name}"], leaf)
        assert ours[f"server/{name}"].dtype == leaf.dtype
    assert not any(leaf.data_ptr() % leaf.itemsize for leaf in ours.values())  # each lies where its type wants it
