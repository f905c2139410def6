"""What this machine can do, and what `auto` makes of it.

What changes the bits of a result is chosen by rules, not by a stopwatch: the same machine must choose the same again.
`sordino doctor --bench` measures whether the rules are right here.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

BF16 = {"amx_bf16", "avx512_bf16"}  # matrix units, and wide vectors


def decide(executor: str, precision: str, noisy: bool) -> tuple[str, str]:
    """Both without `auto`. A run decides once, when it starts, and keeps that in its experiment.toml."""
    # noisy reads are shared by clients at the same weights, others by clients of equal shape; where a task cannot gain,
    # both are the plain loop
    if executor == "auto":
        executor = "pooled" if noisy else "stack"
    return executor, ("bf16" if bf16_instructions() else "fp32") if precision == "auto" else precision


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def bf16_instructions() -> bool:
    """Has the processor instructions that multiply bf16? Without them bf16 on a CPU is slower than fp32."""
    try:
        return not BF16.isdisjoint(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
