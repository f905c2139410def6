"""Shape of a generator and of its output, known without building it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from sordino.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

GeneratorState: TypeAlias = "dict[str, Tensor]"
BETAS = (0.5, 0.999)  # of Adam, by which generators are trained


class Trained(NamedTuple):
    """A trained generator's state and log: one mapping per epoch or window of steps."""

    state: GeneratorState
    log: tuple[Mapping[str, float], ...]


@dataclass(frozen=True)
class GeneratorShape:
    """Kind, input and output of a generator. `split`: number of generators among which the classes are divided, with
    consecutive ids each.
    """

    kind: Literal["strong", "weak", "small"]
    classes: int
    noise: int
    side: int = 32
    channels: int = 3
    cond: Literal["mul", "overwrite"] = "mul"
    split: int = 1

    def __post_init__(self) -> None:
        if self.side % 4 or self.side < 8 or (self.kind == "strong" and self.side != 32):
            raise ConfigError(
                f"a {self.kind!r} generator cannot make images of {self.side}x{self.side}",
                why="it doubles the size of an image a fixed number of times",
                fix='use side = 32 for "strong", and a multiple of 4, at least 8, for the others',
                code="generator-side",
            )
        if self.classes % self.split:
            raise ConfigError(
                f"{self.classes} classes cannot be divided equally among {self.split} generators",
                why="each generator draws the same number of classes",
                fix=f"use a number of generators that divides {self.classes}",
                code="generator-split",
            )
        if self.cond == "overwrite" and self.noise < self.per:
            raise ConfigError(
                f"{self.noise} numbers of noise are too few for {self.per} classes",
                why='cond = "overwrite" writes the label over the first numbers of the noise, one for each class',
                fix=f'use at least {self.per} numbers of noise, or cond = "mul"',
                code="generator-noise",
            )

    @property
    def per(self) -> int:
        """Number of classes of each generator."""
        return self.classes // self.split

    def one(self) -> GeneratorShape:
        return replace(self, classes=self.per, split=1)
