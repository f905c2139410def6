"""What a network keeps from one pass to the next, beside its parameters. Under a private reader: nothing.

Where nobody is promised anything, running statistics may be kept: they are named fields of the model.

What is kept of one example reaches the answers about later ones, past every clip. A guard against mistakes: it compares
buffers and attributes before and after,
and sees nothing of what a program keeps elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from sordino.errors import DataError, UnsoundGuarantee
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


def statistics(net: nn.Module) -> tuple[str, ...]:
    """Names of the running statistics of a network; it refuses those that cannot be a part of the model."""
    found = []
    for path, module in net.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and (name := type(module).__name__) == coupling(module):
            if isinstance(module, nn.SyncBatchNorm):
                why = "it talks to other processes of its own accord"
            elif not module.track_running_stats:
                why = "without running statistics what it says of one example depends on those that stand beside it"
            elif module.momentum is None:
                why = "without a momentum it averages over all passes that there ever were, and a run counts none"
            else:
                found += [f"{path}.{each}".lstrip(".") for each in ("running_mean", "running_var")]
                continue
            raise UnsoundGuarantee(
                f"the model has a {name} layer that cannot be trained here",
                why=why,
                fix="use nn.GroupNorm; where nobody is protected, nn.BatchNorm2d(width) as it is made by default",
                code="batch-norm",
            )
    return tuple(found)


@contextmanager
def several() -> Iterator[None]:
    """Says of a batch that is too small for its statistics what helps."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise DataError(
            "a batch of one example reaches a layer that normalises by its batch",
            why="one value has no variance",
            fix='choose a batch_size that leaves no client a last batch of one example, or batch_size = "full"',
            code="batch-of-one",
        ) from None


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
