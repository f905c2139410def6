"""Small SlaugFL experiments that several test files run, as a table and as a file."""

from __future__ import annotations

from typing import Any

RUN: dict[str, Any] = {
    "rounds": 2,
    "data": {"source": "digits", "train": 240, "test": 60, "probe": 5},
    "candidates": {"source": "procedural", "per_class": 12},
    "partition": {"scheme": "dirichlet", "clients": 5, "alpha": 0.5},
    "model": {"name": "cnn_norm"},
    "cohort": {"name": "random", "size": 3},
    "privacy": {},
    "engine": {"executor": "loop"},
}
FILE = """
rounds = 1
[data]
source = "digits"
train = 150
test = 20
probe = 2
[candidates]
source = "procedural"
per_class = 6
[partition]
scheme = "iid"
clients = 3
[model]
name = "cnn_norm"
[algorithm]
name = "slaug_fl"
keep = 4
gan_epochs = 1
prepare_epochs = 1
local_epochs = 1
[engine]
executor = "loop"
"""
