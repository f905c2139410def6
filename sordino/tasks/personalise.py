"""Personalisation: a client's own version of the shared model: unchanged, fine-tuned on its own data, or a nearest-mean
classifier on its own features.

Prototypes (Snell, Swersky and Zemel, NeurIPS 2017): the mean of the features of each class over the client's own
examples; an image is given the class of the nearest mean. This needs no training, and nothing leaves the client. Labels
only group examples, so the names of classes do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from sordino import keys, tree
from sordino.fast import pure
from sordino.types import Examples, LocalWork, Params, Scorer, Shard, Task

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Shared:
    """The shared model without personalisation."""

    task: Task
    params: Params

    def score(self, examples: Examples) -> Mapping[str, Tensor]:
        return self.task.score(self.params, examples)

    def answers(self, x: Tensor) -> Tensor:
        """Predictions for new examples: probabilities of classes or labels, or numbers."""
        return self.task.answers(torch.cat([self.task.predict(self.params, part) for part in torch.split(x, 512)]))


@dataclass(frozen=True)
class NearestMean:
    """Classifier by the nearest mean of features."""

    task: Task
    params: Params
    labels: Tensor  # the classes the client has, in rising order
    means: Tensor  # of their features

    def score(self, examples: Examples) -> Mapping[str, Tensor]:
        z = _features(self.task, self.params, examples.x)
        found = distances(z, self.means)
        place = torch.searchsorted(self.labels, examples.y).clamp_max(len(self.labels) - 1)
        known = self.labels[place] == examples.y
        # an example of a class that the client lacks gets the largest loss over the known classes
        losses = -torch.nn.functional.log_softmax(found.double(), 1)
        loss = torch.where(known, losses.gather(1, place[:, None])[:, 0], losses.amax(1))
        return {"accuracy": ((found.argmax(1) == place) & known).double(), "loss": loss}

    def answers(self, x: Tensor) -> Tensor:
        """The probability of every class; 0 for a class without examples at the client."""
        found = distances(_features(self.task, self.params, x), self.means).double().softmax(1)
        return found.new_zeros(len(x), self.task.labels).index_copy_(1, self.labels, found)


def plain(task: Task, params: Params, shard: Shard) -> Shared:
    return Shared(task, params)


def finetune(task: Task, params: Params, shard: Shard) -> Shared:
    """The model after one gradient step with learning rate 0.1 on all of the client's data."""
    params = {**params, **{name: params[name].clone() for name in task.statistics}}  # the pass updates them
    for batch in shard.batches(LocalWork(None, 1, None), keys.root(0)):
        params = tree.formed(tree.axpy(-0.1, batch.grad(task.losses, params), params))
    return Shared(task, params)


def proto(task: Task, params: Params, shard: Shard) -> NearestMean:
    def by_class(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        one_hot = torch.nn.functional.one_hot(y, task.classes).double()
        return one_hot.T @ _features(task, params, x).double(), one_hot.sum(0)

    sums, counts = shard.sum(by_class)
    labels = torch.nonzero(counts).flatten()
    means = sums[labels] / counts[labels, None]
    return NearestMean(task, params, labels, means.to(next(iter(params.values())).dtype))


def training_loss(task: Task, params: Params, shard: Shard) -> Tensor:
    """The mean loss of a model over a client's own examples."""
    total: Tensor = shard.sum(lambda x, y: task.score(params, Examples(x, y))["loss"].sum())
    return total / shard.size


PLAIN = "plain"  # the shared model, unchanged
OWN = "own"  # personalised as the algorithm does it
WAYS: dict[str, Callable[[Task, Params, Shard], Shared | NearestMean]] = {
    PLAIN: plain,
    "finetune": finetune,
    "proto": proto,
}


class OwnModels:
    """An algorithm whose clients keep personal models, on which it is evaluated."""

    own_way: str | None = None  # how, from their examples alone; None: a client's kept state is needed

    def personal(self, task: Task, params: Params, c: Any, shard: Shard) -> Scorer:
        """The personal model that a client derives from the server's model, its own examples and its state."""
        return WAYS[self.own_way or PLAIN](task, params, shard)


def ways(algorithm: object, asked: Sequence[str]) -> tuple[str, ...]:
    """The personalisations in `asked`; if there are none, that of the algorithm, where it has one."""
    return tuple(asked) or ((OWN,) if isinstance(algorithm, OwnModels) else ())


def distances(z: Tensor, means: Tensor) -> Tensor:
    """Logits equal to minus the squared distance to each class mean."""
    return 2 * z @ means.T - (z**2).sum(1, keepdim=True) - (means**2).sum(1)


@pure
def episode_loss(task: Task, params: Params, support: Examples, query: Examples, draws: Tensor) -> Tensor:
    """The mean cross-entropy of the queries against the prototypes of the support, differentiable through both.

    Queries whose class is not in the support are left out.
    """
    z = task.features(params, torch.cat([support.x, query.x]), draws)
    held, asked = z[: len(support.y)], z[len(support.y) :]
    one_hot = (support.y[:, None] == torch.arange(task.labels, device=z.device)).to(z.dtype)
    count = one_hot.sum(0)
    logits = distances(asked, (one_hot.T @ held) / count.clamp_min(1)[:, None]).masked_fill(count == 0, -torch.inf)
    losses = torch.nn.functional.cross_entropy(logits, query.y, reduction="none")
    known = count[query.y] > 0
    return torch.where(known, losses, 0.0).sum() / known.sum().clamp_min(1)


def _features(task: Task, params: Params, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([task.features(params, rows, None) for rows in torch.split(x, 128)])
