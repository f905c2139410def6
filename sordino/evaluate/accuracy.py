"""How good: on all test examples, and on each client's own. Seen by the evaluator only; nothing here is sent to anyone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sordino.types import Examples, Params, Task


@dataclass(frozen=True)
class Evaluator:
    task: Task
    test: Examples
    rows: Sequence[Tensor]  # of each client: its share of the test examples

    def __call__(self, params: Params) -> dict[str, Any]:
        """Global means, and mean, standard deviation and worst tenth over the clients that have test examples."""
        scores = self.task.score(params, self.test)
        found: dict[str, Any] = {name: float(values.mean()) for name, values in scores.items()}
        metric = next(iter(scores))
        each = [float(scores[metric][rows].mean()) if len(rows) else None for rows in self.rows]
        known = torch.tensor([value for value in each if value is not None], dtype=torch.float64)
        if len(known):
            tenth = max(1, -(-len(known) // 10))
            worst = known.sort(descending=metric == "loss").values[:tenth]
            found["clients"] = {
                "metric": metric,
                "mean": float(known.mean()),
                "std": float(known.std(correction=0)),
                "worst_tenth": float(worst.mean()),
                "each": each,
            }
        return found
