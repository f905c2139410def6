"""What tests of the engine may ask for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.saved import Ask
from tests.laws import warm


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Talks to the process that saves and dies, forked from one that has imported everything."""
    arguments = [sys.executable, "-m", "checkpoint_workers"]
    worker = warm.Process(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdin is not None
    assert worker.stdout is not None
    to, back = worker.stdin, worker.stdout

    def tell(action: str, directory: Path, **arguments: Any) -> str:
        to.write(json.dumps({"action": action, "directory": str(directory), **arguments}).encode() + b"\n")
        to.flush()
        return str(json.loads(back.readline()))

    yield tell
    worker.communicate()
    assert worker.returncode == 0
