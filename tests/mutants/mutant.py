"""A seeded bug, planted in a copy of the package and tried there by pytest.

A bug is a file under sordino/, the exact text that is changed (it must occur once, so that the table cannot rot), and a
few tests of which at least one must fail.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.laws.warm import PLACE

ROOT = Path(__file__).parents[2]
FAILED = 1  # pytest's exit code for tests that ran and failed


class Mutant(NamedTuple):
    name: str
    file: str
    edits: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]

    def changed(self, text: str) -> str:
        for old, new in self.edits:
            text = text.replace(old, new)
        return text


def one(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, file, ((old, new),), tests)


@contextmanager
def planted(target: Path, text: str) -> Iterator[None]:
    """This text in the place of a module's own."""
    own = target.read_bytes()
    target.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        target.write_bytes(own)
        for compiled in (target.parent / "__pycache__").glob(f"{target.stem}.*"):
            compiled.unlink()


@contextmanager
def warm_process() -> Iterator[subprocess.Popen[str]]:
    """A process of `warm.py`."""
    started = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("warm.py"))],
        cwd="/",
        # nor the place of a server that forks client processes of the package without a bug
        env={name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", PLACE)}
        | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with started:
        yield started
        started.stdin.close()  # type: ignore[union-attr]


def run(warm: subprocess.Popen[str], place: Path, *tests: str, timeout: float = 300) -> tuple[int | None, str]:
    """pytest's exit code for these tests in a copy, none where they took too long, and what was printed: then also
    where they hung.
    """
    shutil.rmtree(place / "temporary", ignore_errors=True)
    flags = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "-o", "addopts=", f"--basetemp={place / 'temporary'}"]
    flags += ["-o", f"faulthandler_timeout={timeout * 0.9}", "-o", "faulthandler_exit_on_timeout=false"]
    assert warm.stdin is not None
    assert warm.stdout is not None
    warm.stdin.write(json.dumps([str(place), timeout, [*flags, *tests]]) + "\n")
    warm.stdin.flush()
    code, printed = json.loads(warm.stdout.readline())
    return code, printed
