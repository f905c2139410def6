"""What this machine can do, and what `auto` makes of it.

What changes the bits of a result is chosen by rules, not by a stopwatch: the same machine must choose the same again.
`sordino doctor --bench` measures whether the rules are right here.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


def decide(executor: str, precision: str, noisy: bool) -> tuple[str, str]:
    """Both without `auto`. A run decides once, when it starts, and keeps that in its experiment.toml."""
    # noisy reads are shared by clients at the same weights, others by clients of equal shape; where a task cannot gain,
    # both are the plain loop
    if executor == "auto":
        executor = "pooled" if noisy else "stack"
    return executor, ("bf16" if matrix_units() else "fp32") if precision == "auto" else precision


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def matrix_units() -> bool:
    """Has the processor bf16 matrix units (AMX)? Without them bf16 on a CPU is slower than fp32."""
    try:
        return "amx_bf16" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
