"""Checks that a network keeps no state from one pass to the next except its parameters. Per-example clipping requires
this: state kept from one example would enter the gradients of later ones, past every clip.

In methods without a guarantee running statistics may be kept: they are named fields of the model.

A guard against mistakes: it compares values before and after, of buffers, of frozen parameters, of attributes, of what
hooks and functions enclose. It does not see what a program keeps elsewhere, such as in a global name or a file: so
where a user's own code sees rows, guarantees about them are conditional (`accounting.claims.Claim.resting_on`).
"""

from __future__ import annotations

import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType

import numpy as np
import torch
from torch import Tensor, nn

from sordino.errors import ConfigError, DataError, UnsoundGuarantee
from sordino.privacy.readers import remembering
from sordino.tasks.nets import Dropout
from sordino.types import Params

# a task sets mode and parameters in every pass; buffers are compared by their own names
OURS = {"training", "_parameters", "_modules", "_buffers"}
PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
HOLDERS = frozenset({dict, OrderedDict, list, set, tuple, deque})  # empty ones are skipped: layers have many
LIBRARIES = ("sordino", "torch", "builtins")

LISTED = {"_flat_weights", "_flat_weight_refs"}  # a recurrent layer lists its parameters anew for every pass


def coupling(net: nn.Module) -> str:
    """The class name of the first layer that normalises by statistics of several examples; "" where there is none."""
    for module in net.modules():
        running = isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats
        if running or isinstance(module, nn.modules.batchnorm._BatchNorm):
            return type(module).__name__
    return ""


def statistics(net: nn.Module) -> tuple[str, ...]:
    """Names of the running statistics of a network. Refuses layers whose statistics cannot be part of the model."""
    found = []
    for path, module in net.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and (name := type(module).__name__) == coupling(module):
            if isinstance(module, nn.SyncBatchNorm):
                why = "it communicates with other processes by itself"
            elif not module.track_running_stats:
                why = "without running statistics its output for one example depends on the others in the batch"
            elif module.momentum is None:
                why = "without a momentum it averages over all passes that there ever were, and a run counts none"
            else:
                found += [f"{path}.{each}".lstrip(".") for each in ("running_mean", "running_var")]
                continue
            raise UnsoundGuarantee(
                f"the model has a {name} layer that cannot be trained here",
                why=why,
                fix="use nn.GroupNorm; in a run without any guarantee, nn.BatchNorm2d(width) with its defaults",
                code="batch-norm",
            )
    return tuple(found)


@contextmanager
def several() -> Iterator[None]:
    """Turns torch's error on a batch of one example in a batch norm into an error that names a fix."""
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


def held(net: nn.Module) -> dict[str, tuple[object, object]]:
    """State of a network other than its parameters, by name, with its value: buffers, attributes, also those of its
    class, and what its hooks enclose.
    """
    found: dict[str, tuple[object, object]] = {}
    seen = {id(module) for module in net.modules()}
    for path, module in net.named_modules():
        ours = OURS | (LISTED if isinstance(module, nn.RNNBase) else set())
        own = {} if type(module) is Dropout else {k: v for k, v in vars(module).items() if k not in ours}
        for name, value in (_of_class(type(module)) | own | module._buffers).items():
            found[f"{path}.{name}".lstrip(".")] = value, _value(value, seen)
    return found


def of_calls(asked: Iterable[object]) -> dict[str, tuple[object, object]]:
    """Values in the closures of a user's own functions and callable objects, by name."""
    own = [one for one in asked if not _is_library(one)]
    return {str(getattr(one, "__qualname__", type(one).__qualname__)): (one, _value(one, set())) for one in own}


def _is_library(value: object) -> bool:
    """True for code of sordino or torch, as opposed to a user's."""
    module = getattr(value, "__module__", None) or type(value).__module__
    return isinstance(module, str) and module.partition(".")[0] in LIBRARIES


def _of_class(kind: type) -> dict[str, object]:
    """Plain values that a user's own class shares among its objects."""
    own = [vars(one) for one in reversed(kind.__mro__) if not _is_library(one) and one is not object]
    given = ((name, value) for one in own for name, value in one.items() if not name.startswith("__"))
    return {name: value for name, value in given if not (callable(value) or hasattr(value, "__get__"))}


def _value(value: object, seen: set[int]) -> object:
    """A fingerprint for comparing states: a checksum of a tensor or array, the fingerprints of all members of a
    container. Trained parameters count by identity only: gradients account for their values, so they are no hidden
    state.
    """
    kind = type(value)
    if kind in PLAIN or (kind in HOLDERS and not value):
        return (value if kind in PLAIN else kind,)  # in a tuple, because NaN there equals itself
    if isinstance(value, Tensor):
        return id(value) if isinstance(value, nn.Parameter) and value.requires_grad else _checksum(value)
    if id(value) in seen or isinstance(value, type | ModuleType):
        return id(value)
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        plain = value.dtype.hasobject
        return str(value.dtype), value.shape, _value(value.tolist(), seen) if plain else zlib.crc32(value.tobytes())
    if isinstance(value, Mapping):
        return [(_value(name, seen), _value(held, seen)) for name, held in value.items()]
    if isinstance(value, list | tuple | deque):
        return [_value(one, seen) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(repr(_value(one, seen)) for one in value)
    if isinstance(value, partial):
        return [_value(part, seen) for part in (value.func, value.args, value.keywords)]
    if isinstance(value, MethodType):
        return [_value(part, seen) for part in (value.__func__, value.__self__)]
    if _is_library(value) and not isinstance(value, nn.Module):
        return id(value)
    if isinstance(value, FunctionType):
        inside = [part for cell in value.__closure__ or () for part in _inside(cell)]
        return [_value(part, seen) for part in (inside, value.__defaults__, value.__kwdefaults__, vars(value))]
    named = {name: getattr(value, name, None) for one in type(value).__mro__ for name in _slots(one)}
    named |= {k: v for k, v in getattr(value, "__dict__", {}).items() if k != "training"}
    return [(name, _value(one, seen)) for name, one in named.items()]


def _inside(cell: CellType) -> tuple[object, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # nothing was put into it yet
        return ()


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(name for name in slots if not name.startswith("__"))


def _checksum(value: Tensor) -> object:
    """Checksum of all bytes of a tensor; for a tensor that cannot be read, the number of writes to it."""
    try:
        plain = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return str(value.dtype), tuple(value.shape), zlib.crc32(plain.numpy().data)
    except (RuntimeError, TypeError):
        return value._version


def changed(before: dict[str, tuple[object, object]], after: dict[str, tuple[object, object]]) -> str:
    """The name of the first state that differs between `before` and `after`; "" where none does."""
    nothing = (None, -1)
    for name in before | after:
        (old, known), (new, now) = before.get(name, nothing), after.get(name, nothing)
        if old is not new or known != now:
            return name
    return ""


def moved(net: nn.Module, frozen: Mapping[str, object]) -> str:
    """The name of the first frozen parameter that differs from its value in `frozen`; "" where none does."""
    for name, value in net.named_parameters():
        known = frozen.get(name)
        if not value.requires_grad and isinstance(known, Tensor) and not torch.equal(value, known):
            return name
    return ""


def check_tables(net: nn.Module) -> None:
    """Refuse embeddings with `max_norm`, which every pass rescales in place: the model would reveal without noise which
    words were looked up, and clients of one process would change it for each other.
    """
    for path, module in net.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise ConfigError(
                f"{path or 'the model'} is an embedding with max_norm, which rescales its weights in every pass",
                why="the model would show which words were looked up, without any clip or noise, and clients of one "
                "process would change it for each other",
                fix="leave max_norm out, and scale the found vectors: v / v.norm(dim=-1, keepdim=True).clamp_min(1)",
                code="model-rescales-itself",
            )


def check_adapters(net: nn.Module) -> None:
    """Refuses a frozen adapter of `peft` among those switched on, which would train in name only."""
    for path, module in net.named_modules():
        for kind in getattr(module, "adapter_layer_names", ()):
            for name, p in getattr(module, kind).named_parameters():
                if not p.requires_grad and name.partition(".")[0] in module.active_adapters:
                    raise ConfigError(
                        f"the adapter {path}.{kind}.{name} is frozen",
                        why="it is switched on, so what it should learn would stay what it is",
                        fix="give is_trainable=True to PeftModel.from_pretrained, or merge it: merge_and_unload()",
                        code="frozen-adapter",
                    )


def overwritten(params: Params, before: Params) -> str:
    """The name of the first trained parameter that differs from its value `before`; "" where none does."""
    return next((name for name, value in before.items() if not _same(params[name], value)), "")


def _same(one: Tensor, other: Tensor) -> bool:
    # NaN before and after is no change: a model may have diverged
    return torch.equal(one, other) or torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)


def remembered(
    net: nn.Module, frozen: Mapping[str, object], asked: Sequence[object], params: Params, *passes: Callable[[], object]
) -> str:
    """The name of the first state (of the network or of the functions `asked`) that a later pass changes, or of the
    first trained parameter in `params` that any pass changes; "" where there is none. Each pass has other rows. A state
    that only the first pass stores, such as a table of positions, does not depend on later rows."""
    trained = {name: value.clone() for name, value in params.items()}
    first, *others = passes
    first()
    before = held(net) | of_calls(asked)
    for passing in others:
        passing()
    return changed(before, held(net) | of_calls(asked)) or moved(net, frozen) or overwritten(params, trained)


@contextmanager
def still(net: nn.Module, frozen: Mapping[str, object], asked: Sequence[object], params: Params) -> Iterator[None]:
    """Context that raises an error if the block changes state of the network or of the functions `asked`, or writes to
    `params`. `frozen`: values of the frozen parameters."""
    before, trained = held(net) | of_calls(asked), {name: value.clone() for name, value in params.items()}
    try:
        yield
    except RuntimeError as error:  # such as torch's own, of a tensor that was kept from another example
        if name := changed(before, held(net) | of_calls(asked)):
            raise remembering(name) from error
        raise
    if name := changed(before, held(net) | of_calls(asked)) or moved(net, frozen) or overwritten(params, trained):
        raise remembering(name)
