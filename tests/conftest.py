"""What every test may ask for.

Nothing heavy is imported here: the process that hands the tests out loads this file too, and its workers wait for it.
"""

from __future__ import annotations

import gc
import math
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.laws import warm

if TYPE_CHECKING:
    from tests.helpers.command_line import Said


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """`sordino ...` in this process."""
    from tests.helpers.command_line import spoken

    return partial(spoken, capsys, monkeypatch)


def pytest_configure(config: pytest.Config) -> None:
    """Put the folders of tests into memory where it has room: on a disk they wait for thousands of syncs. What runs
    note in their user's state folder is not noted in the tester's. Told of a CI, pytest writes the whole difference
    between two models, which does not end: it is not told, so that a test fails there as it does here.
    """
    for told in ("CI", "BUILD_NUMBER"):
        os.environ.pop(told, None)
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 2 << 30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))
    state = tempfile.TemporaryDirectory(prefix="sordino-state-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT"))
    os.environ["XDG_STATE_HOME"] = state.name
    config.add_cleanup(state.cleanup)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """While modules are imported, nothing is garbage: looking for it again and again costs seconds. What hypothesis
    tries is the same in every run; `pytest --hypothesis-profile=default` tries something else.
    """
    gc.disable()
    from hypothesis import settings

    settings.register_profile("the same", derandomize=True, deadline=None)
    if not session.config.getoption("--hypothesis-profile", None):
        settings.load_profile("the same")
    from tests.test_apart import APART

    if any(file in asked for file in APART for asked in session.config.args):
        warm.start()  # before they tell torch of an accelerator: no later fork differentiates


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Before any test has run: what all warm processes are forked from.

    What has been imported stays until the end, so no later search for garbage has to pass through it, and seldom is
    often enough.
    """
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()
    if session.items and not session.config.option.collectonly:
        warm.start()
    if site := sys.modules.get("sordino.engine.site"):  # who watches clients at work needs them in this process: only
        site.LONG = math.inf  # those who ask for forks, and programs that are started, have them


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """All that is left goes with its process: nothing of it has to be looked at on the way out."""
    gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A copy without branches leaves their users out. Files of a pretended accelerator are run by `test_apart`."""
    from tests.helpers.branch_users import TESTS, left_out
    from tests.test_apart import APART

    if any(collection_path.match(file) and not any(file in asked for asked in config.args) for file in APART):
        return True
    place = collection_path.relative_to(TESTS.parent).as_posix() if collection_path.is_relative_to(TESTS) else ""
    return True if place in left_out() else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the users of branches that this copy lacks; of the cases of a test that is `one_fast` all but the first
    are slow; of what hypothesis tries, the fast tier takes a quarter, and the slow one, which runs it again, all.
    """
    from hypothesis import settings

    from tests.helpers.branch_users import left_out

    if gone := left_out():
        items[:] = [item for item in items if gone.isdisjoint((item.nodeid, item.nodeid.partition("[")[0]))]
    begun: set[str] = set()
    for item in items:
        if item.get_closest_marker("one_fast") and not item.get_closest_marker("slow"):
            name = item.nodeid.partition("[")[0]
            if name in begun:
                item.add_marker(pytest.mark.slow)
            begun.add(name)
    if config.option.markexpr == "not slow":
        functions = (item.function for item in items if isinstance(item, pytest.Function))
        for drawn in {function for function in functions if hasattr(function, "is_hypothesis_test")}:
            full = getattr(drawn, "_hypothesis_internal_use_settings", settings.default)
            drawn._hypothesis_internal_use_settings = settings(full, max_examples=math.ceil(full.max_examples / 4))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was left out for want of a browser, and how to get one."""
    from tests.helpers.browser import NO_BROWSER

    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", ()) if report.longrepr]
    if lacking := sum(reason.endswith(NO_BROWSER) for reason in reasons):
        tests = "1 test was" if lacking == 1 else f"{lacking} tests were"
        terminalreporter.write_line(
            f"{tests} skipped: no browser. They look at the pages in a real one: install Chromium or Chrome "
            "(Debian: apt-get install chromium; macOS: brew install --cask chromium) and test again."
        )


@pytest.fixture
def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client processes that are forked, not started."""
    from sordino.transport import message

    monkeypatch.setattr(message, "subprocess", warm.stand_in())


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is the only rank."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    yield
    import torch.distributed as dist

    from sordino.runs import ranks

    ranks.joined.cache_clear()
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that never stopped."""
    from sordino.runs.run import start
    from tests.helpers.prepared_runs import tiny

    folder = tmp_path_factory.mktemp("phases") / "run"
    start(tiny(), folder)
    return folder
