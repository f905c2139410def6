"""Guarded access to TenSEAL: two rings, contexts of their parameters only, and ciphertexts as SEAL's own bytes.

Both rings stay below the modulus that the Homomorphic Encryption Standard (2018) allows for 128 bits. Bytes from
outside are limited in length before they are parsed, and must be what this module could have made: the same parameters,
a ciphertext of the first level, of two polynomials, of the same scale. TenSEAL trusts the sizes in its own envelope and
would read beyond a buffer, so no envelope from outside is ever read: ciphertexts travel without one, and get one that
is made here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from sordino.errors import BackendUnavailable, MalformedCiphertext, WeakKey
from sordino.secagg import extras
from sordino.secagg.extras import Foreign

SLOTS: Final = 4096  # of both: all N of BFV's, N / 2 of CKKS's
_LONGEST_KEY: Final = 1 << 22
_SHORTEST: Final = 1 << 14  # bytes of a ciphertext; with fewer than 2^21 its length is always a 3-byte varint


@dataclass(frozen=True)
class Ring:
    name: str
    degree: int
    moduli: tuple[int, ...]  # bits of the primes of the coefficient modulus
    plain: int = 0  # BFV's plaintext prime, = 1 modulo 2 N
    scale: float = 1.0  # CKKS's

    @property
    def exact(self) -> bool:
        return self.plain > 0

    @property
    def longest(self) -> int:
        """Largest size of a ciphertext in bytes: two polynomials modulo all primes but the last, uncompressed, and
        1,024 bytes more.
        """
        return 2 * self.degree * (len(self.moduli) - 1) * 8 + 1024


BFV: Final = Ring("bfv", 4096, (36, 36, 37), plain=8_590_090_241)
CKKS: Final = Ring("ckks", 8192, (60, 40, 40), scale=2.0**40)


def fresh(ring: Ring) -> Foreign:
    """Parameters and a new key pair of homomorphic encryption, as the library's context holds them."""
    seal = extras.tenseal()
    kind = seal.SCHEME_TYPE[ring.name.upper()]
    made = seal.context(kind, ring.degree, ring.plain, list(ring.moduli), n_threads=1)
    if not ring.exact:
        made.global_scale = ring.scale
    return made


def read(data: bytes) -> tuple[Ring, Foreign]:
    """Parse parameters and keys, with or without the secret key; refused unless they belong to one of the two rings."""
    if len(data) > _LONGEST_KEY:
        raise malformed(f"a key of {len(data)} bytes")
    seal = extras.tenseal()
    with _foreign("a key"):
        context = seal.context_from(data, n_threads=1)
        digest = context.seal_context().data.key_parms_id()
        found = [ring for ring in (BFV, CKKS) if _digest(ring) == digest and context.has_public_key()]
        found = [ring for ring in found if ring.exact or context.global_scale == ring.scale]
    if not found:
        raise WeakKey(
            "the lattice key has other parameters than those used here",
            why="the security and the largest sum are known for two sets of parameters only",
            fix="make the key with `generate`",
            code="lattice-parameters",
        )
    return found[0], context


def write(context: Foreign, secret: bool) -> bytes:
    """Bytes of a context without the keys for products (relinearisation) and rotations (Galois), which sums do not
    need.
    """
    made: bytes = context.serialize(
        save_public_key=True, save_secret_key=secret, save_galois_keys=False, save_relin_keys=False
    )
    return made


def encrypt(ring: Ring, context: object, slots: list[object]) -> Foreign:
    return getattr(extras.tenseal(), f"{ring.name}_vector")(context, slots)


def add(total: Foreign, vector: Foreign) -> None:
    with _foreign("a sum"):
        total.add_(vector)


def decrypt(vector: Foreign, context: Foreign) -> list[Foreign]:
    slots: list[Foreign] = vector.decrypt(context.secret_key())
    return slots


def bare(ring: Ring, vector: Foreign) -> bytes:
    """The bytes of a ciphertext as SEAL writes them."""
    data = vector.serialize()
    before, after = _ends(ring)
    part: bytes = data[len(before) + 3 : len(data) - len(after)]
    if data != _enveloped(ring, part):
        raise BackendUnavailable(
            "this version of tenseal writes ciphertexts in an unknown form",
            why="the bytes around them differ from those of tenseal 0.3.18",
            fix="install tenseal 0.3.18",
            code="tenseal-envelope",
        )
    return part


def load(ring: Ring, context: Foreign, part: bytes) -> Foreign:
    # SEAL ignores what follows an object in its stream; its header says how long the object is
    if not _SHORTEST <= len(part) <= ring.longest or int.from_bytes(part[8:16], "little") != len(part):
        raise malformed(f"a ciphertext of {len(part)} bytes")
    parse = getattr(extras.tenseal(), f"{ring.name}_vector_from")
    with _foreign("a ciphertext"):
        vector = parse(context, _enveloped(ring, part))
        (found,) = vector.ciphertext()
        level = context.seal_context().data.first_parms_id()
        like_ours = found.size() == 2 and found.parms_id() == level and found.scale == ring.scale
        hidden = not found.is_transparent()
    if not (like_ours and hidden):
        raise malformed("a ciphertext of another form than a fresh one or a sum")
    return vector


def malformed(why: str) -> MalformedCiphertext:
    return MalformedCiphertext(
        "these bytes are not a lattice ciphertext or key", why=why, fix="ignore this message", code="malformed-lattice"
    )


@lru_cache(maxsize=2)
def _digest(ring: Ring) -> Foreign:
    """SEAL's digest of all parameters of a ring."""
    return fresh(ring).seal_context().data.key_parms_id()


def _ends(ring: Ring) -> tuple[bytes, bytes]:
    """The bytes of TenSEAL's envelope (a protocol buffer) before and after a ciphertext: the number of slots, and
    CKKS's scale."""
    return b"\x0a\x02\x80\x20\x12", b"" if ring.exact else b"\x19" + struct.pack("<d", ring.scale)


def _enveloped(ring: Ring, part: bytes) -> bytes:
    before, after = _ends(ring)
    length = bytes([len(part) & 127 | 128, len(part) >> 7 & 127 | 128, len(part) >> 14 & 127])
    return before + length + part + after


@contextmanager
def _foreign(what: str) -> Iterator[None]:
    """Turn any exception of TenSEAL's parsers, which are undocumented, into the error of a malformed message."""
    try:
        yield
    except Exception as error:
        raise malformed(f"{what} cannot be read: {str(error)[:80]}") from error
