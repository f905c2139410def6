"""Keep freed memory. Per-example buffers are megabytes, allocated and freed at every step; glibc's defaults give each
back to the kernel at once, and the page faults of getting it again took a quarter of a private run's time (measured on
the MNIST CNN: 4.2 s of 17 s against 0.5 s).
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def keep_freed_memory() -> bool:
    """True where the C library took the settings (glibc)."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    settings = ((_M_MMAP_THRESHOLD, 1 << 30), (_M_TRIM_THRESHOLD, (1 << 31) - 1), (_M_TOP_PAD, 1 << 26))
    return all(mallopt(name, value) for name, value in settings)
