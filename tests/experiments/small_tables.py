"""Small tables for tests: what a folder declares, and what a run says of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tables

HEAD = 'source = "nobody"\nexperiment = "small.toml"\nquick = { row = "one", set = ["rounds=1"] }\n'
ONE = '[[row]]\nname = "one"\nset = []\nseeds = 2\n'
TWO = '[[row]]\nname = "two"\nset = ["algorithm.lr=0.5"]\nseeds = 1\n'
CLAIM = '[[claim]]\nasks = "is it so"\nrows = ["one"]\n'
PROGRAM = '[[program]]\nfile = "count.py"\nwrites = "count.md"\nshows = "How many"\nminutes = 1\n'
EXPERIMENT = """
rounds = 1
data = { train = 80, test = 40 }
partition = { scheme = "iid", clients = 2 }
algorithm = { name = "fedavg" }
privacy = {}
"""
STATED = {
    "unit": "example",
    "adversary": "server",
    "neighbours": "replace",
    "epsilon": "inf",
    "delta": 0.0,
    "status": "none",
}


def table(place: Path, text: str) -> tables.Table:
    place.mkdir(exist_ok=True)
    (place / tables.ROWS).write_text(text)
    (place / "small.toml").write_text(EXPERIMENT)
    return tables.read(place)


def found(accuracy: float) -> dict[str, Any]:
    """What a run says of itself."""
    sent = {"bytes_up": 1, "bytes_down": 1, "payload": 1, "model_norm": 1.0}
    metrics = [{"round": 1, "accuracy": accuracy, "loss": 1.0, **sent}]
    return {"metrics": metrics, "preparation": [], "privacy": {"guarantees": [STATED], "budget": None}}


def kept(name: str, seed: int, last: float, **more: Any) -> str:
    facts = {"name": name, "seed": seed, "final": last, "last": last, "epsilon": "inf", "status": "none"}
    return json.dumps(facts | {"subject": "example, server", "bytes_up": 1} | more) + "\n"
