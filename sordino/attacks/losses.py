"""Was this example trained on? From its loss under the model that was uploaded.

by_loss  a low loss says yes (Yeom, Giacomelli, Fredrikson and Jha, CSF 2018)
ratio    a loss that is lower than under shadow models without the example, and like those with it (Carlini et al., S&P
         2022)
"""

from __future__ import annotations

import torch
from torch import Tensor

from sordino.audits.separation import Separation, separation
from sordino.errors import DataError
from sordino.types import Examples, Params, Task


def losses(task: Task, params: Params, examples: Examples) -> Tensor:
    return task.score(params, examples)["loss"]


def by_loss(task: Task, params: Params, members: Examples, others: Examples) -> Separation:
    return separation(-losses(task, params, members), -losses(task, params, others))


def confidence(loss: Tensor) -> Tensor:
    """The log odds of the true class, which are nearly normal over models."""
    loss = loss.double().clamp_min(1e-12)
    return -loss - torch.log(-torch.expm1(-loss))


def ratio(target: Tensor, shadows: Tensor, inside: Tensor) -> Tensor:
    """The log likelihood ratio of each example, [n], from losses under the target [n] and under shadow models
    [models, n]. `inside` [models, n] says which models had seen it.
    """
    one, many, seen = confidence(target), confidence(shadows), inside.bool()
    if int(torch.minimum(seen.sum(0), (~seen).sum(0)).min()) < 2:
        raise DataError(
            "an example was seen by fewer than two shadow models, or left out by fewer than two",
            why="the attack compares its losses in models that saw it with its losses in models that did not",
            fix="train more shadow models, each on a random half",
            code="too-few-shadows",
        )
    found = []
    for those in (seen, ~seen):
        share = those.double() / those.sum(0)
        mean = (many * share).sum(0)
        # one deviation for all examples: so few models do not tell each one's own
        deviation = ((many - mean) ** 2 * share).sum(0).mean().sqrt().clamp_min(1e-9)
        found.append(-(((one - mean) / deviation) ** 2) / 2 - torch.log(deviation))
    return found[0] - found[1]
