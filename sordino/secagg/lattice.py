"""Sums under lattice encryption: BFV, exact, and CKKS, with a small error (SEAL's implementations through TenSEAL).

Fan and Vercauteren, "Somewhat practical fully homomorphic encryption" (2012); Cheon, Kim, Kim and Song, ASIACRYPT 2017.
A ciphertext holds a guard, which is 1 in each contribution, and 4,095 values. Neither scheme notices decryption under a
wrong key; the guard does.

Guarantees (BFV): the sums are exact where count (2^(bits-1) - 1) <= (t - 1) / 2; more contributions are refused.
Guarantees (CKKS): values travel as parts of the range, and a sum of k is off by at most CKKS_ERROR sqrt(k) of the range
before it is rounded to the layout's grid. With 24 bits that is sqrt(k) / 3 + 1/2 steps, so 0 for k = 2, 2 for k = 50, 8
for k = 512; the fixed point itself may have cost k / 2.

Decrypted CKKS numbers carry the encryption's noise: anyone who sees them and the ciphertexts can compute the key (Li
and Micciancio, EUROCRYPT 2021). What `open` returns stays with the key holder, who passes on nothing but the model, and
never reaches a server that saw the ciphertexts. BFV has no such condition.

Whoever has the key finds more than the sum in a ciphertext of either (there is no circuit privacy): what scaling each
upload to the modulus left by rounding, under the noise of the encryption. Noise that hides uploads in the sum does not
hide that, so the row of those who open such a sum is conditional (`secure_stages.LEFT`). A CKKS sum itself has errors
of uploads and noise, for whoever sees it (`secure_stages.OFF`).

Both rings stay below the modulus that the Homomorphic Encryption Standard (2018) allows for 128 bits. Bytes from
outside are limited in length before they are parsed, and must be what this module could have made: the same parameters,
a ciphertext of the first level, of two polynomials, of the same scale. TenSEAL trusts the sizes in its own envelope and
would read beyond a buffer, so no envelope from outside is ever read: ciphertexts travel without one, and get one that
is made here.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from sordino.errors import (
    BackendUnavailable,
    EmptyRound,
    HeadroomExceeded,
    MalformedCiphertext,
    NoSecretKey,
    ServerHoldsKey,
    WeakKey,
)
from sordino.privacy.uplink.fixed_point import Ints, Layout, no_sum
from sordino.secagg import sealed
from sordino.secagg.sealed import Foreign, Sealed, SealedHeader, joined

SLOTS: Final = 4096  # of both: all N of BFV's, N / 2 of CKKS's
_LONGEST_KEY: Final = 1 << 22
_SHORTEST: Final = 1 << 14  # bytes of a ciphertext; with fewer than 2^21 its length is always a 3-byte varint


@dataclass(frozen=True)
class Ring:
    """Parameters of a lattice scheme (BFV or CKKS)."""

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
    seal = sealed.tenseal()
    kind = seal.SCHEME_TYPE[ring.name.upper()]
    made = seal.context(kind, ring.degree, ring.plain, list(ring.moduli), n_threads=1)
    if not ring.exact:
        made.global_scale = ring.scale
    return made


def read(data: bytes) -> tuple[Ring, Foreign]:
    """Parse parameters and keys, with or without the secret key; refused unless they belong to one of the two rings."""
    if len(data) > _LONGEST_KEY:
        raise malformed(f"a key of {len(data)} bytes")
    seal = sealed.tenseal()
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
    need. `secret`: the secret key is among them.
    """
    made: bytes = context.serialize(
        save_public_key=True, save_secret_key=secret, save_galois_keys=False, save_relin_keys=False
    )
    return made


def encrypt(ring: Ring, context: object, slots: list[object]) -> Foreign:
    return getattr(sealed.tenseal(), f"{ring.name}_vector")(context, slots)


def add(total: Foreign, vector: Foreign) -> None:
    with _foreign("a sum"):
        total.add_(vector)


def decrypt(vector: Foreign, context: Foreign) -> list[Foreign]:
    slots: list[Foreign] = vector.decrypt(context.secret_key())
    return slots


def bare(ring: Ring, vector: Foreign) -> bytes:
    """The bytes of a ciphertext as SEAL writes them, without TenSEAL's envelope."""
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
    parse = getattr(sealed.tenseal(), f"{ring.name}_vector_from")
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


# The error of a slot is Gaussian, with a variance that is exponential over the slots of a key; 1.3e-9 sqrt(k) over all.
# So it is beyond 30 times that with a chance of exp(-30 sqrt 2) = 4e-19.
CKKS_ERROR: Final = 4e-8
_KEY: Final = b"SRDK"


class LatticePublic:
    """A public lattice key, which encrypts, and adds ciphertexts."""

    def __init__(self, ring: Ring, packed: bytes, context: object) -> None:
        self.ring = ring
        self.id = hashlib.sha256(packed).digest()[:16]
        self._packed, self._context = packed, context

    def header(self, round: int, size: int, layout: Layout) -> SealedHeader:
        return SealedHeader(self.ring.name, self.id, round, size, layout, SLOTS)

    def most(self, layout: Layout) -> int:
        """Largest number of contributions whose sum fits the layout and, for exact sums, the plaintext modulus."""
        if not self.ring.exact:
            return layout.most
        return min(layout.most, (self.ring.plain - 1) // 2 // (layout.offset - 1))

    def check(self, layout: Layout, count: int) -> None:
        if count > self.most(layout):
            raise HeadroomExceeded(
                f"{count} uploads are too many: {self.ring.name} with {layout.bits} bits and {layout.headroom} "
                f"headroom bits adds up at most {self.most(layout)}",
                why="the sum would wrap around to a wrong value",
                fix="use fewer bits or fewer clients, or set more headroom bits",
                code="plaintext-overflow",
            )

    def encrypt(self, values: Ints, round: int, layout: Layout, *, count: int = 1) -> Sealed:
        """Encrypts the values of one contribution, or of the sum of `count`."""
        layout.check_values(values, "beyond-plaintext", "the sum of many such would wrap around the plaintext", count)
        header = replace(self.header(round, len(values), layout), count=count)
        slots = np.zeros((_ciphertexts(header), SLOTS), np.int64 if self.ring.exact else np.float64)
        filled = np.zeros(slots[:, 1:].size, slots.dtype)
        filled[: len(values)] = values if self.ring.exact else values / (layout.offset - 1)
        slots[:, 0], slots[:, 1:] = count, filled.reshape(-1, SLOTS - 1)
        return self._sealed(header, (encrypt(self.ring, self._context, row.tolist()) for row in slots))

    def add(self, messages: Iterable[Sealed]) -> Sealed:
        kept = list(messages)
        if not kept:
            raise EmptyRound(
                "there are no messages to add",
                why="no client sent a message",
                fix="skip the round",
                code="nothing-to-add",
            )
        header = self.agreed(message.header for message in kept)
        totals = self.vectors(kept[0])
        for message in kept[1:]:
            for total, vector in zip(totals, self.vectors(message), strict=True):
                add(total, vector)
        return self._sealed(header, totals)

    def pack(self) -> bytes:
        return self._packed

    def agreed(self, headers: Iterable[SealedHeader]) -> SealedHeader:
        """Header of the sum; refused unless all messages are encrypted under this key and fit together."""
        first, *rest = headers
        own = replace(self.header(first.round, first.size, first.layout), count=0)
        header = joined([own, first, *rest])
        self.check(header.layout, header.count)
        return header

    def vectors(self, message: Sealed) -> list[Foreign]:
        """The ciphertexts of a message."""
        return [load(self.ring, self._context, part) for part in _parts(message)]

    def _sealed(self, header: SealedHeader, vectors: Iterable[object]) -> Sealed:
        parts = [bare(self.ring, vector) for vector in vectors]
        return Sealed(header, b"".join(struct.pack("<I", len(part)) + part for part in parts))


class LatticeSecret:
    """A secret lattice key, which decrypts sums."""

    def __init__(self, public: LatticePublic, context: object) -> None:
        self.public = public
        self._context = context

    def encrypt(self, values: Ints, round: int, layout: Layout) -> Sealed:
        return self.public.encrypt(values, round, layout)

    def open(self, total: Sealed) -> Ints:
        header = self.public.agreed([total.header])
        slots = np.array([decrypt(vector, self._context) for vector in self.public.vectors(total)])
        exact, steps = self.public.ring.exact, header.layout.offset - 1
        slack = 0.0 if exact else CKKS_ERROR * math.sqrt(header.count)
        guards, sums = slots[:, 0], slots[:, 1:].reshape(-1)
        if (np.abs(guards - header.count) > slack).any():
            raise no_sum("a guard is not the number of contributions", "lattice-guard")
        if (np.abs(sums[header.size :]) > slack).any():
            raise no_sum("the padding is not empty", "lattice-padding")
        if (np.abs(sums) > header.count * (steps if exact else 1) + slack).any():
            raise no_sum(f"a slot holds what {header.count} contributions cannot add up to", "lattice-range")
        kept = sums[: header.size]
        return kept if exact else np.rint(kept * steps).astype(np.int64)

    def pack(self) -> bytes:
        """The bytes of the key, with the public part as it was given out, because its bytes are its identity."""
        public = self.public.pack()
        return _KEY + struct.pack("<I", len(public)) + public + write(self._context, secret=True)


RINGS: Final = {ring.name: ring for ring in (BFV, CKKS)}


def generate(scheme: str) -> LatticeSecret:
    """A fresh key pair of a lattice scheme, bfv or ckks."""
    context = fresh(RINGS[scheme])
    return LatticeSecret(read_public(write(context, secret=False)), context)


def read_public(data: bytes) -> LatticePublic:
    if not data.startswith(_KEY):
        ring, context = read(data)
        if not (context.is_private() or context.has_secret_key()):
            return LatticePublic(ring, data, context)
    raise ServerHoldsKey(
        "a secret key was given where a public one is expected",
        why="the server adds the encrypted updates, so it must not be able to open them",
        fix="make a new key, because this one has been shown, and hand out only `secret.public`",
        code="secret-key-as-public",
    )


def read_secret(data: bytes) -> LatticeSecret:
    if not data.startswith(_KEY):
        raise NoSecretKey(
            "these bytes do not hold a secret key",
            why="only a secret key can open a sum",
            fix="ask the key holder to open the sum",
            code="no-secret-key",
        )
    length = int.from_bytes(data[4:8], "little")
    public = read_public(data[8 : 8 + length])
    ring, context = read(data[8 + length :])
    if ring != public.ring or not context.has_secret_key():
        raise malformed("the two halves of a key do not fit together")
    secret = LatticeSecret(public, context)
    secret.open(public.encrypt(np.zeros(1, np.int64), 0, Layout()))  # the guard notices halves of two keys
    return secret


def _ciphertexts(header: SealedHeader) -> int:
    return max(1, -(-header.size // (SLOTS - 1)))


def _parts(message: Sealed) -> list[bytes]:
    parts, at = [], 0
    for _ in range(_ciphertexts(message.header)):
        length = int.from_bytes(message.body[at : at + 4], "little")
        parts.append(message.body[at + 4 : at + 4 + length])
        at += 4 + length
    if at != len(message.body):
        raise malformed("its ciphertexts are not as long as they say")
    return parts
