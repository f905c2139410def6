"""Masks of secure aggregation: key agreements between two clients, keys derived from them, and streams of words
(integers of a fixed width) that cancel in the sum; and secret sharing.

X25519 (RFC 7748), HKDF-SHA256 (RFC 5869), AES-256-GCM for what only one peer may read, and AES-256 in counter mode as
the generator. A stream is keyed with 256 bits that are never used twice, so its nonce is zero; without the key its
words cannot be told from uniform ones over their whole range.

Secret sharing (Shamir, Communications of the ACM, 1979): any `threshold` shares give the secret back, fewer say nothing
about it.

A secret of 32 bytes is the value at 0 of a polynomial over the integers modulo the prime 2^521 - 1 whose other
coefficients are drawn from the operating system. Secrets with the same points are shared and restored in one call, with
the Lagrange coefficients computed once for all of them.

Guarantees: `threshold - 1` shares of a secret are independent of it. Shares carry no proof: those of different secrets
are noticed, except with probability 2^-265, because what they restore is too large to be one; a share that is altered
on purpose shifts the secret unnoticed.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Sequence
from functools import reduce
from typing import Final, TypeAlias

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from sordino.errors import IntegrityError, SecAggAborted

Words: TypeAlias = NDArray[np.uint32] | NDArray[np.uint64]

KEY_BYTES: Final = 32
SEAL_BYTES: Final = 12 + 16  # nonce and tag
_CHUNK: Final = 1 << 16  # bytes of a stream at a time: they stay in the cache
_ZEROS: Final = memoryview(bytes(_CHUNK))


def zeros(count: int, width: int) -> Words:
    """An array of zero words of `width` bits, held in 32 or 64 bits. Arithmetic wraps there, and `cut` brings it down
    to `width`."""
    return np.zeros(count, np.dtype("<u4") if width <= 32 else np.dtype("<u8"))


def cut(words: Words, width: int) -> None:
    """Takes words modulo 2^width, in place."""
    if width < 8 * words.itemsize:
        words &= words.dtype.type((1 << width) - 1)


def written(words: Words, width: int) -> bytes:
    """The words as bytes, each in as few whole bytes as hold its width."""
    return words.view(np.uint8).reshape(len(words), -1)[:, : -(-width // 8)].tobytes()


def read(data: bytes, width: int) -> Words:
    each = -(-width // 8)
    words = zeros(len(data) // each, width)
    words.view(np.uint8).reshape(len(words), -1)[:, :each] = np.frombuffer(data, np.uint8).reshape(-1, each)
    return words


def blend(words: Words, key: bytes, operation: np.ufunc = np.add) -> None:
    """Adds the key's stream to the words, in place; subtracts it with `np.subtract`."""
    assert len(key) == KEY_BYTES
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    # older versions of the library ask for a block of room beyond what they write
    room = np.empty(min(words.nbytes, _CHUNK) + 16, np.uint8)
    for start in range(0, words.nbytes, _CHUNK):
        part = words[start // words.itemsize :][: _CHUNK // words.itemsize]
        encryptor.update_into(_ZEROS[: part.nbytes], room.data)
        operation(part, room[: part.nbytes].view(words.dtype), out=part)


def derive(secret: bytes, context: bytes, label: bytes, *who: int) -> bytes:
    """Derives a key of 32 bytes for one purpose in one round."""
    info = label + struct.pack(f"<{len(who)}I", *who)
    return HKDF(SHA256(), KEY_BYTES, salt=context, info=info).derive(secret)


def agree(own: X25519PrivateKey, peer: bytes) -> bytes:
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError:
        raise SecAggAborted(
            f"the public key {peer.hex()} cannot be used",
            why="with this key every agreed secret would be the same and publicly known",
            fix="leave out the client that sent it, and run the round again",
            code="secagg-weak-point",
        ) from None


def pair_key(own: X25519PrivateKey, peer: bytes, context: bytes, one: int, other: int) -> bytes:
    """Derives the key of the mask that one of two clients adds and the other subtracts."""
    return derive(agree(own, peer), context, b"mask", min(one, other), max(one, other))


def seal(key: bytes, message: bytes) -> bytes:
    nonce = os.urandom(12)
    return nonce + AESGCM(key).encrypt(nonce, message, None)


def unseal(key: bytes, sealed: bytes, who: int) -> bytes:
    try:
        return AESGCM(key).decrypt(sealed[:12], sealed[12:], None)
    except InvalidTag:
        raise SecAggAborted(
            f"the message of client {who} cannot be decrypted",
            why="it was changed on the way, or the server showed the two clients different lists of members",
            fix="run the round again; nothing was uploaded. If it happens twice, ask the operator of the server",
            code="secagg-unsealed",
        ) from None


PRIME: Final = (1 << 521) - 1
SECRET_BYTES: Final = 32
SHARE_BYTES: Final = 66

Row = tuple[bytes, ...]  # what one point holds: a share of each secret


def share(hidden: Sequence[bytes], points: Sequence[int], threshold: int) -> list[Row]:
    """Shamir shares of several secrets, one row for each point."""
    assert 1 <= threshold <= len(points) == len(set(points))
    assert all(0 < point < PRIME for point in points)  # the value at 0 is the secret
    assert all(len(secret) == SECRET_BYTES for secret in hidden)
    polynomials = [
        [*(secrets.randbelow(PRIME) for _ in range(threshold - 1)), int.from_bytes(secret, "little")]
        for secret in hidden
    ]
    return [tuple(_value(polynomial, point) for polynomial in polynomials) for point in points]


def reconstruct(rows: Sequence[tuple[int, Row]], threshold: int) -> list[bytes]:
    """Secrets restored from at least `threshold` rows and their points."""
    if len({point for point, _ in rows}) != len(rows):
        raise _unusable("the shares of one client are given twice", "share-repeated")
    if len(rows) < threshold:
        raise _unusable(f"{len(rows)} shares came, {threshold} are needed", "share-missing")
    points, held = zip(*rows[:threshold], strict=True)
    if len({len(row) for row in held}) > 1:
        raise _unusable("the clients hold shares of different secrets", "share-unequal")
    if any(len(part) != SHARE_BYTES or int.from_bytes(part, "little") >= PRIME for row in held for part in row):
        raise _unusable(f"a share is not a number below 2^521 - 1 in {SHARE_BYTES} bytes", "share-malformed")
    weights = _lagrange(points)
    return [_secret(weights, parts) for parts in zip(*held, strict=True)]


def _value(polynomial: list[int], point: int) -> bytes:
    value = reduce(lambda total, coefficient: (total * point + coefficient) % PRIME, polynomial)
    return value.to_bytes(SHARE_BYTES, "little")


def _lagrange(points: Sequence[int]) -> list[int]:
    """Lagrange weights: the coefficient of each value of a polynomial in its value at 0."""
    weights = []
    for point in points:
        above = below = 1
        for other in points:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights


def _secret(weights: list[int], parts: Row) -> bytes:
    value = sum(weight * int.from_bytes(part, "little") for weight, part in zip(weights, parts, strict=True)) % PRIME
    if value >> (8 * SECRET_BYTES):
        raise IntegrityError(
            "the shares do not restore a secret",
            why="they belong to different secrets, or were changed",
            fix="run the round again; this one is aborted and the model is unchanged",
            code="share-altered",
        )
    return value.to_bytes(SECRET_BYTES, "little")


def _unusable(what: str, code: str) -> SecAggAborted:
    return SecAggAborted(
        what,
        why="a secret is restored only from enough shares that differ",
        fix="run the round again",
        code=code,
    )
