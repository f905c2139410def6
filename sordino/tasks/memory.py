"""What a network keeps from one pass to the next, beside its parameters. Under a private reader: nothing.

What is kept of one example reaches the answers about later ones, past every clip. A guard against mistakes: it compares
buffers and attributes before and after,
and sees nothing of what a program keeps elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from sordino.privacy.readers.covered import remembering
from sordino.tasks.nets import Dropout

OURS = {"training", "_parameters", "_modules"}  # a task sets the mode and the parameters for every pass

LISTED = {"_flat_weights", "_flat_weight_refs"}  # a recurrent layer lists its parameters anew for every pass


def coupling(net: nn.Module) -> str:
    """The layer that normalises by statistics of other examples, by name; "" where there is none."""
    for module in net.modules():
        running = isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats
        if running or isinstance(module, nn.modules.batchnorm._BatchNorm):
            return type(module).__name__
    return ""


def held(net: nn.Module) -> dict[str, tuple[Any, int]]:
    """Every buffer and attribute by name, with how often it was written to or how long it is."""
    found: dict[str, tuple[Any, int]] = {}
    for path, module in net.named_modules():
        ours = OURS | (LISTED if isinstance(module, nn.RNNBase) else set())
        own = {} if type(module) is Dropout else {k: v for k, v in vars(module).items() if k not in ours}
        for name, value in (own | module._buffers).items():
            found[f"{path}.{name}".lstrip(".")] = value, _size(value)
    return found


def _size(value: object) -> int:
    if isinstance(value, Tensor):
        return value._version
    return len(value) if isinstance(value, Sized) else 0


def changed(before: dict[str, tuple[object, int]], after: dict[str, tuple[object, int]]) -> str:
    """The first name whose state is not what it was; "" where there is none."""
    nothing = (None, -1)
    for name in before | after:
        (old, size), (new, now) = before.get(name, nothing), after.get(name, nothing)
        if old is not new or size != now:
            return name
    return ""


def remembered(net: nn.Module, passing: Callable[[], object]) -> str:
    """What a second pass changes in the network. What the first one makes for good, such as a table of positions,
    tells nothing of the rows that come later.
    """
    passing()
    before = held(net)
    passing()
    return changed(before, held(net))


@contextmanager
def still(net: nn.Module) -> Iterator[None]:
    """Refuses what is asked inside if the network is not the same afterwards."""
    before = held(net)
    try:
        yield
    except RuntimeError as error:  # such as torch's own, of a tensor that was kept from another example
        if name := changed(before, held(net)):
            raise remembering(name) from error
        raise
    if name := changed(before, held(net)):
        raise remembering(name)
