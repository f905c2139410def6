"""Memory that threads have freed: kept for the next step, and given back to the system when asked."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from sordino import fast

of_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc alone")
MANY, BYTES = 40, 1 << 20
SCRIPT = f"""
import ctypes
import os
import threading
from pathlib import Path
from sordino import fast

def arenas():
    # The C library describes its arenas in XML, with an element `heap` for each.
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    page = ctypes.c_void_p(libc.fopen(b"arenas.xml", b"w"))
    libc.malloc_info(0, page)
    libc.fclose(page)
    return Path("arenas.xml").read_text().count("<heap ")

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
print(*(each - begun for each in (worked[-1], kept, held())), arenas())
"""


def grown(folder: Path, mutant: str = "") -> list[int]:
    """MiB more than at the beginning: while the second thread works, when both have ended, and when all is given
    back; and the arenas that there are then."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("@MUTANT", mutant)],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(fast.__file__).parents[2]), "MALLOC_ARENA_MAX": "8"},
    )
    return [int(each) for each in done.stdout.split()]


@pytest.mark.slow
@of_glibc
def test_what_threads_have_freed_is_kept_for_the_next_one_and_given_back(tmp_path: Path) -> None:
    worked, kept, left, arenas = grown(tmp_path)
    assert MANY <= kept <= worked < 2 * MANY  # the second thread took what the first had freed
    assert left < MANY / 4
    assert arenas == 1


@pytest.mark.slow
@of_glibc
def test_without_the_setting_a_thread_has_an_arena_of_its_own(tmp_path: Path) -> None:
    """What stays in it depends on what lies behind the freed blocks (40 MiB on one machine, none on another)."""
    *_, arenas = grown(tmp_path, "fast._M_ARENA_MAX = -999  # which glibc does not know")
    assert arenas > 1


def test_another_c_library_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not fast.keep_freed_memory()
    assert not fast.give_back_freed_memory()
