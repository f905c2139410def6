"""Arithmetic modulo large numbers by gmpy2: many powers at once, and the Chinese remainder theorem.

Integers of gmpy2 behave like `int`, and are faster; they are annotated as `int`.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sordino.secagg.extras import gmpy2 as gmp

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
        """Powers of the base, one exponent a column, its least significant byte first."""
        results = [gmp().mpz(1)] * exponents.shape[1]
        for row, digits in zip(self.rows, exponents.tolist(), strict=True):
            results = [result * row[digit] % self.modulus for result, digit in zip(results, digits, strict=True)]
        return results


def short_exponents(bits: int, count: int) -> NDArray[np.uint8]:
    """Random exponents of half as many bits as n, one a column."""
    width = bits // 16
    return np.frombuffer(secrets.token_bytes(width * count), np.uint8).reshape(width, count)


def powers(bases: Sequence[int], exponent: int, modulus: int, threads: int = 1) -> list[int]:
    """Modular powers of many bases on several threads: gmpy2 releases the GIL while it works on one list."""
    step = max(1, -(-len(bases) // threads))
    parts = [list(bases[start : start + step]) for start in range(0, len(bases), step)]
    with ThreadPoolExecutor(threads) as pool:
        done = pool.map(lambda part: gmp().powmod_base_list(part, exponent, modulus), parts)
        return [power for part in done for power in part]


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
