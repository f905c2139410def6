"""Encrypted messages: ciphertexts behind a header that says whose key, which round, which layout, and how many
contributions are in it; and the packages behind the schemes, which come with the extra `he`.

Ciphertexts are malleable and prove nothing about their sender; who may speak is the transport's business (mutually
authenticated TLS). By the header two honest sides notice, before any arithmetic, that they disagree; a guard inside the
plaintext notices a header that lies. A scheme without its package is refused, and never replaced by a sum in the clear.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from sordino.errors import ConfigError, KeyMismatch, LayoutMismatch, MalformedCiphertext, RoundMismatch, extra
from sordino.privacy.uplink.channels import PublicKey
from sordino.privacy.uplink.fixed_point import Ints, Layout

Foreign: TypeAlias = Any  # an object of a package that has no types


OTHERWISE = "; or choose another scheme: sordino never falls back to sums without encryption"


def gmpy2() -> Foreign:
    with extra("he", "encrypted sums", "backend-unavailable", otherwise=OTHERWISE):
        import gmpy2
    return gmpy2


def tenseal() -> Foreign:
    with extra("he", "encrypted sums", "backend-unavailable", otherwise=OTHERWISE):
        import tenseal
    return tenseal


MAGIC: Final = b"SRDE"
VERSION: Final = 1
_HEAD = struct.Struct("<4sH8s16sIQBBdIIQ")  # all little-endian


@dataclass(frozen=True)
class SealedHeader:
    """Header of an encrypted message: key, round, layout, and number of contributions."""

    scheme: str  # "paillier", "bfv", "ckks"
    key: bytes  # id of the public key, 16 bytes
    round: int
    size: int  # values of one contribution
    layout: Layout
    slots: int  # values of one ciphertext, guards included
    count: int = 1  # contributions added up so far

    def pack(self, body: int) -> bytes:
        fields = (self.scheme.encode().ljust(8, b"\0"), self.key, self.round, self.size)
        layout = (self.layout.bits, self.layout.headroom, self.layout.reach)
        return _HEAD.pack(MAGIC, VERSION, *fields, *layout, self.slots, self.count, body)


@dataclass(frozen=True)
class Sealed:
    """One message of ciphertexts with its header."""

    header: SealedHeader
    body: bytes

    def pack(self) -> bytes:
        return self.header.pack(len(self.body)) + self.body


def unpack(data: bytes, expected: SealedHeader) -> Sealed:
    """Parses a message of one contribution or of several; refused where its header differs from `expected` in anything
    but the count. Its length is checked before its fields are used.
    """
    if len(data) < _HEAD.size:
        raise _malformed(f"{len(data)} bytes came, a header alone has {_HEAD.size}")
    magic, version, scheme, key, round, size, bits, headroom, reach, slots, count, body = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise _malformed("it does not begin like a ciphertext of sordino")
    if len(data) != _HEAD.size + body:
        raise _malformed(f"{len(data)} bytes came, its header says {_HEAD.size + body}")
    name = scheme.rstrip(b"\0").decode("ascii", "replace")
    try:
        found = SealedHeader(name, key, round, size, Layout(bits, headroom, reach), slots, count)
    except ConfigError as error:
        raise _malformed(error.what) from None
    _agree(found, expected)
    found.layout.check(count)
    return Sealed(found, data[_HEAD.size :])


def joined(headers: Iterable[SealedHeader]) -> SealedHeader:
    """Header of the sum of messages; refused, before any arithmetic, where they do not fit together or are too many."""
    first, *rest = headers
    count = first.count
    for other in rest:
        _agree(other, first)
        count += other.count
    first.layout.check(count)
    return replace(first, count=count)


def _agree(found: SealedHeader, expected: SealedHeader) -> None:
    if found.scheme != expected.scheme:
        raise _malformed(f"it is of the scheme {found.scheme!r}, expected {expected.scheme!r}")
    if found.key != expected.key:
        raise KeyMismatch(
            f"a ciphertext under the key {found.key.hex()}, but {expected.key.hex()} is expected",
            why="a sum under two keys cannot be opened",
            fix="give all clients the same public key",
            code="key-mismatch",
        )
    if found.round != expected.round:
        raise RoundMismatch(
            f"a ciphertext of round {found.round}, but round {expected.round} is expected",
            why="an upload counts only in its own round",
            fix="ignore this message",
            code="round-mismatch",
        )
    if replace(found, count=expected.count) != expected:
        raise LayoutMismatch(
            f"a ciphertext with {found.size} values in {found.slots} slots of {found.layout}",
            why=f"expected {expected.size} values in {expected.slots} slots of {expected.layout}",
            fix="give all clients the same experiment",
            code="layout-mismatch",
        )


class Public(PublicKey, Protocol):
    """Public key that encrypts, and adds ciphertexts."""

    @property
    def id(self) -> bytes: ...
    def header(self, round: int, size: int, layout: Layout) -> SealedHeader: ...
    def most(self, layout: Layout) -> int: ...  # contributions that fit a sum
    def encrypt(self, values: Ints, round: int, layout: Layout, *, count: int = 1) -> Sealed: ...
    def add(self, messages: Iterable[Sealed]) -> Sealed: ...


@runtime_checkable
class Secret(Protocol):
    """The half of a key that only the key holder has."""

    @property
    def public(self) -> Public: ...
    def encrypt(self, values: Ints, round: int, layout: Layout) -> Sealed: ...  # by who has the whole key
    def open(self, total: Sealed) -> Ints: ...  # the signed sums
    def pack(self) -> bytes: ...


def _malformed(why: str) -> MalformedCiphertext:
    return MalformedCiphertext(
        "a message is not a ciphertext", why=why, fix="ignore this message", code="malformed-ciphertext"
    )
