"""The mean of a private strategy with noise of size zero beside the one of the strategy in it: python same_mean.py PLACE.
It prints the largest difference, for FedAvg with equal weights and for a server optimiser."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg
from flwr.supercore.task_identity import TaskIdentity

from sordino.adapters.flower import PrivateStrategy
from sordino.privacy.noise.sources import SystemNoise

TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
place, nodes, rng = Path(sys.argv[1]), [1, 2, 3, 4, 5], np.random.default_rng(0)
MODEL = {"w": rng.normal(size=(30, 20)).astype(np.float32), "b": rng.normal(size=20).astype(np.float32)}
TRAINED = {
    node: {name: one + rng.normal(size=one.shape).astype(np.float32) for name, one in MODEL.items()} for node in nodes
}


def silent(self: SystemNoise, law: object, values: torch.Tensor, scale: float) -> torch.Tensor:
    return values.double()


SystemNoise.noisy = silent  # type: ignore[assignment]


def record(arrays: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(one) for name, one in arrays.items()})


def mean(strategy: Any) -> dict[str, Any]:
    grid: Any = SimpleNamespace(get_node_ids=lambda: nodes)
    asked = strategy.configure_train(1, record(MODEL), ConfigRecord(), grid)
    replies = []
    for one in asked:
        content = {"arrays": record(TRAINED[one.metadata.dst_node_id]), "metrics": MetricRecord({"num-examples": 7})}
        replies.append(Message(RecordDict(content), reply_to=one))
    arrays, _ = strategy.aggregate_train(1, replies)
    return {name: one.numpy() for name, one in arrays.items()}


for made in (FedAvg, FedAdam):
    private = PrivateStrategy(
        made(), place / made.__name__, MODEL, epsilon=1.0, delta=1e-5, clip=1e3, rounds=1, clients=5
    )
    ours, plain = mean(private), mean(made())
    print(made.__name__, max(float(np.abs(ours[name] - plain[name]).max()) for name in MODEL))
