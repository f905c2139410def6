"""A stage for one field of an upload; the other fields are sent as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from sordino.errors import ConfigError
from sordino.privacy.uplink.stages import Stage
from sordino.tree import Tree
from sordino.types import Bound, Grant, Params


@dataclass(frozen=True)
class OneField(Stage):
    """A stage for one field of an upload. It bounds nothing about the upload as a whole, because the other fields
    stay as they are.
    """

    stage: Stage
    field: str

    def bound(self, bound: Bound, coordinates: int) -> Bound:
        return Bound()

    def encode(self, x: object, bound: Bound, grant: Grant) -> Tree:
        return self._with(x, self.stage.encode(getattr(x, self.field), bound, grant))

    def shape(self, x: object) -> Tree:
        return self._with(x, self.stage.shape(getattr(x, self.field)))

    def decode(self, y: object, like: object) -> Tree:
        return self._with(y, self.stage.decode(getattr(y, self.field), getattr(like, self.field)))

    @property
    def learns(self) -> bool:
        return self.stage.learns

    def begin(self, x: object, model: Params) -> Tree:
        return self.stage.begin(getattr(x, self.field), model)

    def at(self, t: int, public: Tree) -> Self:
        return replace(self, stage=self.stage.at(t, public))

    def learn(self, mean: object, like: object, std: float, each: Sequence[object]) -> Tree:
        mine = [getattr(upload, self.field) for upload in each]
        return self.stage.learn(getattr(mean, self.field), getattr(like, self.field), std, mine)

    def weight(self, size: int, largest: int, precision: float = 1.0) -> float:
        if (weight := self.stage.weight(size, largest, precision)) != 1:
            raise ConfigError(
                "a weight for one field of an upload only",
                why="the whole sum is divided by one number, so all fields must have the same weight",
                fix="put the weight on the whole upload",
                code="weight-of-a-field",
            )
        return weight

    def _with(self, x: Tree, value: Tree) -> Any:
        return x._replace(**{self.field: value})
