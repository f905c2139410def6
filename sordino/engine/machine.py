"""What this machine can do, and what `auto` makes of it.

What changes the bits of a result is chosen by rules, not by a stopwatch: the same machine must choose the same again. `sordino doctor --bench`
measures whether the rules are right here.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path


def decide(executor: str, precision: str) -> tuple[str, str]:
    """Both without `auto`. A run decides once, when it starts, and keeps that in its experiment.toml."""
    # clients that stand at the same weights can only gain by sharing a pass; elsewhere `pooled` is the plain loop
    executor = "pooled" if executor == "auto" else executor
    return executor, ("bf16" if matrix_units() else "fp32") if precision == "auto" else precision


@cache
def matrix_units() -> bool:
    """Has the processor bf16 matrix units (AMX)? Without them bf16 on a CPU is slower than fp32."""
    try:
        return "amx_bf16" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
