"""Masks: agreements between two clients, keys derived from them, and streams of words that cancel in the sum.

X25519 (RFC 7748), HKDF-SHA256 (RFC 5869), AES-256-GCM for what only one peer may read, and AES-256 in counter mode as
the generator. A stream is keyed with 256 bits that are never used twice, so its nonce is zero; without the key its
words cannot be told from uniform ones over their whole range.
"""

from __future__ import annotations

import os
import struct
from typing import Final, TypeAlias

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from sordino.errors import SecAggAborted

Words: TypeAlias = NDArray[np.uint32] | NDArray[np.uint64]

KEY_BYTES: Final = 32
SEAL_BYTES: Final = 12 + 16  # nonce and tag
_CHUNK: Final = 1 << 16  # bytes of a stream at a time: they stay in the cache
_ZEROS: Final = memoryview(bytes(_CHUNK))


def zeros(count: int, width: int) -> Words:
    """Words of `width` bits, held in 32 or 64 bits. Arithmetic wraps there, and `cut` brings it down to `width`."""
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
    """A key of 32 bytes for one purpose of one round."""
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
    """Key of the stream that one of two clients adds and the other subtracts."""
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
