"""A process that has loaded what others wrote and nothing of ours: each mutant is tried in a copy of it, which begins
where the libraries are ready. Loading them is half of what a mutant costs otherwise.

It reads lines of JSON (folder, seconds, arguments of pytest) and answers each with the exit code and what was printed.
"""

# ruff: noqa: F401
from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path


def attempt(place: str, arguments: list[str]) -> None:
    """pytest in `place`, in this process, which ends with its exit code."""
    import pytest

    os.setsid()
    os.chdir(place)
    sys.path.insert(0, place)
    os.environ["PYTHONPATH"] = place
    code = pytest.main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code))


def answer(place: str, seconds: float, arguments: list[str]) -> tuple[int | None, str]:
    """The exit code, none where it took too long, and what was printed."""
    with tempfile.TemporaryFile() as printed:
        child = os.fork()
        if child == 0:
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            attempt(place, arguments)
        end = time.monotonic() + seconds
        found, status = os.waitpid(child, os.WNOHANG)
        while not found and time.monotonic() < end:
            time.sleep(0.02)
            found, status = os.waitpid(child, os.WNOHANG)
        if not found:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
        printed.seek(0)
        text = printed.read().decode(errors="replace")
    return os.waitstatus_to_exitcode(status) if found else None, text


if __name__ == "__main__":
    # of ours: not the folder of this file, nor a package that is found through it
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != Path(__file__).parent]
    import _hypothesis_pytestplugin
    import anyio._backends._asyncio
    import anyio.pytest_plugin
    import cryptography.hazmat.primitives.asymmetric.ed25519
    import cryptography.hazmat.primitives.ciphers.aead
    import cryptography.x509
    import dp_accounting.pld
    import dp_accounting.rdp
    import hypothesis.strategies
    import pydantic
    import pytest
    import rich.console
    import safetensors.torch
    import scipy.stats
    import torch.func
    import typer
    import xdist.looponfail
    import xdist.plugin

    pydantic.TypeAdapter(int).json_schema()  # which loads the rest of it
    gc.freeze()  # no copy has to look for garbage in them
    assert not [name for name in sys.modules if name.partition(".")[0] in ("sordino", "tests")]
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), flush=True)
