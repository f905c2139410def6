"""How good: on all test examples, and on each client's own. Seen by the evaluator only; nothing here is sent to anyone.

Single clients are listed up to 10,000 of them; of more, the spread is told and the list is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sordino.partition.rows import Array, Rows
from sordino.types import Examples, Params, Task

LISTED = 10_000  # clients


class _Tested(NamedTuple):
    """The clients that have test examples, and these, client by client."""

    clients: Array
    rows: Tensor
    sizes: Tensor


@dataclass(frozen=True)
class Evaluator:
    task: Task
    test: Examples
    rows: Sequence[Any]  # of each client: its share of the test examples

    def __call__(self, params: Params) -> dict[str, Any]:
        """Global means, and mean, standard deviation and worst tenth over the clients that have test examples."""
        scores = self.task.score(params, self.test)
        metric, own = next(iter(scores)), self._tested
        numbers = [values.mean().double() for values in scores.values()]
        if not len(own.clients):
            return dict(zip(scores, torch.stack(numbers).tolist(), strict=True))
        each = torch.segment_reduce(scores[metric].double()[own.rows], "mean", lengths=own.sizes, unsafe=True)
        worst = each.topk(-(-len(each) // 10), largest=metric == "loss").values
        numbers += [each.mean(), each.std(correction=0), worst.mean()]
        listed = each if len(self.rows) <= LISTED else each[:0]
        found = torch.cat([torch.stack(numbers), listed]).tolist()  # everything leaves the device at once
        *means, mean, std, tenth = found[: len(numbers)]
        clients = {"metric": metric, "mean": mean, "std": std, "worst_tenth": tenth}
        if len(self.rows) <= LISTED:
            known = dict(zip(own.clients.tolist(), found[len(numbers) :], strict=True))
            clients["each"] = [known.get(k) for k in range(len(self.rows))]
        return {**dict(zip(scores, means, strict=True)), "clients": clients}

    @cached_property
    def _tested(self) -> _Tested:
        rows = Rows.of(self.rows)
        sizes, device = np.asarray(rows.sizes), self.test.y.device
        clients = np.flatnonzero(sizes)
        held = torch.as_tensor(sizes[clients], device=device)
        return _Tested(clients, torch.as_tensor(rows.numbers, device=device), held)
