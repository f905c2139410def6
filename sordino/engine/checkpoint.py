"""Checkpoints of a run, written atomically: a crash leaves the old state or the new one, never half of one.

One checkpoint is one safetensors file, `round-000012.ckpt`, written by `ledger.files.atomic_write`. Its metadata holds
the step, the names of the trees, the caller's JSON and a SHA-256 over all of it and every tensor; loading verifies that
before anything is used, then fits names, dtypes and shapes to the caller's templates. The SHA-256 finds damage, not
forgery. A directory has one writer.

Trees come and go (client states exist only for clients that took part): store each under its own name, "states/17" for
the states of 17 clients, and let the template function answer by name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from safetensors import SafetensorError

from sordino import tree
from sordino.accounting.events import Json
from sordino.errors import RunError, damaged
from sordino.ledger.files import atomic_write, disk_errors, sync, waiting_for_files
from sordino.tree import Tree

if TYPE_CHECKING:
    from torch import Tensor


JSON: TypeAlias = bool | int | float | str | Sequence["JSON"] | Mapping[str, "JSON"] | None

_FORMAT = 1
_NAME = re.compile(r"round-([0-9]{6,})\.ckpt")


class Loaded(NamedTuple):
    """A checkpoint that was read: its round, its trees of tensors, and their description."""

    step: int
    trees: dict[str, Tree]  # tensors on the CPU, in the order they were saved
    meta: Json


def save(directory: Path, step: int, trees: Mapping[str, Tree], meta: Mapping[str, JSON], keep: int = 2) -> Path:
    """Write the state after round `step`; the `keep` checkpoints before it stay, older ones go."""
    assert step >= 0
    assert keep >= 0
    newest = latest(directory)
    if newest is not None and newest > step:
        raise RunError(
            f"{directory} already holds round {newest}, later than round {step}",
            why="the newest checkpoint is the state of the run, and an older round must not replace it",
            fix="use a new run folder, or delete the later checkpoints",
            code="checkpoint-order",
        )
    flat = _flatten(trees)
    text = json.dumps({"format": _FORMAT, "step": step, "trees": list(trees), "meta": meta})
    data = _packed(flat, {"state": text, "sha256": _seal(text, flat)})
    path = _path(directory, step)
    with disk_errors(path):
        for place in (directory.parent, directory):  # clients save theirs first, inside the server's
            if not place.exists():
                place.mkdir(parents=True, exist_ok=True, mode=0o700)
                sync(place.parent)
        for stale in directory.glob(".round-*.ckpt.*.tmp"):
            stale.unlink()
    atomic_write(path, data, private=True)  # it may hold what clients keep
    with disk_errors(path):
        for old in _steps(directory)[: -(keep + 1)]:
            _path(directory, old).unlink()
    return path


def load(
    directory: Path, templates: Callable[[str], Tree], *, fallback: bool = False, at: int | None = None
) -> Loaded | None:
    """The newest checkpoint; None if none was ever completed.

    `templates` maps a tree's name to a tree of the same structure (`mapping.__getitem__` will do). A damaged newest
    file is refused; `fallback=True` renames it to `*.damaged` and loads the one before. `at` loads the checkpoint of
    that step and deletes later ones, for a site that must go back to the step of the whole run.
    """
    steps = _steps(directory)
    if at is not None:
        with disk_errors(directory):
            for later in [step for step in steps if step > at]:
                _path(directory, later).unlink()
        steps = [step for step in steps if step == at]
        if not steps:
            raise _refusal(_path(directory, at), "it is missing", [])
    while steps:
        step = steps.pop()
        path = _path(directory, step)
        try:
            state, flat = _read(path, step)
        except _Damaged as damage:
            if not fallback:
                raise _refusal(path, str(damage), steps) from damage
            with disk_errors(path):
                path.rename(path.with_name(f"{path.name}.damaged"))
                sync(directory)
        else:
            return Loaded(step, _rebuild(path, state["trees"], flat, templates), state["meta"])
    aside = next(directory.glob("round-*.ckpt.damaged"), None)
    if aside is not None:  # a run that lost its state must not look like a new one
        raise _refusal(aside, "it was set aside", steps)
    return None


def newest(directory: Path) -> tuple[int, Json] | None:
    """Step of the newest checkpoint, and the caller's metadata in it; None without a checkpoint."""
    if (step := latest(directory)) is None:
        return None
    try:
        return step, _read(_path(directory, step), step)[0]["meta"]
    except _Damaged as damage:
        raise _refusal(_path(directory, step), str(damage), []) from damage


def latest(directory: Path) -> int | None:
    steps = _steps(directory)
    return steps[-1] if steps else None


def digest_trees(trees: Mapping[str, Tree]) -> str:
    """SHA-256 over the names, dtypes, shapes and bytes of all tensors; the order of names does not count."""
    return _digest(_flatten(trees))


def _flatten(trees: Mapping[str, Tree]) -> dict[str, Tensor]:
    pairs = [(f"{name}/{leaf_name}", leaf) for name, part in trees.items() for leaf_name, leaf in tree.named(part)]
    flat = {name: leaf.detach().cpu().contiguous() for name, leaf in pairs}
    assert len(flat) == len(pairs), "two tensors of a checkpoint have the same name"
    return flat


def _packed(flat: Mapping[str, Tensor], meta: Mapping[str, str]) -> list[bytes | memoryview]:
    """Content of a safetensors file: its head, and the tensors where they lie. The library would copy all of them, and
    what clients keep may be gigabytes.
    """
    leaves = sorted(flat.items(), key=lambda pair: (-pair[1].itemsize, pair[0]))  # so each lies where its type wants it
    head: dict[str, object] = {"__metadata__": meta}
    end = 0
    for name, leaf in leaves:
        begin, end = end, end + leaf.nbytes
        head[name] = {"dtype": _name_of(leaf.dtype), "shape": leaf.shape, "data_offsets": [begin, end]}
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *(_bytes_of(leaf) for _, leaf in leaves)]


@cache
def _name_of(dtype: torch.dtype) -> str:
    """Name of a type in safetensors files, as the library writes it."""
    from safetensors.torch import save as pack

    return str(json.loads(pack({"": torch.empty(0, dtype=dtype)})[8:])[""]["dtype"])


def _bytes_of(leaf: Tensor) -> memoryview:
    return leaf.reshape(-1).view(torch.uint8).numpy().data


def _digest(flat: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name, leaf in sorted(flat.items()):
        total.update(json.dumps([name, str(leaf.dtype), leaf.shape]).encode())
        total.update(_bytes_of(leaf))
    return total.hexdigest()


def _seal(text: str, flat: Mapping[str, Tensor]) -> str:
    return hashlib.sha256(f"{_digest(flat)} {text}".encode()).hexdigest()


class _Damaged(Exception):
    pass


def tensors(path: Path) -> dict[str, Tensor]:
    """Reads a file of tensors that is no checkpoint: a model, or the tensors that clients received before the first
    round."""
    from safetensors.torch import load

    try:
        found: dict[str, Tensor] = load(path.read_bytes())
    except (OSError, SafetensorError, ValueError, KeyError) as error:  # the last for a dtype that torch has not
        raise damaged(path, error, f"`sordino resume {quote(str(path.parent))}` writes it anew") from None
    return found


@waiting_for_files
def _read(path: Path, step: int) -> tuple[Json, dict[str, Tensor]]:
    """Verified state and tensors of a checkpoint file."""
    from safetensors.torch import load

    with disk_errors(path, "not-readable"):
        data = path.read_bytes()
    try:
        length = int.from_bytes(data[:8], "little")
        if len(data) < 8 or length > len(data) - 8:
            raise _Damaged("it is cut short")
        metadata = json.loads(data[8 : 8 + length].decode())["__metadata__"]
        flat = load(data)
        if metadata["sha256"] != _seal(metadata["state"], flat):
            raise _Damaged("its content does not match its SHA-256 digest")
        state = json.loads(metadata["state"])
        if state["step"] != step:
            raise _Damaged(f"it holds round {state['step']}, and its name says round {step}")
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise _Damaged(f"it is not a checkpoint ({type(error).__name__}: {error})") from error
    if state["format"] != _FORMAT:
        raise _unfitting(path, f"it has format {state['format']}, this is format {_FORMAT}")
    return state, flat


def _refusal(path: Path, why: str, earlier: Sequence[int]) -> RunError:
    return RunError(
        f"{path} is damaged",
        why=why,
        fix=f"`sordino resume RUN --fallback` continues from round {earlier[-1]}"
        if earlier
        else "start the run again in another folder; there is no earlier checkpoint",
        code="checkpoint-damaged",
    )


def _rebuild(
    path: Path, names: Sequence[str], flat: dict[str, Tensor], templates: Callable[[str], Tree]
) -> dict[str, Tree]:
    built = {}
    for name in names:
        try:
            template = templates(name)
        except KeyError as error:
            raise _unfitting(path, f"nothing called {name} is expected") from error
        values = []
        for leaf_name, leaf in tree.named(template):
            found = flat.pop(f"{name}/{leaf_name}", None)
            if found is None or (found.dtype, found.shape) != (leaf.dtype, leaf.shape):
                raise _unfitting(path, f"{name}/{leaf_name} is {_kind(found)}, {_kind(leaf)} is expected")
            values.append(found.to(leaf.device))
        built[name] = tree.like(template, values)
    if flat:
        raise _unfitting(path, f"it also holds {', '.join(sorted(flat))}"[:200])
    return built


def _kind(leaf: Tensor | None) -> str:
    return "missing" if leaf is None else f"{leaf.dtype} {list(leaf.shape)}"


def _unfitting(path: Path, why: str) -> RunError:
    return RunError(
        f"{path} does not fit this experiment",
        why=why,
        fix="resume with the experiment and the version of sordino that wrote it",
        code="checkpoint-unfitting",
    )


def _path(directory: Path, step: int) -> Path:
    return directory / f"round-{step:06d}.ckpt"


@waiting_for_files
def _steps(directory: Path) -> list[int]:
    with disk_errors(directory, "not-readable"):
        names = os.listdir(directory) if directory.exists() else []
    return sorted(int(found[1]) for found in map(_NAME.fullmatch, names) if found)
