"""Images, losses and runs, small enough to compute by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sordino import keys
from sordino.privacy.noise.sources import Counter
from sordino.privacy.readers.open import Open
from sordino.tasks.architecture import build_net
from sordino.tasks.supervised import Classification
from sordino.types import Examples, Grant
from tests.helpers import slaug_runs

DOUBLE = torch.float64


KEY = keys.root(3)


def task(classes: int = 4, heads: int = 1, augment: str = "none") -> Classification:
    net = build_net("cnn_norm", (1, 8, 8), classes * heads, {})
    return Classification(
        net, name="cnn_norm", shape=(8, 8, 1), mean=(0.3,), std=(0.4,), image=True, augment=augment, labels=classes
    )


def images(n: int, classes: int = 4, seed: int = 0) -> Examples:
    x = (255 * keys.uniform(keys.root(seed), n * 64)).to(torch.uint8).reshape(n, 8, 8, 1)
    return Examples(x, keys.integers(keys.root(seed + 100), n, classes))


def shard(own: Examples, public: Examples | None, made: Any, **grant: Any) -> Any:
    n = len(own.y)
    return Open().open(own, Grant(0, n, n, Counter(0), public=public, **grant), made)


# FedAvg, bit for bit --------------------------------------------------------------------------------------------------
RUN = slaug_runs.RUN | {"name": "run", "evaluation": {"every": 1}}


SGD = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4, "local_epochs": 2, "batch_size": 16, "lr_decay": 0.99}


SLAUG = {**SGD, "name": "slaug_fl", "prepare_epochs": 1, "keep": 6, "gan_epochs": 1}


@dataclass(frozen=True)
class World:
    """What a server of these tests has."""

    task: Any
    sizes: Sequence[int] = (5, 5, 5, 5)
    key: int = 9
    probe: Examples | None = None
    candidates: Examples | None = None
