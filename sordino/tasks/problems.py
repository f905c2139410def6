"""What is predicted, as [task] of an experiment says it. Whatever shapes a loss is declared there: none of it is
learned from rows, because no budget would pay for that.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from sordino.errors import ConfigError
from sordino.tasks.classification import Classification
from sordino.tasks.losses import WeightedCrossEntropy
from sordino.tasks.own_loss import LossFunction
from sordino.tasks.supervised import HowRun, Supervised


class Problem(ABC):
    """What the labels of a run are, and what of the library can work with them."""

    @property
    @abstractmethod
    def needs_task_loss(self) -> str:
        """Why a method with losses of its own would not learn this; nothing where it would."""

    @abstractmethod
    def outputs(self, classes: int) -> int:
        """How many numbers the network gives for an example, where it has one head."""

    @abstractmethod
    def built(self, net: nn.Module, how: HowRun, loss: LossFunction | None, classes: Sequence[str]) -> Supervised:
        """The network with its loss; `loss`: of somebody's own, in place of the usual one."""


@dataclass(frozen=True)
class Classify(Problem):
    """One class of several."""

    class_weights: dict[str, float] | tuple[float, ...] | str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.class_weights, str):
            raise ConfigError(
                f"task.class_weights = {self.class_weights!r}",
                why="how often a class occurs stands in the clients' secret rows, and no budget pays for counting it",
                fix="declare numbers: task.class_weights = {ill = 5.0, well = 1.0}, or a list in the order of the "
                "classes",
                code="weights-from-rows",
            )
        numbers = self.class_weights.values() if isinstance(self.class_weights, Mapping) else self.class_weights or ()
        if wrong := [weight for weight in numbers if not 0 < weight < math.inf]:
            raise ConfigError(
                f"task.class_weights has {wrong[0]!r}",
                why="a weight is a finite number above 0",
                fix="leave a class out of the data where it should play no part",
                code="bad-class-weight",
            )

    @property
    def needs_task_loss(self) -> str:
        return "" if self.class_weights is None else "class weights"

    def outputs(self, classes: int) -> int:
        return classes

    def built(self, net: nn.Module, how: HowRun, loss: LossFunction | None, classes: Sequence[str]) -> Classification:
        if self.class_weights is not None:
            if loss is not None:
                raise ConfigError(
                    "task.class_weights beside a loss of your own",
                    why="weights multiply the cross-entropy of an example, which your loss replaces",
                    fix="weigh examples inside your loss, or leave one of both out",
                    code="weights-and-own-loss",
                )
            loss = WeightedCrossEntropy(self._weights(classes))
        return Classification(net, **how._asdict(), labels=len(classes), loss=loss)

    def _weights(self, classes: Sequence[str]) -> list[float]:
        """One for each class, in their order."""
        given = self.class_weights
        if isinstance(given, Mapping) and given.keys() == set(classes):
            return [given[name] for name in classes]
        if isinstance(given, tuple) and len(given) == len(classes):
            return list(given)
        raise ConfigError(
            f"task.class_weights = {given!r}",
            why=f"each class needs one weight, and the classes are {', '.join(classes)}",
            fix="name all of them: " + ", ".join(f"{name} = 1.0" for name in classes),
            code="weights-do-not-fit",
        )


PROBLEMS: dict[str, type[Problem]] = {"classification": Classify}
