"""Secrets in shares: any `threshold` of them give the secret back, fewer say nothing about it (Shamir, Communications
of the ACM, 1979).

A secret of 32 bytes is the value at 0 of a polynomial over the integers modulo the prime 2^521 - 1 whose other
coefficients are drawn from the operating system. Secrets with the same points are shared and restored in one call, with
the Lagrange coefficients computed once for all of them.

Guarantees: `threshold - 1` shares of a secret are independent of it. Shares carry no proof: those of different secrets
are noticed, except with probability 2^-265, because what they restore is too large to be one; a share that is altered
on purpose shifts the secret unnoticed.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import reduce
from typing import Final

from sordino.errors import IntegrityError, SecAggAborted

PRIME: Final = (1 << 521) - 1
SECRET_BYTES: Final = 32
SHARE_BYTES: Final = 66

Row = tuple[bytes, ...]  # what one point holds: a share of each secret


def share(hidden: Sequence[bytes], points: Sequence[int], threshold: int) -> list[Row]:
    """The shares of secrets, one row for each point."""
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
