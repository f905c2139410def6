"""A small scope, and the code of a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sordino.accounting.claims import UNIT, ZCDP, Subject
from sordino.errors import SordinoError
from sordino.ledger.ledger import LedgerScope

TENTH = UNIT // 10


CLIENT = Subject(unit="client", neighbours="zero_out", adversary="server")
SCOPE = LedgerScope("data", CLIENT, 1e-5, ZCDP)


ONE = {"ada": (TENTH,)}


def code_of(action: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(SordinoError) as refusal:
        action(*arguments)
    return refusal.value.code
