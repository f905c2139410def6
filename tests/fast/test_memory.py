"""Memory that threads have freed: kept for the next step, and given back to the system when asked."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from sordino import fast

of_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc alone")
MANY, BYTES = 40, 1 << 20
SCRIPT = f"""
import os
import threading
from pathlib import Path
from sordino import fast

def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

def work():
    made = [bytearray(b"1") * {BYTES} for _ in range({MANY})]
    worked.append(held())

@MUTANT
worked, begun = [], held()
assert fast.keep_freed_memory() is True
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
    thread.join()
kept = held()
fast.give_back_freed_memory()
print(*(each - begun for each in (worked[-1], kept, held())))
"""


def grown(mutant: str = "") -> list[int]:
    """MiB more than at the beginning: while the second thread works, when both have ended, and when all is given
    back."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("@MUTANT", mutant)], capture_output=True, text=True, check=True
    )
    return [int(each) for each in done.stdout.split()]


@pytest.mark.slow
@of_glibc
def test_what_threads_have_freed_is_kept_for_the_next_one_and_given_back() -> None:
    worked, kept, left = grown()
    assert MANY <= kept <= worked < 2 * MANY  # the second thread took what the first had freed
    assert left < MANY / 4


@pytest.mark.slow
@of_glibc
def test_an_arena_for_each_thread_keeps_its_memory() -> None:
    *_, left = grown("fast._M_ARENA_MAX = -999  # which glibc does not know")
    assert left >= MANY / 2


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not fast.keep_freed_memory()
    assert not fast.give_back_freed_memory()
