"""Evaluation after a round, on all test examples or on each client's own. Each model of the server is scored with each
chosen way of personalisation; the first way of the first model gives the headline score.

Only the evaluator sees the scores; nothing here is sent. Scores of single clients are listed up to 10,000 clients;
beyond, only their spread is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch

from sordino.errors import ConfigError, UnsoundGuarantee
from sordino.fast.parallel import Threads, heavy
from sordino.metrics import HEADLINES, MEASURED, Scores, ScoreSpread, Way, measured
from sordino.metrics.measures import Metrics, last_scored
from sordino.metrics.scores import MetricFunction, own_scores, scored
from sordino.partition.row_numbers import Array, RowNumbers
from sordino.tasks.personalise import OWN, PLAIN, OwnModels, ways
from sordino.tree import Tree
from sordino.types import Examples, Params, Task

# (round, models, ways) -> the means of each client's metrics, way after way of model after model
Score = Callable[[int, Sequence[Params], Sequence[str]], Mapping[int, Sequence[float]]]


class Modelled(Protocol):
    """Interface of an algorithm for its evaluation: it gives the models in a server state."""

    def models(self, s: Any) -> Mapping[str, Params]: ...


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of the models of a run after a round."""

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
    """The way of personalisation behind the headline score; "plain" if the method's own way is the global model as it
    is."""
    first = next(iter(ways), "global")
    own = (algorithm.own_way or OWN) if isinstance(algorithm, OwnModels) else PLAIN
    effective = own if first == OWN else first
    return next(way for way in MEASURED if way == effective)


def measured_model(named: Sequence[str]) -> str:
    """Name of the server's model behind the headline score; "" for the global model."""
    return "" if not named or named[0] == "global" else named[0]


def measured_by(run: Metrics, algorithm: Modelled, ways: Sequence[str], models: Sequence[str]) -> str:
    """Description of the model behind a run's scores: the one scored last, or at the start the one to be scored."""
    last = last_scored(run)
    return measured(measured_way(algorithm, ways), measured_model(models)) if last is None else last.measured


def taught_way(algorithm: Modelled, asked: Sequence[str]) -> str | None:
    """The first way of personalisation that a new client can use, since it needs the client's examples only, not its
    state in the run; None if there is none.
    """
    own = algorithm.own_way if isinstance(algorithm, OwnModels) else None
    each = (own if way == OWN else way for way in ways(algorithm, asked))
    return next((way for way in each if way not in (None, PLAIN)), None)


def _spread(found: Scores) -> Scores:
    """The scores without the list of single clients; only the headline score keeps that list."""
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
    """Refuses scores that the task lacks, and scores that need one model for all clients where each client has its own.
    `own`: a user's metrics."""
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


if TYPE_CHECKING:
    from torch import Tensor


LISTED = 10_000  # clients
AT_ONCE = 512  # rows
PART = 2048  # rows of one thread: whole passes of every task


class _TestedClients(NamedTuple):
    """The clients that have test examples: their ids, the rows of these examples client by client, and how many each
    client has.
    """

    clients: Array
    rows: Tensor
    sizes: Tensor


@dataclass(frozen=True)
class Evaluator:
    """Evaluator of models on the test examples of all clients."""

    task: Task
    test: Examples
    rows: Sequence[Array]  # of each client: its share of the test examples
    asked: tuple[str, ...] = ()  # scores beside the task's own, of all test examples together
    metrics: Mapping[str, MetricFunction] = field(default_factory=dict)  # of a user's own
    threads: Threads[Task] | None = None  # None: one thread

    def __call__(self, params: Params) -> Scores:
        """Scores of one model for all clients: global means, and mean, standard deviation and worst tenth over the
        clients that have test examples.
        """
        more = own_scores(self.metrics, self.task, params, self.test)
        found = self._scored(params)
        return found.beside(own=more) if more else found

    def _scored(self, params: Params) -> Scores:
        scores, own = self._values(params), self._tested
        means = [values.mean().double() for values in scores.values()]
        if not len(own.clients):
            found = dict(zip(scores, torch.stack(means).tolist(), strict=True))
            return Scores(**found, **self._more(params))
        each = scores[next(iter(scores))].double()[own.rows]
        each = torch.segment_reduce(each, "mean", lengths=own.sizes, unsafe=True)
        return self._summary(list(scores), means, each).beside(**self._more(params))

    def _values(self, params: Params) -> Mapping[str, Tensor]:
        """One value of each metric for every test example."""
        if self.threads is None:
            return self.task.score(params, self.test)
        weights = sum(value.numel() for value in params.values())
        parts = [Examples(*part) for part in zip(*(torch.split(t, PART) for t in self.test), strict=True)]
        found = list(
            self.threads.map(
                lambda task, part: task.score(params, part), parts, lambda part: heavy(weights, len(part.y))
            )
        )
        return {name: torch.cat([one[name] for one in found]) for name in found[0]}

    def _more(self, params: Params) -> dict[str, Any]:
        """Scores over all test examples beside accuracy and loss: those that were requested, and the best constant
        prediction's.
        """
        task, x = self.task, self.test.x
        beside = {"majority" if task.metrics[0] == "accuracy" else "baseline": self._constant}
        asked = tuple(dict.fromkeys((*task.always, *self.asked)))
        if not asked:
            return beside
        found = task.answers(torch.cat([task.predict(params, part) for part in torch.split(x, AT_ONCE)]))
        return beside | scored(asked, found.cpu().numpy(), task.truth(self.test.y).cpu().numpy())

    def of_each(self, found: Mapping[int, Sequence[float]]) -> Scores:
        """Scores where each client has a model of its own, from the means of every client that has test examples."""
        own, names = self._tested, list(self.task.metrics)
        if not len(own.clients):
            raise ConfigError(
                "no client has test examples",
                why="the clients' own models are tested on the clients' own test examples",
                fix="set evaluation.personal = [], or hold back some examples of each client for testing",
                code="nobody-is-tested",
            )
        each = torch.tensor([found[k] for k in own.clients.tolist()], dtype=torch.float64)
        sizes = own.sizes.double()[:, None]
        return self._summary(names, list((each * sizes).sum(0) / sizes.sum()), each[:, 0])

    def _summary(self, names: list[str], means: list[Tensor], each: Tensor) -> Scores:
        own, metric = self._tested, names[0]
        headline = HEADLINES[metric]
        worst = each.topk(-(-len(each) // 10), largest=not headline.higher).values
        listed = each if len(self.rows) <= LISTED else each[:0]
        spread = torch.stack([each.mean(), each.std(correction=0), worst.mean()])
        found = torch.cat([torch.stack(means), spread, listed]).tolist()  # everything leaves the device at once
        mean, std, tenth = found[len(names) : len(names) + 3]
        single: tuple[float | None, ...] | None = None
        if len(self.rows) <= LISTED:
            known = dict(zip(own.clients.tolist(), found[len(names) + 3 :], strict=True))
            single = tuple(known.get(k) for k in range(len(self.rows)))
        clients = ScoreSpread(metric=headline.name, mean=mean, std=std, worst_tenth=tenth, each=single)
        return Scores(**dict(zip(names, found[: len(names)], strict=True)), clients=clients)

    @cached_property
    def _constant(self) -> float | None:
        """Headline metric of the best constant prediction, as a baseline."""
        return self.task.constant(self.test)

    @cached_property
    def _tested(self) -> _TestedClients:
        rows = RowNumbers.of(self.rows)
        sizes, device = np.asarray(rows.sizes), self.test.y.device
        clients = np.flatnonzero(sizes)
        held = torch.as_tensor(sizes[clients], device=device)
        return _TestedClients(clients, torch.as_tensor(rows.numbers, device=device), held)
