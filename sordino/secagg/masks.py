"""Masks of secure aggregation: key agreements between two clients, keys derived from them, and streams of words
(integers of a fixed width) that cancel in the sum; secret sharing; and the session: the parameters on which both sides
agree beforehand, and the messages they exchange, a header of fixed size and records of one size.

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

import hashlib
import os
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import reduce
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from sordino.errors import (
    ConfigError,
    HeadroomExceeded,
    IntegrityError,
    LayoutMismatch,
    MalformedCiphertext,
    Range,
    RoundMismatch,
    SecAggAborted,
    check_range,
)

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


MAGIC: Final = b"SRDA"
VERSION: Final = 1
SERVER: Final = (1 << 32) - 1  # as a sender; clients have smaller numbers
_HEAD = struct.Struct("<4sBBI16sQQBQI")  # all little-endian


class MessageKind(IntEnum):
    """Kinds of messages of a masked sum, in the order in which they are sent."""

    ADVERT = 1  # model, channel key, mask key
    ROSTER = 2  # of every client: number, advert
    SHARES = 3  # to whom, sealed shares
    INBOX = 4  # from whom, sealed shares
    MASKED = 5  # the words
    REQUEST = 6  # of whom, whether survivor
    ANSWER = 7  # of whom, whether survivor, share


_SEALED = struct.Struct(f"<I{2 * SHARE_BYTES + SEAL_BYTES}s")
_RECORD: Final = {
    MessageKind.ADVERT: struct.Struct(f"<32s{KEY_BYTES}s{KEY_BYTES}s"),
    MessageKind.ROSTER: struct.Struct(f"<I32s{KEY_BYTES}s{KEY_BYTES}s"),
    MessageKind.SHARES: _SEALED,
    MessageKind.INBOX: _SEALED,
    MessageKind.REQUEST: struct.Struct("<I?"),
    MessageKind.ANSWER: struct.Struct(f"<I?{SHARE_BYTES}s"),
}
_SINGLE: Final = {MessageKind.ADVERT, MessageKind.MASKED}
Record = tuple[Any, ...]


class KeyAdvertisement(NamedTuple):
    """Public keys of a client for one masked sum."""

    model: bytes
    channel: bytes
    mask: bytes


def point(who: int) -> int:
    """Point at which a client's share is taken: never 0, where the polynomial's value is the secret."""
    return who + 1


def two_thirds(count: int) -> int:
    """The usual threshold: more than two thirds of the clients."""
    return 2 * count // 3 + 1


@dataclass(frozen=True)
class Session:
    """Public parameters of secure aggregation in one round, the same for all participants but for `model`, the digest
    of the model that each received.
    """

    run: str
    round: int
    size: int  # words of an upload
    width: int  # bits of a word; sums are modulo 2^width
    top: int  # the largest word that a client uploads
    threshold: int  # clients whose help opens the sum
    model: bytes  # SHA-256

    def __post_init__(self) -> None:
        ranges = {
            "round": (0, (1 << 64) - 1),
            "size": (1, 1 << 40),
            "width": (1, 64),
            "top": (1, (1 << min(64, max(1, self.width))) - 1),
            "threshold": (2, SERVER),  # the sum of one is an upload
        }
        for name, (least, most) in ranges.items():
            value = getattr(self, name)
            allowed = Range(least=least, most=most, whole=True)
            check_range(name, value, allowed, "secagg-out-of-range")
        if len(self.model) != 32:
            raise ConfigError(
                f"the digest of the model has {len(self.model)} bytes",
                why="a SHA-256 digest has 32 bytes",
                fix="give the SHA-256 digest of the model",
                code="secagg-digest",
            )

    @property
    def word(self) -> int:
        """Number of bytes of one integer of a masked upload in a message."""
        return -(-self.width // 8)

    def check(self, count: int) -> None:
        """Refuses a round of `count` clients if their sum could wrap around, or if the answers of half of them could
        reveal a single upload.
        """
        if count * self.top >= 1 << self.width:
            raise HeadroomExceeded(
                f"{count} uploads are too many: at most {((1 << self.width) - 1) // self.top} words up to "
                f"{self.top} can be added in {self.width} bits",
                why="the sum would wrap around to a wrong value",
                fix="use more bits for a word, or fewer clients",
                code="secagg-headroom",
            )
        if not count < 2 * self.threshold:
            raise ConfigError(
                f"the threshold is {self.threshold} of {count} clients",
                why="with half of the clients or fewer, a server could tell two groups different things, and open an "
                "upload with the answers of both",
                fix=f"set more than half of the clients; {two_thirds(count)} is usual",
                code="secagg-low-threshold",
            )

    def check_model(self, who: int, advert: KeyAdvertisement) -> None:
        if advert.model != self.model:
            raise abort(
                f"client {who} has another model: {advert.model.hex()[:16]}, not {self.model.hex()[:16]}",
                "uploads for different models must not be added: a server could send one client another model to "
                "learn its upload",
                code="secagg-model",
            )

    def check_enough(self, count: int) -> None:
        if count < self.threshold:
            raise abort(
                f"only {count} clients are left, but the threshold is {self.threshold}",
                "a sum of fewer clients cannot and must not be opened",
                code="secagg-too-few",
            )

    def pack(self, kind: MessageKind, sender: int, records: list[Record]) -> bytes:
        record = self._record(kind)
        return self._head(kind, sender) + b"".join(record.pack(*fields) for fields in records)

    def unpack(self, data: bytes, kind: MessageKind) -> tuple[int, list[Record]]:
        """Sender and records of a message; refused unless it is of this round, of this kind and of the right length."""
        if len(data) < _HEAD.size:
            raise _malformed(f"{len(data)} bytes came, a header alone has {_HEAD.size}")
        magic, version, found, sender, run, round, *shape = _HEAD.unpack_from(data)
        if magic != MAGIC or version != VERSION:
            raise _malformed("it does not begin like a message of secure aggregation")
        if (run, round) != (self._run, self.round):
            raise RoundMismatch(
                f"a message of round {round} came, but round {self.round} of the run {self.run!r} is expected",
                why="an upload counts only in its own round",
                fix="ignore this message",
                code="secagg-round",
            )
        if tuple(shape) != self._shape:
            raise LayoutMismatch(
                f"a message for (size, width, top, threshold) = {tuple(shape)} came, but {self._shape} is expected",
                why="only uploads of the same form can be added",
                fix="give all clients the same experiment",
                code="secagg-layout",
            )
        if found != kind:
            raise SecAggAborted(
                f"a message of kind {found} came, but {kind.name.lower()} ({kind.value}) is expected",
                why="each step of the round is taken once, in order",
                fix="ignore this message; a client that sends it too late counts as dropped out",
                code="secagg-order",
            )
        record, length = self._record(kind), len(data) - _HEAD.size
        if length % record.size or (kind in _SINGLE and length != record.size):
            raise _malformed(f"{length} bytes follow the header, in records of {record.size}")
        return sender, list(record.iter_unpack(memoryview(data)[_HEAD.size :]))

    @property
    def _run(self) -> bytes:
        return hashlib.sha256(self.run.encode()).digest()[:16]

    @property
    def _shape(self) -> tuple[int, int, int, int]:
        return self.size, self.width, self.top, self.threshold

    def _head(self, kind: MessageKind, sender: int) -> bytes:
        return _HEAD.pack(MAGIC, VERSION, kind, sender, self._run, self.round, *self._shape)

    def _record(self, kind: MessageKind) -> struct.Struct:
        # the upload ends with a guard word
        return struct.Struct(f"<{(self.size + 1) * self.word}s") if kind is MessageKind.MASKED else _RECORD[kind]


def _malformed(why: str) -> MalformedCiphertext:
    return MalformedCiphertext(
        "a message is not one of secure aggregation", why=why, fix="ignore this message", code="secagg-malformed"
    )


def abort(what: str, why: str, *, fix: str = "", code: str) -> SecAggAborted:
    return SecAggAborted(
        what, why=why, fix=fix or "run the round again; nothing was opened and the model is unchanged", code=code
    )
