"""Paillier keys for tests, and blinding without a wait."""

from __future__ import annotations

from functools import cache

import pytest

from sordino.secagg import paillier
from sordino.secagg.paillier import PaillierSecret, generate

pytest.importorskip("gmpy2")


@cache
def pair() -> list[PaillierSecret]:
    return sorted((paillier._generated(512) for _ in range(2)), key=lambda secret: secret.public.n)


def tiny(which: int = 0) -> PaillierSecret:
    """Keys of 512 bits protect nothing, and are fast; the first modulus is below the second."""
    return pair()[which]


@cache
def real(bits: int) -> PaillierSecret:
    return generate(bits, testing=bits == 2048)
