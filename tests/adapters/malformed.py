"""Models as a client may send them, each wrong in one way or in several."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

MODEL = {"w": np.zeros((3, 2), np.float32), "b": np.zeros(2, np.float32)}


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def files(**changes: Any) -> dict[str, Any]:
    return {name: npy(array) for name, array in {**MODEL, **changes}.items()}


def _wrong(rng: np.random.Generator) -> dict[str, Any]:
    """A model that is wrong in one way."""
    sent, name = files(), str(rng.choice([*MODEL]))
    head, whole = sent[name].index(b"\n") + 1, len(sent[name])
    other = rng.choice(["<f8", "<f2", ">f4", "<i4", "<u1", "<c8", "|b1", "<U4"])
    shape = tuple(rng.integers(0, 4, rng.integers(0, 4)).tolist())
    cut = int(rng.integers(0, whole))
    ways: list[dict[str, Any]] = [
        {key: value for key, value in sent.items() if key != name},
        {**sent, f"more{rng.integers(99)}": sent[name]},
        {(f"{key}x" if key == name else key): value for key, value in sent.items()},
        {**sent, name: npy(np.zeros(MODEL[name].shape, other))},
        {**sent, name: npy(np.zeros((*MODEL[name].shape, *(shape or (2,))), np.float32))},
        {**sent, name: npy(np.zeros(MODEL[name].size + 1, np.float32))},
        {**sent, name: sent[name][:cut]},
        {**sent, name: sent[name] + rng.bytes(int(rng.integers(1, 9)))},
        {**sent, name: rng.bytes(int(rng.integers(0, 200)))},
        {**sent, name: sent[name][:6] + bytes([int(rng.integers(2, 256)), 0]) + sent[name][8:]},
        {**sent, name: sent[name].replace(b"<f4", b"|O ")},
        {**sent, name: sent[name].replace(b"'shape': (", b"'shape': (9")},
        {**sent, name: sent[name].replace(b"'shape': (", b"'shape': (" + b"9" * 30)[:whole]},
        {**sent, name: b"\x93NUMPY\x01\x00" + rng.bytes(head - 8) + sent[name][head:]},
        {},
    ]
    return ways[int(rng.integers(len(ways)))]


def malformed(many: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    for _ in range(many):
        yield _wrong(rng)
