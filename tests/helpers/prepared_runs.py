"""Tiny runs that prepare before they train, and what is left of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sordino import config
from sordino.config import Experiment

CLIENTS, ROUNDS, COHORT, CLASSES = 6, 2, 3, 10


TINY: dict[str, Any] = {
    "rounds": ROUNDS,
    "data": {"source": "digits", "train": 240, "test": 60, "probe": 5},
    "candidates": {"source": "procedural", "per_class": 20},
    "partition": {"scheme": "dirichlet", "clients": CLIENTS, "alpha": 0.5},
    "model": {"name": "cnn_norm"},
    "cohort": {"name": "random", "size": COHORT},
    "algorithm": {
        "name": "slaug_fl",
        "keep": 10,
        "local_epochs": 1,
        "prepare_epochs": 2,
        "batch_size": 32,
        "gan_epochs": 2,
        "least": 2,  # so that some devices decline and others are asked after them
    },
    "privacy": {},
    "engine": {"executor": "loop"},
}


def tiny(**changes: Any) -> Experiment:
    table = {
        name: {**TINY[name], **change} if isinstance(change, dict) and isinstance(TINY.get(name), dict) else change
        for name, change in changes.items()
    }
    return config.validate(TINY | table)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "preparation.jsonl").read_text().splitlines()]
