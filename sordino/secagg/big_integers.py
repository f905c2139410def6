"""Large integers: powers of one base and the Chinese remainder theorem, by gmpy2; and many small integers packed in
few large ones, so that one homomorphic addition adds them all.

Integers of gmpy2 behave like `int`, and are faster; they are annotated as `int`.

A large integer of S slots of a layout's width holds a guard in slot 0, the least significant, and S - 1 values z = Q
+ offset above it; the last integer is filled up with z = offset. The guard of one contribution is 1. Slots never
borrow since z >= 1, and never carry since a layout refuses too many contributions.

Guarantees: `unpack` of a sum of k integers packed here gives the sums of the signed values, exactly. Any other
plaintext (from another key, of another count, after a carry) is detected by the guard, the padding and the range of
every slot: random plaintexts pass with a chance below 2^-width for each integer.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sordino.privacy.uplink.fixed_point import Ints, Layout, no_sum
from sordino.secagg.sealed import gmpy2 as gmp

_ROUNDS: Final = 64  # of GMP: Baillie-PSW, and 40 rounds of Miller-Rabin


class FixedBase:
    """Powers of one base by a table, with one multiplication for each byte of the exponent."""

    def __init__(self, base: int, modulus: int, width: int) -> None:
        self.modulus: int = gmp().mpz(modulus)
        self.rows: list[list[int]] = []
        step: int = gmp().mpz(base) % modulus
        for _ in range(width):
            row: list[int] = [gmp().mpz(1)]
            for _ in range(256):
                row.append(row[-1] * step % self.modulus)
            step = row.pop()
            self.rows.append(row)

    def powers(self, exponents: NDArray[np.uint8]) -> list[int]:
        """The base raised to each exponent; an exponent is a column of bytes, the least significant first."""
        results = [gmp().mpz(1)] * exponents.shape[1]
        for row, digits in zip(self.rows, exponents.tolist(), strict=True):
            results = [result * row[digit] % self.modulus for result, digit in zip(results, digits, strict=True)]
        return results


def short_exponents(bits: int, count: int) -> NDArray[np.uint8]:
    """Random exponents of half as many bits as the modulus, each a column of bytes."""
    width = bits // 16
    return np.frombuffer(secrets.token_bytes(width * count), np.uint8).reshape(width, count)


def chinese(left: Sequence[int], right: Sequence[int], p: int, q: int) -> list[int]:
    """The numbers below p q that are `left` modulo p and `right` modulo q."""
    inverse = gmp().invert(p, q)
    return [a + p * ((b - a) * inverse % q) for a, b in zip(left, right, strict=True)]


def is_prime(number: int) -> bool:
    return bool(gmp().is_prime(number, _ROUNDS))


def random_prime(bits: int) -> int:
    """A random prime, 3 modulo 4, with its two highest bits set: a product of two has exactly twice the bits."""
    while True:
        candidate = secrets.randbits(bits) | 3 << (bits - 2) | 3
        if is_prime(candidate):
            return candidate


Words = NDArray[np.uint64]  # one integer a row, one slot a column


def slots(bits: int, width: int) -> int:
    """Number of slots in an integer that stays below any modulus of `bits` bits."""
    return (bits - 1) // width


def integers(size: int, slots: int) -> int:
    """Number of large integers that hold `size` values."""
    return -(-size // (slots - 1))


def pack(values: Ints, slots: int, layout: Layout, count: int = 1) -> list[int]:
    """Packs signed integers of a layout as one contribution, or as the sum of `count`."""
    layout.check_values(values, "beyond-slot", "it would run into the neighbouring slot", count)
    filled = np.zeros(integers(len(values), slots) * (slots - 1), np.int64)
    filled[: len(values)] = values
    words = np.full((integers(len(values), slots), slots), count, np.uint64)
    words[:, 1:] = (filled + count * layout.offset).reshape(-1, slots - 1)
    return [int.from_bytes(row, "little") for row in _squeezed(words, layout.width)]


def unpack(sums: Sequence[int], count: int, size: int, slots: int, layout: Layout) -> Ints:
    """The `size` signed sums of `count` contributions; refused where `sums` cannot be sums of packed integers."""
    layout.check(count)
    if count < 1:
        raise no_sum("it says that nothing was added", "nothing-added")
    if len(sums) != integers(size, slots):
        raise no_sum(f"{len(sums)} integers for {size} values", "plaintext-count")
    for index, number in enumerate(sums):
        if number.bit_length() > slots * layout.width:
            raise no_sum(f"integer {index} has more than {slots} slots", "plaintext-too-large")
    words = _spread(sums, slots, layout.width)
    guards, body = words[:, 0], words[:, 1:].reshape(-1)
    if (guards != count).any():
        raise no_sum(f"a guard is not {count}, the number of contributions", "guard-mismatch")  # not what was opened
    offset = np.uint64(count * layout.offset)
    if (body[size:] != offset).any():
        raise no_sum(f"the padding is not that of {count} uploads", "padding-mismatch")
    most = np.uint64(count * ((1 << layout.bits) - 1))
    if ((body < count) | (body > most)).any():
        raise no_sum(f"a slot holds a number that {count} uploads cannot add up to", "slot-out-of-range")
    return (body[:size] - offset).view(np.int64)


def _squeezed(words: Words, width: int) -> list[bytes]:
    """The low `width` bits of each word, without gaps, all of a row in one little-endian buffer."""
    bits = np.unpackbits(words.astype("<u8").view(np.uint8), axis=1, bitorder="little")
    kept = bits.reshape(*words.shape, 64)[..., :width].reshape(len(words), words.shape[1] * width)
    return [row.tobytes() for row in np.packbits(kept, axis=1, bitorder="little")]


def _spread(numbers: Sequence[int], slots: int, width: int) -> Words:
    """Words of `width` bits from large integers, one integer a row: the inverse of `_squeezed`."""
    length = -(-slots * width // 8)
    buffer = b"".join(number.to_bytes(length, "little") for number in numbers)
    rows = np.frombuffer(buffer, np.uint8).reshape(len(numbers), length)
    kept = np.unpackbits(rows, axis=1, count=slots * width, bitorder="little").reshape(len(numbers), slots, width)
    bits = np.zeros((len(numbers), slots, 64), np.uint8)
    bits[..., :width] = kept
    return np.packbits(bits, axis=2, bitorder="little").view("<u8").reshape(len(numbers), slots).astype(np.uint64)
