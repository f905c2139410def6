"""One key pair for the tests of lattice encryption, and numbers to encrypt."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache

import pytest

from sordino.errors import (
    SordinoError,
)
from sordino.privacy.uplink.fixed_point import Layout
from sordino.secagg.lattice import (
    LatticeSecret,
    generate,
)

LAYOUT = Layout()


WIDE = Layout(headroom=12)  # its slots would have room for more than BFV's plaintext has


BOTH = pytest.mark.parametrize("scheme", ["bfv", "ckks"])


@cache
def secret(scheme: str, number: int = 0) -> LatticeSecret:
    return generate(scheme)


@contextmanager
def refused(error: type[SordinoError], code: str):
    with pytest.raises(error) as raised:
        yield raised
    assert raised.value.code == code
