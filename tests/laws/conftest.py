"""What every law may ask for."""

from __future__ import annotations

import pytest

from tests.laws.tried import Base


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return Base(tmp_path_factory.mktemp("base"))
