"""A ledger on a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sordino.accounting.claims import cap
from sordino.ledger.ledger import Ledger
from tests.ledger.ledger_workers import folder_in_memory
from tests.ledger.small import SCOPE


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield Path(folder)


@pytest.fixture(params=["memory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    return ":memory:" if request.param == "memory" else tmp_path / "ledger"


@pytest.fixture
def ledger(path: str | Path) -> Iterator[Ledger]:
    with Ledger.open(path, SCOPE, {"ada": cap([1]), "ben": cap([0.3])}, total=cap([2])) as opened:
        yield opened
