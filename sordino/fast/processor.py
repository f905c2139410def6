"""Properties of this machine's processor and memory. Nothing is measured: the same machine must always give the same
answer.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
BF16 = {"amx_bf16", "avx512_bf16"}  # matrix units, and wide vectors


def bf16_instructions() -> bool:
    """True if the processor has instructions that multiply bf16. Without them bf16 is slower than fp32 there."""
    return not BF16.isdisjoint(_words())


def leaves_vectors_aside() -> bool:
    """True if MKL, with which torch multiplies matrices, does not use the widest vector instructions: on AMD processors
    with AVX-512.
    """
    return {"AuthenticAMD", "avx512f"} <= _words()


@cache
def _words() -> frozenset[str]:
    try:
        return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return frozenset()


def keep_freed_memory() -> bool:
    """Makes the C library keep freed memory for the next step. Returns whether it accepted the settings (glibc does).

    Per-example buffers are megabytes, allocated and freed at every step; glibc's defaults give each back to the kernel
    at once, and the page faults of getting it again took a quarter of a private run's time (measured on the MNIST CNN:
    4.2 s of 17 s against 0.5 s).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    settings = ((_M_MMAP_THRESHOLD, 1 << 30), (_M_TRIM_THRESHOLD, (1 << 31) - 1), (_M_TOP_PAD, 1 << 26))
    return all(mallopt(name, value) for name, value in settings)
