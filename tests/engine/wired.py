"""A good message, and its parts."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sordino import tree
from sordino.engine.wire import Header

PREFIX = 10  # magic, version, header length


SEAL = 32


class Up(NamedTuple):
    delta: dict[str, Tensor]
    seen: Tensor
    mask: Tensor


def header(**changes: Any) -> Header:
    return replace(Header("run-1", "ab" * 32, 3, 7, "up", '{"op":"α"}'), **changes)


def update(seed: int = 0) -> Up:
    g = torch.Generator().manual_seed(seed)
    weights = {"w": torch.randn(5, 3, generator=g), "b": torch.randn(3, generator=g)}
    return Up(weights, torch.tensor(seed), torch.randint(0, 256, (2, 2), generator=g).to(torch.uint8))


def raw(payload: Any) -> list[tuple[str, torch.dtype, tuple[int, ...], bytes]]:
    return [(n, x.dtype, tuple(x.shape), x.contiguous().numpy().tobytes()) for n, x in tree.named(payload)]


def seal(body: bytes) -> bytes:
    """An attacker can compute SHA-256, so most malformed messages below carry a right one."""
    return body + hashlib.sha256(body).digest()


def parts(message: bytes) -> tuple[bytes, bytes]:
    """Header text and tensor bytes of a good message."""
    (length,) = struct.unpack_from("<I", message, 6)
    return message[PREFIX : PREFIX + length], message[PREFIX + length : -SEAL]


def message(text: bytes, tensors: bytes, magic: bytes = b"SRDN", version: int = 1, lie: int = 0) -> bytes:
    return seal(struct.pack("<4sHI", magic, version, (len(text) + lie) % 2**32) + text + tensors)
