"""What every test may ask for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from sordino.engine import processes
from sordino.runs.run import start
from tests.helpers.command_line import Said, spoken
from tests.helpers.prepared_runs import tiny
from tests.laws import warm


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """`sordino ...` in this process."""
    return partial(spoken, capsys, monkeypatch)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Before any test has run: what all warm processes are forked from."""
    if session.items and not session.config.option.collectonly:
        warm.start()


@pytest.fixture
def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client processes that are forked, not started."""
    monkeypatch.setattr(processes, "subprocess", warm.stand_in())


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that never stopped."""
    folder = tmp_path_factory.mktemp("phases") / "run"
    start(tiny(), folder)
    return folder
