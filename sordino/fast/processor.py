"""Features of this machine's processor. Nothing is measured: a machine must answer the same every time."""

from __future__ import annotations

from functools import cache
from pathlib import Path

BF16 = {"amx_bf16", "avx512_bf16"}  # matrix units, and wide vectors


def bf16_instructions() -> bool:
    """True where instructions multiply bf16. Without them bf16 on a processor is slower than fp32."""
    return not BF16.isdisjoint(_words())


def leaves_vectors_aside() -> bool:
    """True where MKL, by which torch multiplies matrices, leaves the widest vectors unused: on AMD's with AVX-512."""
    return {"AuthenticAMD", "avx512f"} <= _words()


@cache
def _words() -> frozenset[str]:
    try:
        return frozenset(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return frozenset()
