"""What is on this disk is what a clone gets: a pattern in .gitignore once kept a whole package out of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no clone: the sources came without their history")
def test_no_module_is_ignored() -> None:
    modules = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "sordino").rglob("*.py"))]
    assert len(modules) > 100
    asked = subprocess.run(
        ["git", "check-ignore", "--no-index", *modules, "runs/demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.stdout.split() == ["runs/demo"]
