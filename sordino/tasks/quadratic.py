"""Quadratic task with an optimum in closed form, for checking properties of federated optimisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from sordino import keys
from sordino.errors import ConfigError
from sordino.privacy.readers.per_example_gradients import slow_medians, slow_sum
from sordino.types import Examples, Losses, Params


class Quadratic:
    """Quadratics f(w; [a, b]) = 1/2 sum a (w - b)^2, for which the optimum of any mixture of clients has a closed
    form.
    """

    name = "quadratic"
    mixes_examples = remembers = ""
    statistics = ()
    feature_radius = None
    metrics = ("loss",)
    scores: tuple[str, ...] = ()
    always: tuple[str, ...] = ()
    flops = room = 0
    pads = False
    threads = learns_features = True

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def init(self, key: keys.Key) -> Params:
        return {"w": torch.zeros(self.dim, dtype=torch.float64)}

    def state_dict(self, params: Params) -> Params:
        return params

    def inputs(self, x: Tensor) -> Tensor:
        return x

    def losses(self, params: Params, x: Tensor, y: Tensor, keys: Tensor) -> Tensor:
        a, b = x.to(torch.float64).chunk(2, dim=1)
        return 0.5 * (a * (params["w"] - b) ** 2).sum(1)

    def ready(self, x: Tensor, y: Tensor, whole: bool = False) -> tuple[Tensor, Tensor]:
        return x, y

    def gradient(
        self, params: Params, x: Tensor, y: Tensor, draws: Callable[[], Tensor], share: Tensor | None = None
    ) -> Params:
        a, b = x.to(torch.float64).chunk(2, dim=1)
        return {"w": (a * (params["w"] - b)).mean(0)}

    def stacks(self, n: int) -> int:
        return 1

    def pooled(self, params: Params, x: Tensor, y: Tensor, clip: float, order: int) -> None:
        raise AssertionError("no room was offered")

    def _without_features(self, *asked: object, **more: object) -> Any:
        raise ConfigError(
            "quadratics have no classes and no features",
            why="the algorithm or the evaluation that was chosen needs both",
            fix="use data with classes (another data.source), or choose another algorithm",
            code="model-without-head",
        )

    module = features = head = look = image = _without_features
    classes = labels = width = property(_without_features)

    def predict(self, params: Params, x: Tensor) -> Tensor:
        return params["w"].expand(len(x), -1)

    def score(self, params: Params, examples: Examples) -> Mapping[str, Tensor]:
        return {"loss": self.losses(params, examples.x, examples.y, torch.zeros(0)).double()}

    def answers(self, outputs: Tensor) -> Tensor:
        return outputs

    def truth(self, y: Tensor) -> Tensor:
        return y

    def constant(self, examples: Examples) -> None:
        return None

    def still(self, *asked: object, params: Params | None = None) -> AbstractContextManager[None]:
        return nullcontext()

    def median_sum(
        self, losses: Losses, params: Params, batch: Examples, keys: Tensor
    ) -> tuple[Params, dict[str, float]]:
        return slow_medians(losses, params, batch, keys)

    def clipped_sum(
        self, losses: Losses, params: Params, batch: Examples, keys: Tensor, clip: float, order: int, solo: bool = False
    ) -> Params:
        return slow_sum(losses, params, batch, keys, clip, order, solo)
