"""Arithmetic on trees of tensors.

A tree is a tensor, a dict of trees with string keys, a tuple or a NamedTuple of trees. States and payloads are
NamedTuples, so every leaf has a name ("delta/conv1.weight") that is the same on the wire, in a checkpoint and in an
error message.

>>> a = {"w": torch.tensor([1.0, 2.0]), "b": torch.tensor(3.0)}
>>> axpy(2.0, a, a)
{'w': tensor([3., 6.]), 'b': tensor(9.)}
>>> [(name, leaf.tolist()) for name, leaf in named({"delta": a})]
[('delta/w', [1.0, 2.0]), ('delta/b', 3.0)]
>>> add(a, {"w": a["w"]})
Traceback (most recent call last):
ValueError: trees differ: ['b', 'w'] against [['w']]

A vector of all numbers goes back into the structure that it came from:

>>> unflat(2 * flat(a), a)
{'w': tensor([2., 4.]), 'b': tensor(6.)}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch

from sordino.fast import factored as lazy
from sordino.fast import transforming
from sordino.fast.factored import Lazy, Moved, Scaled, Span, Zero, dense

if TYPE_CHECKING:
    from torch import Tensor


Tree: TypeAlias = Any  # Tensor | dict[str, Tree] | tuple[Tree, ...]; the recursion is checked at run time by `leaves`
T = TypeVar("T")
PART = 1 << 20  # numbers


def map(fn: Callable[..., Tensor], tree: T, *rest: T) -> T:
    """Applies `fn` leaf by leaf; all trees must have the same structure."""
    if isinstance(tree, torch.Tensor | Lazy):
        return fn(dense(tree), *dense(rest))  # type: ignore[return-value]
    if isinstance(tree, dict):
        if any(list(other) != list(tree) for other in rest):  # type: ignore[call-overload]
            raise ValueError(f"trees differ: {sorted(tree)} against {[sorted(other) for other in rest]}")  # type: ignore[call-overload]
        return {k: map(fn, v, *(other[k] for other in rest)) for k, v in tree.items()}  # type: ignore[return-value, index]
    if isinstance(tree, tuple):
        if any(len(other) != len(tree) for other in rest):  # type: ignore[arg-type]
            raise ValueError("trees differ in length")
        parts = [map(fn, v, *(other[i] for other in rest)) for i, v in enumerate(tree)]  # type: ignore[index]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)  # type: ignore[return-value]
    raise TypeError(f"not a tree of tensors: {type(tree).__name__}")


def named(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Path and tensor of every leaf, in a fixed order."""
    if isinstance(tree, torch.Tensor | Lazy):
        yield prefix.rstrip("/") or "value", tree  # type: ignore[misc]  # as good as its matrix
    elif isinstance(tree, dict):
        for name, value in tree.items():
            yield from named(value, f"{prefix}{name}/")
    elif isinstance(tree, tuple):
        names = getattr(tree, "_fields", None) or [str(i) for i in range(len(tree))]
        for name, value in zip(names, tree, strict=True):
            yield from named(value, f"{prefix}{name}/")
    else:
        raise TypeError(f"not a tree of tensors: {type(tree).__name__} at {prefix or 'the root'}")


def unlike(a: Tree, b: Tree) -> str:
    """First difference between the names, dtypes and shapes of two trees, in words; empty where there is none."""
    one, other = ([(name, leaf.dtype, list(leaf.shape)) for name, leaf in named(each)] for each in (a, b))
    if [name for name, *_ in one] != [name for name, *_ in other]:
        return f"the tensors {', '.join(n for n, *_ in one)} instead of {', '.join(n for n, *_ in other)}"
    pairs = zip(one, other, strict=True)
    return next((f"{x[0]} as {x[1]} {x[2]} instead of {y[1]} {y[2]}" for x, y in pairs if x != y), "")


def leaves(tree: Tree) -> list[Tensor]:
    """All leaves without their paths, in the order of `named`."""
    found: list[Tensor] = []
    return found if _gathered(tree, found) else [leaf for _, leaf in named(tree)]  # `named` raises the error


def _gathered(tree: Tree, found: list[Tensor]) -> bool:
    """Appends the leaves of the tree to `found`; False where something in it is no leaf and no tree."""
    if isinstance(tree, torch.Tensor | Lazy):
        found.append(tree)  # type: ignore[arg-type]
        return True
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, tuple) else None
    return parts is not None and all(_gathered(part, found) for part in parts)


def like(template: T, values: list[Tensor]) -> T:
    """A tree with the structure of `template` and these leaves, in the order of `leaves`."""
    remaining = iter(values)
    built = map(lambda _: next(remaining), template)
    if next(remaining, None) is not None:
        raise ValueError("more leaves than the template holds")
    return built


def add(a: T, b: T) -> T:
    """The sum a + b, leaf by leaf."""
    return map(torch.add, a, b)


def _on_gpu(*trees: Any) -> bool:
    """True where one GPU kernel can process all leaves of these dicts at once. On a GPU a launch costs more than the
    work."""
    first: Any = next(iter(trees[0].values()), None) if isinstance(trees[0], dict) else None
    if type(first) is not torch.Tensor or not first.is_cuda or transforming():
        return False
    alike = all(isinstance(one, dict) and list(one) == list(trees[0]) for one in trees)
    return alike and all(type(leaf) is torch.Tensor for one in trees for leaf in one.values())


def _joined(of: Any, first: T, *rest: Any, **more: Any) -> T:
    """Applies one `torch._foreach` operation to the leaves of all these dicts; the result has the names of the
    first."""
    own, *parts = [[*one.values()] if isinstance(one, dict) else one for one in (first, *rest)]
    return dict(zip(first, of(own, *parts, **more) or own, strict=True))  # type: ignore[call-overload, return-value]


def sub(a: T, b: T) -> T:
    """The difference a - b, leaf by leaf."""
    if a is not b and _on_gpu(a, b):
        return _joined(torch._foreach_sub, a, b)
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return {k: sub(a[k], b[k]) for k in a}  # type: ignore[return-value]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return Zero(a) if a is b else torch.sub(a, b)  # type: ignore[return-value]
    if isinstance(a, Moved) and a.start is b:
        return a.way.kept()  # type: ignore[return-value]
    return map(torch.sub, a, b)


def scale(factor: float | Tensor, a: T) -> T:
    """The product factor * a, leaf by leaf."""
    if isinstance(factor, float) and _on_gpu(a):
        return _joined(torch._foreach_mul, a, factor)
    if isinstance(a, Lazy) and not (isinstance(factor, torch.Tensor) and factor.dim()):
        return a.scaled(factor)  # type: ignore[no-any-return]
    if isinstance(a, dict):
        return {k: scale(factor, v) for k, v in a.items()}  # type: ignore[return-value]
    if isinstance(a, tuple):
        parts = [scale(factor, v) for v in a]
        return type(a)(*parts) if hasattr(a, "_fields") else tuple(parts)  # type: ignore[return-value]
    return map(lambda leaf: leaf * factor, a)


def times(factor: Tensor, a: T) -> T:
    """The product factor * a, where `factor` is a tensor of one number, in the dtype of each leaf."""
    if _on_gpu(a):
        return _joined(torch._foreach_mul, a, factor.to(leaves(a)[0].dtype))
    return map(lambda leaf: leaf * factor.to(leaf.dtype), a)


def axpy(factor: float | Tensor, a: T, b: T) -> T:
    """The sum factor * a + b."""
    if isinstance(factor, torch.Tensor):
        return map(lambda x, y: factor * x + y, a, b)
    if _on_gpu(a, b):
        return _joined(torch._foreach_add, b, a, alpha=factor)
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return {k: axpy(factor, a[k], b[k]) for k in b}  # type: ignore[return-value]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.add(b, a, alpha=factor)  # type: ignore[return-value]
    if isinstance(a, Lazy):
        return a.added_to(b, factor)  # type: ignore[no-any-return]
    if isinstance(a, torch.Tensor) and isinstance(b, Lazy):
        return b.added_to(a * factor, 1.0)  # type: ignore[no-any-return]
    return map(lambda x, y: torch.add(y, x, alpha=factor), a, b)


def descend(y: T, eta: float, direction: T, start: T) -> T:
    """The step y - eta * direction. The first step away from `start` makes a new tree; later ones are made in place."""
    if y is not start and _on_gpu(y, direction):
        return _joined(torch._foreach_add_, y, direction, alpha=-eta)
    if isinstance(y, dict) and isinstance(direction, dict) and y.keys() == direction.keys():
        walked = {} if y is start else y
        for name in y:
            walked[name] = descend(y[name], eta, direction[name], y[name] if y is start else None)
        return walked  # type: ignore[return-value]
    if y is start:
        if isinstance(y, torch.Tensor):
            if isinstance(direction, Span):
                return Moved(y, Span(direction.rows, direction.coefficients(-eta)))  # type: ignore[return-value]
            if isinstance(direction, Scaled):
                return Moved(y, direction.scaled(-eta))  # type: ignore[return-value]
        return axpy(-eta, direction, y)
    if isinstance(y, torch.Tensor) and isinstance(direction, torch.Tensor):
        return y.add_(direction, alpha=-eta)  # type: ignore[return-value]
    if isinstance(direction, Lazy):
        return direction.add_to(y, -eta)  # type: ignore[no-any-return]
    return map(lambda leaf, step: leaf.add_(step, alpha=-eta), y, direction)


def formed(a: T) -> T:
    """A copy of the tree with every lazy leaf computed, so that all leaves are tensors."""
    return map(lambda leaf: leaf, a)


def zeros_like(a: T) -> T:
    return map(torch.zeros_like, a)


def _parts(leaf: Tensor) -> Sequence[Tensor]:
    """The leaf, or pieces of a large one, so that converting it to float64 needs little memory at a time."""
    return torch.split(leaf.reshape(-1), PART) if leaf.numel() > PART else (leaf,)


def norm(a: Tree, order: float = 2) -> Tensor:
    """The norm of all leaves taken as one vector, accumulated in float64 so that a bound checked twice is the same
    bound.
    """
    if _on_gpu(a):
        each = list(torch._foreach_norm([*a.values()], order, torch.float64))
    else:
        each = [torch.linalg.vector_norm(part.double(), order) for leaf in leaves(a) for part in _parts(leaf)]
    total: Tensor = torch.linalg.vector_norm(torch.stack(each), order)
    return total


def size(a: Tree) -> int:
    """The number of coordinates."""
    return sum(leaf.numel() for leaf in leaves(a))


def flat(a: Tree) -> Tensor:
    """All leaves one after another, in one vector."""
    return torch.cat([leaf.reshape(-1) for leaf in leaves(a)])


def unflat(vector: Tensor, template: T) -> T:
    """The inverse of `flat`, in the structure and dtypes of `template`."""
    pieces = iter(torch.split(vector, [leaf.numel() for leaf in leaves(template)]))
    return map(lambda leaf: next(pieces).reshape(leaf.shape).to(leaf.dtype), template)


def finite(a: Tree) -> bool:
    """True if all numbers are finite: quickly where their sum is finite, else leaf by leaf."""
    total: Any = 0.0
    for leaf in leaves(a):
        if isinstance(leaf, lazy.Lazy):
            if not leaf.finite():
                return False
        else:
            total = leaf.sum() + total
    return isfinite(float(total)) or all(lazy.finite(leaf) for leaf in leaves(a))
