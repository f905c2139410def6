"""Packages behind the encryption schemes, which come with the extra `he`. A scheme without its package is refused, and
never replaced by a sum in the clear.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from sordino.errors import extra

Foreign: TypeAlias = Any  # an object of a package that has no types


OTHERWISE = "; or choose another scheme: sordino never falls back to sums without encryption"


def gmpy2() -> Foreign:
    with extra("he", "encrypted sums", "backend-unavailable", otherwise=OTHERWISE):
        import gmpy2
    return gmpy2


def tenseal() -> Foreign:
    with extra("he", "encrypted sums", "backend-unavailable", otherwise=OTHERWISE):
        import tenseal
    return tenseal
