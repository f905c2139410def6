"""Evaluation of models on all test examples, and on each client's own. Only the evaluator sees the scores; nothing here
is sent.

Scores of single clients are listed up to 10,000 clients; beyond, only their spread is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from sordino.errors import ConfigError
from sordino.metrics.headlines import HEADLINES
from sordino.metrics.rows import Scores, Spread
from sordino.metrics.scores import MetricFunction, measured, scored
from sordino.partition.row_numbers import Array, RowNumbers
from sordino.tasks.threads import Threads, heavy
from sordino.types import Examples, Params, Task

if TYPE_CHECKING:
    from torch import Tensor


LISTED = 10_000  # clients
AT_ONCE = 512  # rows
PART = 2048  # rows of one thread: whole passes of every task


class _Tested(NamedTuple):
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
    threads: Threads | None = None  # None: one thread

    def __call__(self, params: Params) -> Scores:
        """Scores of one model for all clients: global means, and mean, standard deviation and worst tenth over the
        clients that have test examples.
        """
        more = measured(self.metrics, self.task, params, self.test)
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
        """The headline metric of the best constant prediction, and the requested scores over all test examples."""
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
        clients = Spread(metric=headline.name, mean=mean, std=std, worst_tenth=tenth, each=single)
        return Scores(**dict(zip(names, found[: len(names)], strict=True)), clients=clients)

    @cached_property
    def _constant(self) -> float | None:
        """The headline metric of the best constant prediction."""
        return self.task.constant(self.test)

    @cached_property
    def _tested(self) -> _Tested:
        rows = RowNumbers.of(self.rows)
        sizes, device = np.asarray(rows.sizes), self.test.y.device
        clients = np.flatnonzero(sizes)
        held = torch.as_tensor(sizes[clients], device=device)
        return _Tested(clients, torch.as_tensor(rows.numbers, device=device), held)
