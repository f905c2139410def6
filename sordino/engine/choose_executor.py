"""Executor, precision and device that `auto` chooses on this machine.

What changes the bits of a result is chosen by rules, not by a stopwatch: the same machine must choose the same again.
`sordino doctor --bench` measures whether the rules are right for this machine.
"""

from __future__ import annotations

import os

from sordino.device import CPU
from sordino.errors import ConfigError
from sordino.fast.processor import bf16_instructions


def decide(executor: str, precision: str, noisy: bool, device: str = CPU) -> tuple[str, str]:
    """Executor and precision with `auto` resolved. A run resolves them once, when it starts, and keeps them in its
    experiment.toml.
    """
    # noisy reads are shared by clients at the same weights, others by clients of equal shape; where a task cannot gain,
    # both are the plain loop
    if executor == "auto":
        executor = "pooled" if noisy else "stack"
    if precision == "auto":  # on an accelerator it has not been measured yet what bf16 costs, and what it saves
        precision = "bf16" if device == CPU and bf16_instructions() else "fp32"
    return executor, precision


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_of(name: str, number: int | None = None) -> str:
    """Name of the torch device, with `auto` resolved; refused where this machine has no such device. `number`: index of
    a process among several on one machine; each takes the accelerator of its own index, modulo their number.
    """
    import torch

    if name == "auto":
        return device_of("cuda" if torch.cuda.is_available() else CPU, number)
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type == CPU:
        return CPU
    if device.type == "mps":
        raise ConfigError(
            'engine.device = "mps"',
            why="sums and seeded draws use 64-bit floats, which Apple's graphics processors lack",
            fix='leave it out: "cpu" is the default',
            code="device-without-float64",
        )
    if device.type != "cuda":
        raise ConfigError(
            f"engine.device = {name!r}",
            why="no such device is known",
            fix='choose "cpu", "cuda", "cuda:1" and so on, or "auto"',
            code="unknown-device",
        )
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"engine.device = {name!r}",
            why=f"torch {torch.__version__} finds {torch.cuda.device_count()} such devices here",
            fix='choose "auto" to take what there is, or install a torch that was built for your accelerator',
            code="no-such-device",
        )
    return str(device) if number is None else f"cuda:{number % torch.cuda.device_count()}"


def processes_of(name: str) -> int:
    """Default number of client processes: one for each core, or for each accelerator."""
    import torch

    return cores() if name == CPU else torch.cuda.device_count()


def check_between_machines(name: str) -> None:
    """Refuses an accelerator in a run between sites."""
    if name != CPU:
        raise ConfigError(
            f"engine.device = {name!r} in a run between sites",
            why="sites compute on the processor, because the server does not know their hardware",
            fix='leave engine.device out; where all machines are yours, torchrun with engine.executor = "ranks" '
            "computes on their accelerators",
            code="device-of-one-process",
        )
