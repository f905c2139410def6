"""How many floating-point operations a network takes: torch's own formulas, without its compiler, whose import takes a
second of every process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # to be skipped, a mode imports it
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        self.total += 0 if formula is None else formula(*args, **(kwargs or {}), out_val=out)
        return out


def count(forward: Callable[[], object]) -> int:
    """The operations of what runs inside, counted by torch."""
    with _Counting() as counting, torch.no_grad():  # type: ignore[no-untyped-call]
        forward()
    return int(counting.total)
