"""Seconds per round against a plain PyTorch loop written as a user would write it, in the same run: python benchmarks/rounds.py [w1 w2 w3].

    w1   CIFAR shape, 10 clients per round, 25 steps of 50 images, CNN with 797,962 parameters (compute)
    w2   MNIST shape, 100 clients per round with 60 images, 1 epoch of batches of 10, MLP 784-200-10 (overhead)
    w3   as w2, but one full-batch step with per-example L2 clip 1 and Gaussian noise at each client (privacy); the baseline uses torch.func.vmap

Random pixels: this measures time, not accuracy. Repetitions of both sides alternate, medians are compared, one thread each. The sordino side does
everything a run does in a round: ledger, wire bytes, digests, noise, sum, update; it leaves out evaluation and checkpoints, as the loop does.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino import config
from sordino.assemble import Parts
from sordino.data import Dataset, Split
from sordino.engine.memory import keep_freed_memory
from sordino.round import one_round
from sordino.tasks.nets import NETS


@dataclass(frozen=True)
class Workload:
    name: str
    shape: tuple[int, ...]  # height, width, channels
    clients: int
    examples: int  # per client
    cohort: int
    model: str
    algorithm: dict[str, Any]
    private: bool
    repeats: int


SGD = {"name": "fedavg", "lr": 0.1}
NOISY = {"name": "gaussian_gdp", "clip": 1.0, "lr": 0.1, "multiplier": 1.0}
WORKLOADS = [
    Workload("w1", (32, 32, 3), 20, 500, 10, "cnn_wide", {**SGD, "local_steps": 25, "batch_size": 50}, False, 3),
    Workload("w2", (28, 28, 1), 1000, 60, 100, "mlp", {**SGD, "local_epochs": 1, "batch_size": 10}, False, 7),
    Workload("w3", (28, 28, 1), 1000, 60, 100, "mlp", NOISY, True, 7),
]


def dataset(w: Workload) -> Dataset:
    rng, n = np.random.default_rng(0), w.clients * w.examples
    train = Split(rng.integers(0, 256, (n, *w.shape), dtype=np.uint8), rng.integers(0, 10, n))
    test = Split(train.x[:10], train.y[:10])
    flat = (0.5,) * w.shape[-1]
    return Dataset("random pixels", "image", 10, train, test, flat, flat)


def ours(w: Workload, data: Dataset) -> Callable[[], None]:
    experiment = config.validate(
        {
            "partition": {"scheme": "iid", "clients": w.clients},
            "model": {"name": w.model},
            "cohort": {"name": "round_robin", "size": w.cohort},
            "algorithm": w.algorithm,
            "privacy": {},
            "engine": {"precision": __import__("os").environ.get("PREC","auto")},
            "rounds": 10_000,
        }
    )
    parts = Parts(experiment)
    parts.__dict__["dataset"] = data  # in place of a loader
    federation, clients = parts.federation(":memory:", "bench"), parts.clients("bench")
    state = {"server": parts.state("server"), "t": 0}

    def step() -> None:
        state["server"] = one_round(federation, state["server"], state["t"], clients).server
        state["t"] += 1

    return step


def plain(w: Workload, data: Dataset) -> Callable[[], None]:
    """What a user writes: tensors, a model, a loop over clients, deep state copies, one optimiser each."""
    net = NETS[w.model]((w.shape[2], *w.shape[:2]), 10)
    x = (torch.from_numpy(np.asarray(data.train.x)).float() / 255 - 0.5) / 0.5
    x, y = x.permute(0, 3, 1, 2).contiguous(), torch.from_numpy(np.asarray(data.train.y))
    shards = torch.randperm(len(y)).view(w.clients, w.examples)
    turn = {"t": 0}
    train = noisy_step if w.private else sgd

    def step() -> None:
        start = {name: value.clone() for name, value in net.state_dict().items()}
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for i in range(w.cohort):
            rows = shards[(turn["t"] * w.cohort + i) % w.clients]
            net.load_state_dict(start)
            train(net, x[rows], y[rows], w)
            for name, value in net.state_dict().items():
                total[name] += value / w.cohort
        net.load_state_dict(total)
        turn["t"] += 1

    return step


def sgd(net: nn.Module, x: Tensor, y: Tensor, w: Workload) -> None:
    optimiser = torch.optim.SGD(net.parameters(), lr=w.algorithm["lr"])
    size, steps = w.algorithm["batch_size"], w.algorithm.get("local_steps", len(y) // w.algorithm["batch_size"])
    batches = [rows for _ in range(-(-steps * size // len(y))) for rows in torch.randperm(len(y)).split(size)]
    for rows in batches[:steps]:
        optimiser.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()


def noisy_step(net: nn.Module, x: Tensor, y: Tensor, w: Workload) -> None:
    params = {name: value.detach() for name, value in net.named_parameters()}

    def loss(p: dict[str, Tensor], xi: Tensor, yi: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(net, p, (xi[None],)), yi[None])

    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(params, x, y)
    norms = torch.cat([g.flatten(1) for g in grads.values()], 1).norm(dim=1)
    factor = (w.algorithm["clip"] / norms).clamp(max=1)
    with torch.no_grad():
        for name, value in net.named_parameters():
            g = torch.einsum("n,n...->...", factor, grads[name]) + 2 * w.algorithm["clip"] * torch.randn_like(value)
            value -= w.algorithm["lr"] * g / len(y)


def seconds(step: Callable[[], None]) -> float:
    began = time.process_time()
    step()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[w.name for w in WORKLOADS])
    names = parser.parse_args().names
    torch.set_num_threads(1)
    keep_freed_memory()
    print(
        f"{'':4s} {'plain loop':>12s} {'sordino':>12s} {'ratio':>7s}   CPU seconds per round, medians of alternating repetitions"
    )
    for w in WORKLOADS:
        if w.name in names:
            data = dataset(w)
            sides = [plain(w, data), ours(w, data)]
            for step in sides:  # warm up
                step()
            times = [[seconds(step) for step in sides] for _ in range(w.repeats)]
            a, b = (statistics.median(side) for side in zip(*times, strict=True))
            print(f"{w.name:4s} {a:12.3f} {b:12.3f} {a / b:6.2f}x", flush=True)


if __name__ == "__main__":
    main()
