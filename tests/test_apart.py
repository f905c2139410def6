"""Tests that need a process of their own: torch, once told of an accelerator, differentiates in no later fork."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

APART = ("tests/test_device.py", "tests/runs/test_accelerators.py")


@pytest.mark.slow
def test_a_pretended_accelerator_stays_in_a_process_of_its_own() -> None:
    asked = [sys.executable, "-m", "pytest", "-n", "0", "-m", "slow or not slow", *APART]
    asked += ["-o", "faulthandler_timeout=300"]  # before this test is taken for one that hangs
    done = subprocess.run(asked, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
