"""FedGen, data-free knowledge distillation. Zhu, Hong and Zhou, ICML 2021.

The server trains a generator of features against the heads of all uploaded models, each weighted for a class by its
client's share of it. Clients also train their heads on generated features, and pull the prediction for each example
towards that for a generated feature of its class. The server sees every model and every client's label counts.

Deviations: the optimiser of the generator starts afresh in every round. One generated feature per example of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from sordino import keys, tree
from sordino.algorithms.fedavg import Client
from sordino.algorithms.local_sgd import LocalSgd
from sordino.algorithms.optional import Home, OtherReads, OwnLoss
from sordino.keys import Key
from sordino.synthesis import generators
from sordino.synthesis.generators import GeneratorState
from sordino.types import Params, Received, Shard, Task

STATISTICS = ("norm.mean", "norm.variance")
MOMENTUM, EPS = 0.1, 1e-5


class Server(NamedTuple):
    """The server's state: the model, and the generator of features."""

    x: Params
    generator: Params
    round: Tensor


class Up(NamedTuple):
    """Upload: the change of the local model, and the counts of the client's labels."""

    delta: Params
    counts: Tensor  # of the client's labels


@dataclass(frozen=True)
class FedGen(LocalSgd[Server, Client, Server, Up], OwnLoss, OtherReads, name="fedgen", carries_statistics=True):
    strength: float = 10.0  # weight of both terms in round 0; 0: FedAvg
    decay: float = 0.98  # of the strength, per round
    least: float = 1e-4
    noise: int = 100
    hidden: int = 512
    updates: int = 50  # of the generator, per round
    generator_lr: float = 3e-4
    generator_decay: float = 1e-2  # of its weights
    generator_batch: int = 32
    reads_each = True
    wants = "single examples"  # it counts their labels

    def init(self, task: Task, key: Key) -> Server:
        made = feature_generator(task.labels, self.noise, task.width, keys.fold(key, "generator"), self.hidden)
        return Server(task.init(key), made, torch.tensor(0))

    def init_client(self, task: Task) -> Client:
        return Client(torch.tensor(0))

    def broadcast(self, s: Server) -> Server:
        return s

    def zero(self, task: Task, down: Server) -> Up:
        return Up(tree.zeros_like(down.x), torch.zeros(task.labels))

    def local(self, task: Task, down: Server, c: Client, shard: Shard, key: Key) -> tuple[Up, Client]:
        walk = self.walk(down.x, self.rate(down.round, c.participations), statistics=task.statistics)
        helped = self.strength > 0 and int(down.round) > 0
        losses = partial(self._losses, task, down.generator, self._weight(down)) if helped else task.losses
        for batch in shard.batches(self.work, key):
            walk(batch.grad(losses, walk.y))
        counts = shard.sum(lambda x, y: (y[:, None] == torch.arange(task.labels)).sum(0)).float()
        return Up(tree.sub(walk.y, down.x), counts), Client(c.participations + 1)

    def change(self, upload: Up) -> Params | None:
        return upload.delta

    def update(self, s: Server, r: Received[Up], home: Home) -> Server:
        heads = [partial(home.task.head, tree.add(s.x, up.delta)) for up in r.each]
        counts = torch.stack([up.counts for up in r.each]) if heads else torch.zeros(0, home.task.labels)
        made = s.generator
        if self.strength and bool((counts > 1).any()):
            made = self.distilled(made, heads, counts, int(s.round), keys.fold(home.key, "fedgen"))
        return Server(tree.axpy(self.server_lr, r.mean.delta, s.x), made, s.round + 1)

    def distilled(
        self, state: GeneratorState, heads: Sequence[Callable[[Tensor], Tensor]], counts: Tensor, t: int, key: Key
    ) -> GeneratorState:
        """The generator after some training steps, towards diverse features that the heads classify as their label,
        where each head is weighted by its client's share of the class.
        """
        offered = torch.nonzero((counts > 1).any(0)).flatten()
        share, key = counts / counts.sum(0).clamp_min(1), keys.fold(key, t)
        learned = {name: value.clone().requires_grad_() for name, value in trainable(state).items()}
        kept = {name: state[name] for name in STATISTICS}
        lr = self.generator_lr * self.decay**t
        adam = torch.optim.Adam(list(learned.values()), lr, weight_decay=self.generator_decay)
        for step in range(self.updates):
            draws = keys.bits(keys.fold(key, step), self.generator_batch)
            epsilon, any_label = wanted(draws, self.noise, len(offered))
            y = offered[any_label]
            z, kept = training_forward(learned | kept, epsilon, y)
            taught = sum(
                (share[k, y] * torch.nn.functional.cross_entropy(head(z), y, reduction="none")).mean()
                for k, head in enumerate(heads)
            )
            apart = (epsilon[:, None] - epsilon[None]).square().mean(2)
            differ = (z[:, None] - z[None]).abs().mean(2)
            loss = taught + torch.exp(-(apart * differ).mean())
            for p, g in zip(learned.values(), torch.autograd.grad(loss, list(learned.values())), strict=True):
                p.grad = g
            adam.step()
        return {name: value.detach() for name, value in learned.items()} | kept

    def _weight(self, down: Server) -> float:
        return max(self.least, self.strength * self.decay ** int(down.round))

    def _losses(
        self, task: Task, generator: Params, weight: float, params: Params, x: Tensor, y: Tensor, draws: Tensor
    ) -> Tensor:
        z = task.features(params, x, draws)
        logits = task.head(params, z)
        with torch.no_grad():
            epsilon, any_label = wanted(draws, self.noise, task.labels)
            made, of_mine = generated(generator, epsilon, any_label), generated(generator, epsilon, y)
            says = torch.nn.functional.log_softmax(task.head(params, of_mine), 1)
        learned = torch.nn.functional.cross_entropy(task.head(params, made), any_label, reduction="none")
        near = torch.nn.functional.kl_div(
            torch.nn.functional.log_softmax(logits, 1), says, reduction="none", log_target=True
        ).sum(1)
        return torch.nn.functional.cross_entropy(logits, y, reduction="none") + weight * (learned + near)


# generator of features ------------------------------------------------------------------------------------------------


def feature_generator(classes: int, noise: int, out: int, key: keys.Key, hidden: int = 512) -> GeneratorState:
    """State of a generator: Linear(noise + classes, hidden), batch norm, ReLU, Linear(hidden, out); weights and biases
    uniform within 1/sqrt(inputs).
    """
    state = {}
    for name, outputs, inputs in (("first", hidden, noise + classes), ("last", out, hidden)):
        for part, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
            drawn = generators.uniform(keys.generator(keys.fold(key, name, part)), *shape)
            state[f"{name}.{part}"] = (2 * drawn - 1) / inputs**0.5
    state |= {"norm.weight": torch.ones(hidden), "norm.bias": torch.zeros(hidden)}
    return state | {"norm.mean": torch.zeros(hidden), "norm.variance": torch.ones(hidden)}


def trainable(state: GeneratorState) -> GeneratorState:
    return {name: value for name, value in state.items() if name not in STATISTICS}


def generated(state: GeneratorState, epsilon: Tensor, y: Tensor) -> Tensor:
    """Generated features [n, d], normalised by the running statistics."""
    return _last(state, _normed(state, _first(state, epsilon, y), state["norm.mean"], state["norm.variance"]))


def training_forward(state: GeneratorState, epsilon: Tensor, y: Tensor) -> tuple[Tensor, GeneratorState]:
    """Generated features, normalised by the statistics of the batch, and the state with updated running statistics."""
    x = _first(state, epsilon, y)
    mean, variance = x.mean(0), x.var(0, correction=0)
    seen = dict(zip(STATISTICS, (mean.detach(), x.detach().var(0)), strict=True))
    moved = {name: (1 - MOMENTUM) * state[name] + MOMENTUM * seen[name] for name in STATISTICS}
    return _last(state, _normed(state, x, mean, variance)), moved


def _first(state: GeneratorState, epsilon: Tensor, y: Tensor) -> Tensor:
    classes = state["first.weight"].shape[1] - epsilon.shape[1]
    read = torch.cat([epsilon, torch.nn.functional.one_hot(y, classes).to(epsilon.dtype)], 1)
    return torch.nn.functional.linear(read, state["first.weight"], state["first.bias"])


def _normed(state: GeneratorState, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return (x - mean) * torch.rsqrt(variance + EPS) * state["norm.weight"] + state["norm.bias"]


def _last(state: GeneratorState, x: Tensor) -> Tensor:
    return torch.nn.functional.linear(torch.relu(x), state["last.weight"], state["last.bias"])


def wanted(draws: Tensor, noise: int, classes: int) -> tuple[Tensor, Tensor]:
    """Random inputs of the generator: uniform noise and a label for each of `draws`, the keys of random numbers."""
    epsilon = keys.uniform(keys.fold(draws, "epsilon"), noise).float()
    return epsilon, keys.integers(keys.fold(draws, "label"), 1, classes)[:, 0]
