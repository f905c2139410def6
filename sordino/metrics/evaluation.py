"""Evaluation after a round: of each of the server's models, as every way of personalisation makes it a client's own.
The first way of the first model is the headline; the others stand beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sordino.errors import ConfigError, UnsoundGuarantee
from sordino.metrics.accuracy import Evaluator
from sordino.metrics.headlines import MEASURED, Way, measured
from sordino.metrics.measures import Metrics, last_scored
from sordino.metrics.rows import Scores
from sordino.tasks.personalise import OWN, PLAIN, WAYS, OwnModels, ways
from sordino.tree import Tree
from sordino.types import Params, Task

# (round, models, ways) -> the means of each client's metrics, way after way of model after model
Score = Callable[[int, Sequence[Params], Sequence[str]], Mapping[int, Sequence[float]]]


class Modelled(Protocol):
    """An algorithm, as far as evaluation uses it."""

    def models(self, s: Any) -> Mapping[str, Params]: ...


@dataclass(frozen=True)
class Evaluation:
    algorithm: Modelled
    evaluator: Evaluator
    models: tuple[str, ...]  # () for the first one
    ways: tuple[str, ...]  # () as the algorithm says

    def __call__(self, t: int, server: Tree, score: Score) -> Scores:
        held = self.algorithm.models(server)
        names = self.models or tuple(held)[:1]
        found = (
            self._scored(t, held, names, score)
            if self.personal
            else {name: self.evaluator(held[name]) for name in names}
        )
        first, *others = found
        way, model = measured_way(self.algorithm, self.personal), measured_model(self.models)
        return found[first].beside(way=way, model=model, also={name: _spread(found[name]) for name in others})

    @property
    def personal(self) -> tuple[str, ...]:
        """The ways in which clients personalise a model; empty where all clients use the same model."""
        return ways(self.algorithm, self.ways)

    def _scored(self, t: int, held: Mapping[str, Params], names: Sequence[str], score: Score) -> dict[str, Scores]:
        each, count = score(t, [held[name] for name in names], self.personal), len(self.evaluator.task.metrics)
        labels = [name if way == OWN else f"{name}, {way}" for name in names for way in self.personal]
        return {
            label: self.evaluator.of_each({k: row[i * count : (i + 1) * count] for k, row in each.items()})
            for i, label in enumerate(labels)
        }


def check_shared(ways: Sequence[str]) -> None:
    """Refuses to share scores of personalised models with the server."""
    if taught := [way for way in ways if way != PLAIN]:
        raise UnsoundGuarantee(
            f"shared scores of personalised models ({', '.join(taught)})",
            why="such a model learns from training examples, as often as the server asks: its exact scores would "
            "reveal them, and no noise covers scores",
            fix='join without --share-scores, or agree on evaluation.personal = ["plain"]',
            code="scores-of-own-models",
        )


def measured_way(algorithm: Modelled, ways: Sequence[str]) -> Way:
    """The way of personalisation behind the headline; "plain" where a method's own way is to use the global model as it
    is.
    """
    first = next(iter(ways), "global")
    own = (algorithm.own_way or OWN) if isinstance(algorithm, OwnModels) else PLAIN
    effective = own if first == OWN else first
    return next(way for way in MEASURED if way == effective)


def measured_model(named: Sequence[str]) -> str:
    """The server's model behind the headline; "" for the global model."""
    return "" if not named or named[0] == "global" else named[0]


def measured_by(run: Metrics, algorithm: Modelled, ways: Sequence[str], models: Sequence[str]) -> str:
    """The model that was scored last in a run or, before the first evaluation, the one that will be."""
    last = last_scored(run)
    return measured(measured_way(algorithm, ways), measured_model(models)) if last is None else last.measured


def taught_way(algorithm: Modelled, asked: Sequence[str]) -> str | None:
    """The first of the ways of personalisation that needs a client's examples alone and no state of the client; None
    where none does.
    """
    own = algorithm.own_way if isinstance(algorithm, OwnModels) else None
    each = (own if way == OWN else way for way in ways(algorithm, asked))
    return next((way for way in each if way not in (None, PLAIN)), None)


def _spread(found: Scores) -> Scores:
    """The scores without the list of single clients, which only the headline keeps."""
    return found if found.clients is None else found.beside(clients=found.clients.beside(each=None))


def check_models(names: Sequence[str], held: Mapping[str, Params]) -> None:
    """Refuses models that the server does not hold."""
    for name in names:
        if name not in held:
            raise ConfigError(
                f"evaluation.models names {name!r}",
                why="the server of this algorithm holds no such model",
                fix=f"use one of {', '.join(held)}",
                code="unknown-model-of-server",
            )


def check_scores(asked: Sequence[str], own: Sequence[str], task: Task, personal: Sequence[str]) -> None:
    """Refuses scores that the task lacks, and scores of one model where each client has its own. `own`: a user's
    metrics.
    """
    if wrong := [name for name in asked if name not in task.scores]:
        raise ConfigError(
            f"evaluation.scores = {list(asked)!r}: this task has no {wrong[0]}",
            why=f"it can be scored by {', '.join(task.scores)}"
            if task.scores
            else "it has no labels to be compared with",
            fix="leave the others out",
            code="score-of-another-task",
        )
    for name, wanted in (("scores", asked), ("metrics", own)) if personal else ():
        if not wanted:
            continue
        raise ConfigError(
            f"evaluation.{name} = {list(wanted)!r} where each client has a model of its own",
            why="these scores are of one model on all test examples together: no mean over clients equals them",
            fix=f"set evaluation.personal = [] with an algorithm that trains one model, or leave evaluation.{name} out",
            code="scores-of-one-model",
        )


def check(ways: Sequence[str]) -> None:
    """Refuses unknown ways of personalisation."""
    for way in ways:
        if way != OWN and way not in WAYS:
            raise ConfigError(
                f"evaluation.personal names {way!r}",
                why="there is no such way to personalise the model",
                fix=f"use one of {', '.join([OWN, *WAYS])}",
                code="unknown-way",
            )
