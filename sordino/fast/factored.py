"""Matrices kept in factored form.

Multiplying them out would cost more than all other operations on them.

`Product`  left^T right: the gradient of a linear layer, until it is added to a tensor.
`Span`     c^T x, a combination of a client's own rows x: the gradient of a first linear layer, kept as coefficients c.
`Scaled`   factor * x, a multiple that is not computed yet.
`Moved`    start + way: weights during local training, as long as no operation needs them as a tensor.

Any torch function or operator on one of them acts on the tensor `dense()`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from sordino import fast
from sordino.fast import Operand, for_all, vmapping

if TYPE_CHECKING:
    from torch import Tensor

Index: TypeAlias = "slice | Tensor"  # some rows, each at most once
Matrix: TypeAlias = Any  # a tensor, or a `Lazy` that stands for one
Ready: TypeAlias = Any  # rows as a network takes them: a tensor, or a `Part` of rows whose first layer is linear
EVERY = slice(None)
SMALL = 1 << 16


class Lazy:
    """A matrix in factored form, not multiplied out yet. No ABCMeta: its `isinstance` costs as much as a small tensor
    operation.
    """

    __slots__ = ()

    @abstractmethod
    def dense(self) -> Tensor:
        """The matrix as a tensor."""

    @property
    @abstractmethod
    def alike(self) -> Matrix:
        """A matrix from which this one takes its dtype and device."""

    @property
    def dtype(self) -> torch.dtype:
        return self.alike.dtype  # type: ignore[no-any-return]

    @property
    @abstractmethod
    def shape(self) -> torch.Size: ...

    @property
    def device(self) -> torch.device:
        return self.alike.device  # type: ignore[no-any-return]

    def numel(self) -> int:
        return self.shape.numel()

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def added_to(self, y: Matrix, factor: float) -> Matrix:
        """The sum y + factor * self."""
        return torch.add(dense(y), self.dense(), alpha=factor)

    def add_to(self, y: Matrix, factor: float) -> Matrix:
        """The sum y + factor * self, in the memory of y where possible."""
        if isinstance(y, Lazy):
            y = y.dense()
        return y.add_(self.dense(), alpha=factor)

    def scaled(self, factor: float | Tensor) -> Matrix:
        return self.dense() * factor

    def finite(self) -> bool:
        """True if all numbers are finite."""
        return finite(self.dense())

    @classmethod
    def __torch_function__(cls, fn: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return fn(*dense(args), **{k: dense(v) for k, v in (kwargs or {}).items()})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dense(), name)


class Zero(Lazy):
    """A matrix of zeros, kept without memory: the difference of a tensor and itself."""

    __slots__ = ("like",)

    def __init__(self, like: Matrix) -> None:
        self.like = like

    @property
    def alike(self) -> Matrix:
        return self.like

    @property
    def shape(self) -> torch.Size:
        return self.like.shape  # type: ignore[no-any-return]

    def dense(self) -> Tensor:
        return torch.zeros_like(dense(self.like))

    def added_to(self, y: Matrix, factor: float) -> Matrix:
        return y

    def scaled(self, factor: float | Tensor) -> Zero:
        return self


class Product(Lazy):
    """The product left^T right; without `right`, the sum of the rows of `left`."""

    __slots__ = ("left", "right")

    def __init__(self, left: Tensor, right: Tensor | None = None) -> None:
        self.left, self.right = left, right  # [n, rows], [n, columns]

    @property
    def alike(self) -> Matrix:
        return self.left

    @property
    def shape(self) -> torch.Size:
        columns = () if self.right is None else self.right.shape[1:]
        return torch.Size((self.left.shape[1], *columns))

    def dense(self) -> Tensor:
        return self.left.sum(0) if self.right is None else fast.across(self.left, self.right)

    def added_to(self, y: Matrix, factor: float) -> Matrix:
        if isinstance(y, Lazy) or self.left.dtype != y.dtype or self.right is None:
            return super().added_to(y, factor)
        return fast.added(y, self.left, self.right, factor)

    def add_to(self, y: Matrix, factor: float) -> Matrix:
        if isinstance(y, Lazy) or self.left.dtype != y.dtype:
            return super().add_to(y, factor)
        if self.right is None:
            return torch.add(y, self.left.sum(0), alpha=factor)
        if y.numel() < SMALL:  # a new one costs as little; vmap has no addmm of its own
            return torch.add(y, self.left.t() @ self.right, alpha=factor)
        return fast.add_to(y, self.left, self.right, factor)

    def scaled(self, factor: float | Tensor) -> Product:
        return Product(self.left * factor, self.right)

    def to(self, dtype: torch.dtype) -> Product:
        return Product(self.left.to(dtype), None if self.right is None else self.right.to(dtype))


class ClientRows:
    """All rows x of a client in one round, and the outputs of a first linear layer for them at its initial weights.

    While the weights move inside the span of x, W = W0 + c^T x, a batch x_b sees x_b W^T = x_b W0^T + (x_b x^T) c: x
    W0^T and x x^T are computed once, and a step updates one coefficient per example and output instead of every weight.
    Exact, except for the rounding of another order of additions, because gradients of the layer are combinations of x.
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x  # [n, in]
        self._start: tuple[Tensor, int] | None = None  # initial weights, and their version (number of in-place writes)
        self._through: Tensor | None = None
        self._gram: Tensor | None = None

    def __getitem__(self, index: Index) -> Part:
        return Part(self, index)

    @cached_property
    def largest(self) -> float:
        """The largest absolute value in the rows."""
        return _largest(self.x)

    def times(self, weight: Matrix, bias: Tensor | None, index: Index) -> Tensor:
        """The output of a linear layer for the rows of `index`."""
        if not (isinstance(weight, Moved) and weight.along(self)):
            # a tensor may be changed in place, so no output for it is cached
            return fast.linear(self.x[index], dense(weight), bias)
        start = weight.start, weight.start._version
        if self._start is None or self._start[0] is not start[0] or self._start[1] != start[1]:
            self._start, self._through = start, fast.linear(self.x, start[0])
        if self._gram is None:
            self._gram = self.x @ self.x.t()
        assert self._through is not None
        out = (self._gram[index] @ weight.way.c).add_(self._through[index])
        return out if bias is None else out.add_(bias)


class Part:
    """Some rows of `ClientRows`, as input of a network whose first layer is linear; can be sliced like a tensor."""

    __slots__ = ("index", "rows")

    def __init__(self, rows: ClientRows, index: Index) -> None:
        self.rows, self.index = rows, index

    def __getitem__(self, index: slice) -> Part:
        if isinstance(self.index, torch.Tensor):
            return Part(self.rows, self.index[index])
        start = self.index.start or 0
        assert self.index.stop is None
        return Part(self.rows, slice(start + index.start, start + index.stop))

    def taken(self) -> Tensor:
        return self.rows.x[self.index]


class Span(Lazy):
    """A matrix kept as the coefficients c of the rows x of a client, such as a gradient c^T x, which is computed where
    it is needed. `index`: the rows that it uses.
    """

    __slots__ = ("c", "index", "rows")

    def __init__(self, rows: ClientRows, c: Tensor, index: Index = EVERY) -> None:
        self.rows, self.c, self.index = rows, c, index  # c: [rows, out]

    @property
    def alike(self) -> Matrix:
        return self.c

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.c.shape[1], self.rows.x.shape[1]))

    def dense(self) -> Tensor:
        return fast.across(self.c, self.rows.x[self.index])

    def coefficients(self, factor: float) -> Tensor:
        """Coefficient of every row x of the client in factor * c^T x; 0 for rows that `index` leaves out."""
        if self.index is EVERY:
            return self.c * factor
        if isinstance(self.index, slice):
            start, stop, _ = self.index.indices(len(self.rows.x))
            return torch.nn.functional.pad(self.c * factor, (0, 0, start, len(self.rows.x) - stop))
        none = self.c.new_zeros(len(self.rows.x), self.c.shape[1])
        return none.index_add(0, self.index, self.c, alpha=factor)

    def on(self, c: Tensor, factor: float) -> Tensor:
        """Adds `factor` times these coefficients to `c`, the coefficients of all rows, in place."""
        if isinstance(self.index, slice):
            c[self.index].add_(self.c, alpha=factor)
            return c
        return c.index_add_(0, self.index, self.c, alpha=factor)

    def added_to(self, y: Matrix, factor: float) -> Matrix:
        if isinstance(y, Span) and y.rows is self.rows:
            return Span(self.rows, self.on(y.coefficients(1.0), factor))
        if isinstance(y, Moved) and y.along(self.rows):
            return Moved(y.start, Span(self.rows, self.on(y.way.coefficients(1.0), factor)))
        if isinstance(y, Lazy) or self.c.dtype != y.dtype:
            return super().added_to(y, factor)
        return fast.added(y, self.c, self.rows.x[self.index], factor)

    def add_to(self, y: Matrix, factor: float) -> Matrix:
        if isinstance(y, Moved) and y.along(self.rows):
            self.on(y.way.c, factor)
            return y
        return super().add_to(y, factor)

    def scaled(self, factor: float | Tensor) -> Span:
        return Span(self.rows, self.c * factor, self.index)

    def finite(self) -> bool:
        """True if all numbers are finite; where the factors are too small to overflow, the product is not computed."""
        # exact because no number of c^T x is larger than this bound; a NaN fails the comparison
        most = _largest(self.c) * self.rows.largest * len(self.c)
        return most < torch.finfo(self.dtype).max / 2 or super().finite()

    def kept(self) -> Span:
        """A copy of this matrix with coefficients of its own, because later steps write into those of the original."""
        return Span(self.rows, self.c.clone(), self.index)


class Scaled(Lazy):
    """The product factor * x, not computed yet."""

    __slots__ = ("factor", "x")

    def __init__(self, x: Tensor, factor: float) -> None:
        self.x, self.factor = x, factor

    @property
    def alike(self) -> Matrix:
        return self.x

    @property
    def shape(self) -> torch.Size:
        return self.x.shape

    def dense(self) -> Tensor:
        return self.x * self.factor

    def added_to(self, y: Matrix, factor: float) -> Matrix:
        return torch.add(dense(y), self.x, alpha=factor * self.factor)

    def add_to(self, y: Matrix, factor: float) -> Matrix:
        return dense(y).add_(self.x, alpha=factor * self.factor)

    def scaled(self, factor: float | Tensor) -> Scaled:
        if isinstance(factor, float):
            return Scaled(self.x, factor * self.factor)
        return Scaled(self.x * factor, self.factor)

    def finite(self) -> bool:
        # exact because a factor of at most 1 makes no finite number infinite
        return finite(self.x) if abs(self.factor) <= 1 else super().finite()

    def kept(self) -> Scaled:
        return self


class Moved(Lazy):
    """The sum start + way; it is computed, into memory of its own, once an operation needs it as a tensor."""

    __slots__ = ("_whole", "start", "way")

    def __init__(self, start: Tensor, way: Span | Scaled) -> None:
        self.start, self.way = start, way
        self._whole: Tensor | None = None

    @property
    def alike(self) -> Matrix:
        return self.start

    @property
    def shape(self) -> torch.Size:
        return self.start.shape

    def dense(self) -> Tensor:
        if isinstance(self.way, Span):  # later steps may still write into it
            return fast.added(self.start, self.way.c, self.way.rows.x)
        if self._whole is None:
            self._whole = self.way.added_to(self.start, 1.0)
        return self._whole

    def along(self, rows: ClientRows) -> bool:
        """True if `way` is a combination of these rows."""
        return isinstance(self.way, Span) and self.way.rows is rows


def take(x: Tensor, rows: Tensor) -> Tensor:
    """The rows x[rows], with a rule for vmap that copies whole rows, where torch's own goes over single numbers."""
    return for_all(_taken, x, rows) if vmapping() else x.index_select(0, rows)


def _taken(clients: int, x: Operand, rows: Operand) -> Tensor:
    own, which = x.of(clients), rows.of(clients)
    at = torch.arange(clients, device=own.device)[:, None] * own.shape[1] + which
    return own.flatten(0, 1).index_select(0, at.flatten()).view(*which.shape, *own.shape[2:])


def _largest(x: Tensor) -> float:
    """The largest absolute value; NaN if there is one."""
    if not x.numel():
        return 0.0
    low, high = x.aminmax()
    return max(abs(float(low)), abs(float(high)))


def finite(value: Matrix) -> bool:
    """True if all numbers are finite. One pass usually suffices: exact because infinity and NaN survive every sum."""
    if isinstance(value, Lazy):
        return value.finite()
    return bool(value.sum().isfinite()) or bool(value.isfinite().all())


def dense(value: Matrix) -> Matrix:
    """The value as a tensor, or a list of values, each as a tensor: lazy matrices are computed."""
    if isinstance(value, Lazy):
        return value.dense()
    return type(value)(dense(v) for v in value) if isinstance(value, list | tuple) else value


def _operator(name: str) -> Callable[..., Any]:
    return lambda self, *rest: getattr(self.dense(), name)(*dense(rest))


ARITHMETIC = ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "neg", "pow", "matmul", "rmatmul", "abs")
for _name in (*ARITHMETIC, "getitem", "len"):
    setattr(Lazy, f"__{_name}__", _operator(f"__{_name}__"))
