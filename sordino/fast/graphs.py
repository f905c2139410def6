"""CUDA graphs: the kernels of a step on a GPU, recorded once and launched together from then on.

A step of a small network is some two hundred kernels of a few microseconds, and Python takes longer to launch one than
the GPU to run it. A function of tensors alone runs normally at first; after enough calls with tensors of the same
shapes its kernels are recorded, and later calls replay the recording. Exact, because it is the same kernels in the same
order on the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from sordino.fast import PURE, transforming
from sordino.fast.factored import dense

if TYPE_CHECKING:
    from torch import Tensor

Gradients = dict[str, Any]  # tensors, or lazy matrices, by name

AS_IT_IS = 2  # first calls with the same shapes, which are not recorded: in them libraries choose kernels
MOST = 16  # recordings that one owner keeps; each holds all that its kernels write
KEPT = "_recorded"  # the recordings, among the attributes of their owner


def owner_of(of: Any) -> Any:
    """The owner bound to a `pure` function, which keeps its recordings; None where no recordings may be made."""
    bound = isinstance(of, partial) and of.func in PURE and len(of.args) == 1 and not of.keywords
    return of.args[0] if bound and getattr(of.args[0], "replays", False) else None


def replayed(owner: Any, name: str, of: Callable[..., Gradients], params: Gradients, *rest: Any) -> Gradients:
    """Call `of(params, *rest)`, or, after a few calls and where all tensors are on a GPU, replay a recording of it.
    `name` distinguishes the functions of one owner.
    """
    given = [*params.values(), *(one for one in rest if one is not None)]
    if owner is None or transforming() or not _recordable(given):
        return of(params, *rest)
    names = tuple(params)

    def flat(*tensors: Tensor) -> list[Tensor]:
        left = iter(tensors)
        own = dict(zip(names, left, strict=False))
        found = of(own, *(None if one is None else next(left) for one in rest))
        return [dense(found[name]) for name in names]

    kept: dict[Any, int | _Recording] = vars(owner).setdefault(KEPT, {})
    key = name, names, tuple((one.shape, one.stride(), one.dtype) for one in given), tuple(one is None for one in rest)
    seen = kept.get(key, 0)
    if isinstance(seen, _Recording):
        return dict(zip(names, seen.play(given), strict=True))
    if seen >= AS_IT_IS and sum(isinstance(one, _Recording) for one in kept.values()) < MOST:
        kept[key] = recording = _Recording(flat, given)
        return dict(zip(names, recording.play(given), strict=True))
    kept[key] = seen + 1
    return dict(zip(names, flat(*given), strict=True))


def _recordable(given: list[Any]) -> bool:
    return all(type(one) is torch.Tensor and one.is_cuda for one in given)


class _Recording:
    """The recorded kernels of a function for tensors of certain shapes."""

    def __init__(self, of: Callable[..., list[Tensor]], like: list[Tensor]) -> None:
        self._given = [one.clone() for one in like]
        self._graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            of(*self._given)  # what a library sets up for a stream is not recorded
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(self._graph, stream=stream):
            self._found = of(*self._given)

    def play(self, given: list[Tensor]) -> list[Tensor]:
        torch._foreach_copy_(self._given, given)
        self._graph.replay()
        return list(torch._foreach_mul(self._found, 1.0))  # a copy: the next replay overwrites the memory
