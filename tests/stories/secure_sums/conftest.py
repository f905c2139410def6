"""One key for all of them."""

from __future__ import annotations

import pytest

from sordino.engine import channels
from tests.stories.secure_sums.sums import key_for_tests


@pytest.fixture(autouse=True)
def one_test_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys for tests and their tables are made once; keys of full length in every run."""
    generate = channels.GENERATE["paillier"]
    monkeypatch.setitem(
        channels.GENERATE, "paillier", lambda stage: key_for_tests() if stage.testing else generate(stage)
    )
