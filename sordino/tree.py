"""Arithmetic on trees of tensors.

A tree is a tensor, a dict of trees with string keys, a tuple or a NamedTuple of trees. States and payloads are NamedTuples, so every
leaf has a name ("delta/conv1.weight") that is the same on the wire, in a checkpoint and in an error message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

Tree: TypeAlias = Any  # Tensor | dict[str, Tree] | tuple[Tree, ...]; the recursion is checked at run time by `leaves`
T = TypeVar("T")


class Product:
    """A gradient that is still a product, left^T right, or left^T 1 without a right: of a linear layer. Adding it to something never forms it.

    Everything but `axpy` and `descend` sees the tensor: any torch function or operator on a Product acts on `dense()`.
    """

    __slots__ = ("left", "right")

    def __init__(self, left: Tensor, right: Tensor | None = None) -> None:
        self.left, self.right = left, right  # [n, rows], [n, columns]

    def dense(self) -> Tensor:
        return self.left.sum(0) if self.right is None else self.left.t() @ self.right

    def added_to(self, y: Tensor, factor: float) -> Tensor:
        """y + factor * left^T right."""
        if self.left.dtype != y.dtype or self.right is None:
            return torch.add(y, self.dense(), alpha=factor)
        return torch.addmm(y, self.left.t(), self.right, alpha=factor)

    def add_to(self, y: Tensor, factor: float) -> None:
        """The same in y's own memory."""
        if self.left.dtype != y.dtype:
            y.add_(self.dense(), alpha=factor)
        elif self.right is None:
            y.addmv_(self.left.t(), _ones(self.left.shape[0], y.dtype), alpha=factor)
        else:
            y.addmm_(self.left.t(), self.right, alpha=factor)

    @classmethod
    def __torch_function__(cls, fn: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return fn(*_dense(args), **{k: _dense(v) for k, v in (kwargs or {}).items()})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dense(), name)


@cache
def _ones(count: int, dtype: torch.dtype) -> Tensor:
    return torch.ones(count, dtype=dtype)


def _dense(value: Any) -> Any:
    if isinstance(value, Product):
        return value.dense()
    return type(value)(_dense(v) for v in value) if isinstance(value, list | tuple) else value


def _operator(name: str) -> Callable[..., Any]:
    return lambda self, *rest: getattr(self.dense(), name)(*_dense(rest))


for _name in (
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "truediv",
    "neg",
    "pow",
    "matmul",
    "rmatmul",
    "getitem",
    "len",
    "abs",
):
    setattr(Product, f"__{_name}__", _operator(f"__{_name}__"))


def map(fn: Callable[..., Tensor], tree: T, *rest: T) -> T:
    """Apply `fn` leaf by leaf; all trees must have the same structure."""
    if isinstance(tree, Tensor | Product):
        return fn(_dense(tree), *_dense(rest))  # type: ignore[return-value]
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
    """Leaves with their path, in a fixed order."""
    if isinstance(tree, Tensor | Product):
        yield prefix.rstrip("/") or "value", tree  # type: ignore[misc]  # a product is as good as its matrix
    elif isinstance(tree, dict):
        for name, value in tree.items():
            yield from named(value, f"{prefix}{name}/")
    elif isinstance(tree, tuple):
        names = getattr(tree, "_fields", None) or [str(i) for i in range(len(tree))]
        for name, value in zip(names, tree, strict=True):
            yield from named(value, f"{prefix}{name}/")
    else:
        raise TypeError(f"not a tree of tensors: {type(tree).__name__} at {prefix or 'the root'}")


def leaves(tree: Tree) -> list[Tensor]:
    return [leaf for _, leaf in named(tree)]


def like(template: T, values: list[Tensor]) -> T:
    """The structure of `template` around new leaves, in the order of `leaves`."""
    remaining = iter(values)
    built = map(lambda _: next(remaining), template)
    if next(remaining, None) is not None:
        raise ValueError("more leaves than the template holds")
    return built


def add(a: T, b: T) -> T:
    return map(torch.add, a, b)


def sub(a: T, b: T) -> T:
    return map(torch.sub, a, b)


def scale(factor: float | Tensor, a: T) -> T:
    return map(lambda leaf: leaf * factor, a)


def axpy(factor: float | Tensor, a: T, b: T) -> T:
    """factor * a + b"""
    if isinstance(factor, Tensor):
        return map(lambda x, y: factor * x + y, a, b)
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return {k: axpy(factor, a[k], b[k]) for k in b}  # type: ignore[return-value]
    if isinstance(a, Product) and isinstance(b, Tensor):
        return a.added_to(b, factor)  # type: ignore[return-value]
    if isinstance(a, Tensor) and isinstance(b, Product):
        return b.added_to(a * factor, 1.0)  # type: ignore[return-value]
    return map(lambda x, y: torch.add(y, x, alpha=factor), a, b)


def descend(y: T, eta: float, direction: T, start: T) -> T:
    """y - eta * direction. The first step away from `start` makes a tree of its own; later ones walk in that memory."""
    if y is start:
        return axpy(-eta, direction, y)
    if not isinstance(y, dict) or not isinstance(direction, dict) or y.keys() != direction.keys():
        map(lambda leaf, step: leaf.add_(step, alpha=-eta), y, direction)
        return y
    for name, leaf in y.items():
        step = direction[name]
        if isinstance(step, Product):
            step.add_to(leaf, -eta)
        elif isinstance(step, Tensor):
            leaf.add_(step, alpha=-eta)
        else:
            descend(leaf, eta, step, start)
    return y


def zeros_like(a: T) -> T:
    return map(torch.zeros_like, a)


def norm(a: Tree, order: float = 2) -> Tensor:
    """The norm of all leaves taken as one vector, accumulated in float64 so that a bound checked twice is the same bound."""
    total: Tensor = torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(leaf.double(), order) for leaf in leaves(a)]), order
    )
    return total


def size(a: Tree) -> int:
    """Number of coordinates."""
    return sum(leaf.numel() for leaf in leaves(a))


def flat(a: Tree) -> Tensor:
    return torch.cat([leaf.reshape(-1) for leaf in leaves(a)])


def unflat(vector: Tensor, template: T) -> T:
    pieces = iter(torch.split(vector, [leaf.numel() for leaf in leaves(template)]))
    return map(lambda leaf: next(pieces).reshape(leaf.shape).to(leaf.dtype), template)


def finite(a: Tree) -> bool:
    return all(bool(torch.isfinite(leaf).all()) for leaf in leaves(a))
