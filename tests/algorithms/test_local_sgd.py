"""Momentum of clients: by hand on a quadratic, bit for bit the old step without it, afresh in every round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sordino import tree
from sordino.algorithms.fedavg import Client, FedAvg
from sordino.algorithms.local_sgd import LocalSgd
from sordino.privacy.readers.noisy_gradient import NoisyGradient
from tests.synthesis.slaug.images import DOUBLE, KEY, images, shard, task


# momentum -------------------------------------------------------------------------------------------------------------
def walked(rule: LocalSgd, start: Tensor, curve: Tensor, steps: int) -> Tensor:
    """Down a quadratic with these curvatures."""
    walk = rule.walk({"w": start}, rule.lr)
    for _ in range(steps):
        walk({"w": curve * tree.formed(walk.y)["w"]})
    return tree.formed(walk.y)["w"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_momentum_on_a_quadratic(decay: float) -> None:
    start, curve = torch.tensor([1.0, -2.0], dtype=DOUBLE), torch.tensor([0.5, 3.0], dtype=DOUBLE)
    rule = FedAvg(lr=0.1, momentum=0.9, weight_decay=decay)
    w, v = start, torch.zeros(2, dtype=DOUBLE)
    for _ in range(6):
        v = 0.9 * v + curve * w + decay * w
        w = w - 0.1 * v
    assert torch.allclose(walked(rule, start, curve, 6), w, rtol=1e-12)
    sgd = torch.optim.SGD([p := start.clone().requires_grad_()], lr=0.1, momentum=0.9, weight_decay=decay)
    for _ in range(6):
        p.grad = curve * p.detach()
        sgd.step()
    assert torch.allclose(w, p.detach(), rtol=1e-12)
    assert not torch.allclose(walked(replace(rule, momentum=0.0), start, curve, 6), w)


def test_momentum_of_nothing_is_the_old_step_bit_for_bit() -> None:
    start, curve = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])
    before = {"w": start}
    y = before
    for _ in range(5):
        y = tree.descend(y, 0.1, {"w": curve * tree.formed(y)["w"]}, before)
    assert torch.equal(walked(FedAvg(lr=0.1), start, curve, 5), tree.formed(y)["w"])
    assert start.tolist() == [1.0, -2.0]


def test_momentum_starts_afresh_in_every_round() -> None:
    """Two rounds of one client are two runs of one round, not one run of both."""
    start, curve = torch.tensor([1.0, -2.0], dtype=DOUBLE), torch.tensor([0.5, 3.0], dtype=DOUBLE)
    rule = FedAvg(lr=0.1, momentum=0.9)
    made, down, rows = task(), FedAvg().init(task(), 1), images(8)
    settings: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "batch_size": 4}
    algorithm, client = FedAvg(**settings), Client(torch.tensor(0))
    first, client = algorithm.local(made, down, client, shard(rows, None, made), KEY)
    again, _ = algorithm.local(made, down, client, shard(rows, None, made), KEY)
    assert torch.equal(tree.flat(tree.formed(first)), tree.flat(tree.formed(again)))
    once = walked(rule, walked(rule, start, curve, 3), curve, 3)
    assert not torch.allclose(once, walked(rule, start, curve, 6))


def test_passes_count_the_examples_that_the_reads_draw() -> None:
    """Of 100 examples: an epoch has each once; 10 samples of rate 0.3 have 300; 10 subsets of rate 1.0 all, 10 times."""
    epoch = FedAvg(lr=0.1, batch_size=10)
    assert epoch.passes(100) == 100
    for rate, seen in ((0.3, 300), (1.0, 1000)):
        sampled = NoisyGradient(1.0, sampling="poisson", rate=rate, neighbours="zero_out")
        assert FedAvg(lr=0.1, batch_size=10, read=sampled).passes(100) == pytest.approx(seen)
