"""What every test may ask for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from command_line import Said, spoken


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """`sordino ...` in this process."""
    return partial(spoken, capsys, monkeypatch)
