"""The arithmetic alone: the matrix products and convolutions of the forward and backward passes of one round, at the
same shapes, and nothing else.

Option `precision`: fp32, bf16, or `noise` for the Gaussian draws of a private round instead. One thread, layouts and
buffers as the kernels like them, every product by the library that is faster at it.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.meter import Meter
from benchmarks.workloads import Workload, network

KINDS = {"fp32": torch.float32, "bf16": torch.bfloat16}
Op = Callable[[], Any]


def main() -> None:
    meter = Meter()
    from sordino.fast import keep_freed_memory

    keep_freed_memory()
    precision, w = meter.options["precision"], meter.w
    ops = noise(w) if precision == "noise" else arithmetic(w, KINDS[precision])

    @torch.no_grad()
    def step() -> None:
        for op, count in ops:
            for _ in range(count):
                op()

    meter.drive(step, lambda: None, f"torch {torch.__version__}")


def noise(w: Workload) -> list[tuple[Op, int]]:
    held = [torch.empty_like(p) for p in network(w).parameters()]
    return [(value.normal_, w.cohort * w.steps) for value in held]


def arithmetic(w: Workload, kind: torch.dtype) -> list[tuple[Op, int]]:
    """Operations with how often a round does each. Clients at the same weights may go forward and back as one batch."""
    size = w.batch or w.examples
    together = w.cohort if w.clip is not None and w.steps == 1 else 1
    passes, found = w.cohort * w.steps // together, list[tuple[Op, int]]()
    for layer, x, first in layers(w, size * together):
        x = x.to(kind)
        if isinstance(layer, nn.Linear):
            found += linear(layer, x, first, size, passes, together)
        else:
            found += convolution(layer, x, first, passes)
    return found


def linear(layer: nn.Linear, x: Tensor, first: bool, size: int, passes: int, together: int) -> list[tuple[Op, int]]:
    weight = layer.weight.detach().to(x.dtype)
    out, back, own = x @ weight.mT, torch.empty_like(x), torch.empty_like(weight)
    g, one_g, one_x = torch.randn_like(out), torch.randn_like(out[:size]).mT, x[:size]
    forward = (lambda: torch.mm(x, weight.mT, out=out)), passes
    backward = (lambda: torch.mm(g, weight, out=back)), 0 if first else passes
    update = (lambda: torch.mm(one_g, one_x, out=own)), passes * together  # every client has a sum of its own
    return [(fastest(op), many) for op, many in (forward, backward, update) if many]


def fastest(op: Op) -> Op:
    """By MKL, or by oneDNN where that takes less time and is fp32 as well: with matrix units it would be bf16."""
    found, took = {}, {}
    for how in ("highest", "medium"):
        torch.set_float32_matmul_precision(how)
        found[how] = op().clone()
        took[how] = min(timeit.repeat(op, number=3, repeat=5))
    same = torch.allclose(found["highest"], found["medium"], rtol=1e-4, atol=1e-3)
    taken = min(took, key=lambda how: took[how]) if same else "highest"

    def run() -> Any:
        torch.set_float32_matmul_precision(taken)
        return op()

    return run


def convolution(layer: nn.Conv2d, x: Tensor, first: bool, passes: int) -> list[tuple[Op, int]]:
    x = x.contiguous(memory_format=torch.channels_last)
    weight = layer.weight.detach().to(x.dtype).contiguous(memory_format=torch.channels_last)
    g = torch.randn_like(F.conv2d(x, weight))
    geometry, mask = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1), [not first, True, False]
    backward = torch.ops.aten.convolution_backward
    return [(lambda: F.conv2d(x, weight), passes), (lambda: backward(g, x, weight, None, *geometry, mask), passes)]


def layers(w: Workload, rows: int) -> list[tuple[Any, Tensor, bool]]:
    """Every layer with a matrix, what it sees, and whether it is the first: nothing goes back beyond that."""
    seen: list[tuple[Any, Tensor, bool]] = []
    height, width, channels = w.shape
    x = torch.randn(rows, channels, height, width)
    with torch.no_grad():
        for layer in network(w):
            if isinstance(layer, nn.Linear | nn.Conv2d):
                seen.append((layer, x, not seen))
            x = layer(x)
    return seen


if __name__ == "__main__":
    main()
