"""Packages behind the encryption schemes, which come with the extra `he`. A scheme without its package is refused, and
never replaced by a sum in the clear.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from sordino.errors import BackendUnavailable

Foreign: TypeAlias = Any  # an object of a package that has no types


def gmpy2() -> Foreign:
    try:
        import gmpy2

        return gmpy2
    except ImportError as error:
        raise _unavailable("gmpy2", error) from None


def tenseal() -> Foreign:
    try:
        import tenseal

        return tenseal
    except ImportError as error:
        raise _unavailable("tenseal", error) from None


def _unavailable(name: str, error: ImportError) -> BackendUnavailable:
    return BackendUnavailable(
        f"{name} does not work here",
        why=str(error),
        fix="run: pip install 'sordino[he]', or choose another scheme; sordino never falls back to sums "
        "without encryption",
        code="backend-unavailable",
    )
