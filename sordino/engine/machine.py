"""What this machine can do, as far as it decides how a run is computed."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def matrix_units() -> bool:
    """Has the processor bf16 matrix units (AMX)? Without them bf16 on a CPU is slower than fp32."""
    try:
        return "amx_bf16" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
