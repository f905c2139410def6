"""Declared arrays: the names, shapes and types of the numbers that may pass between a server and its clients."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.errors import ConfigError, WireError
from sordino.types import Params

Arrays: TypeAlias = dict[str, NDArray[Any]]
# float16 rounds by so much that a clipped change would be longer than the clip
REAL = tuple(map(np.dtype, ("float32", "float64")))


class DeclaredArrays:
    """Names, shapes and types of a model's arrays, as a user declares them: a `state_dict`, or a dictionary of arrays.

    Arrays that differ in any of these are refused, with an error text that repeats none of their values.
    """

    def __init__(self, model: Mapping[str, Any]) -> None:
        arrays = {
            name: one.detach().cpu().numpy() if isinstance(one, torch.Tensor) else np.asarray(one)
            for name, one in model.items()
        }
        wrong = [name for name, one in arrays.items() if one.dtype not in REAL]
        if wrong or not arrays:
            raise ConfigError(
                f"the declared array {wrong[0]!r} is not of float32 or float64" if wrong else "no arrays are declared",
                why="a clip and noise are for real numbers, and the rounding of shorter ones would exceed the clip; "
                "the counter of a BatchNorm layer would leave without noise",
                fix="send the model as float32; in a network, use GroupNorm instead of BatchNorm",
                code="array-not-real",
            )
        self._kinds = {name: (one.shape, one.dtype) for name, one in arrays.items()}

    @classmethod
    def described(cls, model: Mapping[str, Sequence[Any]]) -> Self:
        """Declaration from a configuration file: the shape and type of each array."""
        return cls({name: np.empty(shape, dtype) for name, (shape, dtype) in model.items()})

    @property
    def zero(self) -> Params:
        return {name: torch.from_numpy(np.zeros(*kind)) for name, kind in self._kinds.items()}

    @property
    def coordinates(self) -> int:
        return sum(math.prod(shape) for shape, _ in self._kinds.values())

    def checked(self, arrays: object) -> Arrays:
        """The arrays, in the order of the declaration; refused where any of them differs from it."""
        if not isinstance(arrays, Mapping) or arrays.keys() != self._kinds.keys():
            raise undeclared()
        found = {name: arrays[name] for name in self._kinds}
        for name, one in found.items():
            if type(one) is not np.ndarray or (one.shape, one.dtype) != self._kinds[name]:
                raise undeclared()
        return found

    def from_npy(self, files: Mapping[str, bytes]) -> Arrays:
        """Arrays from the bytes of .npy files, each compared with the declaration before its numbers take memory."""
        if files.keys() != self._kinds.keys():
            raise undeclared()
        return {name: _array(files[name], *kind) for name, kind in self._kinds.items()}

    def tensors(self, arrays: object) -> Params:
        return {name: torch.from_numpy(one.copy()) for name, one in self.checked(arrays).items()}

    def change(self, before: object, after: object) -> Params:
        """The change from one model to another. Where it is not finite, the clip makes it zero."""
        old, new = self.checked(before), self.checked(after)
        with np.errstate(all="ignore"):
            return {name: torch.from_numpy(np.asarray(new[name] - old[name])) for name in old}

    def moved(self, before: object, change: Params) -> Arrays:
        """The model `before`, with a change added to it."""
        return {name: np.asarray(old + change[name].numpy()) for name, old in self.checked(before).items()}


def _array(data: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        file = io.BytesIO(data)
        if np.lib.format.read_magic(file) != (1, 0):
            raise undeclared()
        told, by_column, kind = np.lib.format.read_array_header_1_0(file)
    except Exception:  # of a parser that reads what a stranger sent
        raise undeclared() from None
    start, numbers = file.tell(), math.prod(shape)
    if (told, kind) != (shape, dtype) or len(data) != start + numbers * dtype.itemsize:
        raise undeclared()
    return np.frombuffer(data, dtype, numbers, start).reshape(shape, order="F" if by_column else "C")


def undeclared() -> WireError:
    return WireError(
        "a model came that is not the declared one",
        why="what is not exactly the declared arrays could carry data past the clip and the noise",
        fix="declare the arrays that are trained, and send these alone, with their names, shapes and types",
        code="array-not-declared",
    )
