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
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from sordino.errors import EmptyRound, HeadroomExceeded, NoSecretKey, ServerHoldsKey
from sordino.privacy.uplink.fixed_point import Ints, Layout, no_sum
from sordino.secagg import rings
from sordino.secagg.extras import Foreign
from sordino.secagg.rings import SLOTS, Ring
from sordino.secagg.sealed import Sealed, SealedHeader, joined

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
        """Number of contributions that can be added."""
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

    def encrypt(self, values: Ints, round: int, layout: Layout) -> Sealed:
        layout.check_values(values, "beyond-plaintext", "the sum of many such would wrap around the plaintext")
        header = self.header(round, len(values), layout)
        slots = np.zeros((_ciphertexts(header), SLOTS), np.int64 if self.ring.exact else np.float64)
        filled = np.zeros(slots[:, 1:].size, slots.dtype)
        filled[: len(values)] = values if self.ring.exact else values / (layout.offset - 1)
        slots[:, 0], slots[:, 1:] = 1, filled.reshape(-1, SLOTS - 1)
        return self._sealed(header, (rings.encrypt(self.ring, self._context, row.tolist()) for row in slots))

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
                rings.add(total, vector)
        return self._sealed(header, totals)

    def pack(self) -> bytes:
        return self._packed

    def agreed(self, headers: Iterable[SealedHeader]) -> SealedHeader:
        """Header of the sum; refused unless all messages are encrypted under this key and fit together."""
        first, *rest = headers
        mine = replace(self.header(first.round, first.size, first.layout), count=0)
        header = joined([mine, first, *rest])
        self.check(header.layout, header.count)
        return header

    def vectors(self, message: Sealed) -> list[Foreign]:
        """The ciphertexts of a message."""
        return [rings.load(self.ring, self._context, part) for part in _parts(message)]

    def _sealed(self, header: SealedHeader, vectors: Iterable[object]) -> Sealed:
        parts = [rings.bare(self.ring, vector) for vector in vectors]
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
        slots = np.array([rings.decrypt(vector, self._context) for vector in self.public.vectors(total)])
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
        return _KEY + struct.pack("<I", len(public)) + public + rings.write(self._context, secret=True)


RINGS: Final = {ring.name: ring for ring in (rings.BFV, rings.CKKS)}


def generate(scheme: str) -> LatticeSecret:
    """A fresh key pair."""
    context = rings.fresh(RINGS[scheme])
    return LatticeSecret(read_public(rings.write(context, secret=False)), context)


def read_public(data: bytes) -> LatticePublic:
    if not data.startswith(_KEY):
        ring, context = rings.read(data)
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
    ring, context = rings.read(data[8 + length :])
    if ring != public.ring or not context.has_secret_key():
        raise rings.malformed("the two halves of a key do not fit together")
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
        raise rings.malformed("its ciphertexts are not as long as they say")
    return parts
