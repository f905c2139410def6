"""Experiment tables as somebody might write them who knows half of the words: seeded, small, mostly wrong."""

from __future__ import annotations

import inspect
import random
from typing import Any, Literal, get_args, get_origin, get_type_hints

from sordino import config
from sordino.algorithms import all_algorithms
from sordino.budget import SCHEDULES
from sordino.config import Chaos, Data, EvaluationSettings, Privacy, SlowClients
from sordino.config.gates import READERS, STAGES
from sordino.partition import SCHEMES
from sordino.sampling.by_budget import COHORTS
from sordino.tasks.nets import NETS

Table = dict[str, Any]
STRANGE: list[Any] = [
    None, True, -1, 0, 1, 2, 3, 7, 0.5, 1.0, -0.5, 1e-9, 1e9, float("nan"), float("inf"), "", "x", "full", [], {}, [1], [0.5, 0.5],
    [[], []], {"a": 1}, {"name": "x"}, "none", "client", "example", 100_000,
]  # fmt: skip
CHEAP: dict[str, Any] = {"clients": 4, "dim": 3, "largest": 30}
SMALL: dict[str, Table] = {"vhl": {"per_class": 3, "width": 8}}  # what is dear as it comes


def table(rng: random.Random) -> Table:
    """At most one round of few clients on little data, unless it says otherwise itself."""
    source = rng.choice(["digits", "quadratic", "synthetic", "quadratic"])
    made: Table = {
        "rounds": 1,
        "seed": rng.randrange(3),
        "data": {"source": source, **({"train": 60, "test": 20} if source == "digits" else {}), **_some(Data, rng, 0.06, config.data_keys(source) if rng.random() < 0.9 else None)},
        "partition": {"scheme": "natural"} if source != "digits" and rng.random() < 0.8 else _chosen(SCHEMES, rng, "scheme"),
        "algorithm": _chosen(all_algorithms(), rng),
        "privacy": _some(Privacy, rng, 0.05) | ({"epsilon": rng.choice([0.5, 4.0, 50.0])} if rng.random() < 0.3 else {}),
        "evaluation": _some(EvaluationSettings, rng, 0.04),
        "stragglers": _some(SlowClients, rng, 0.05),
        "chaos": _some(Chaos, rng, 0.05),
        "engine": {"executor": rng.choice(["auto", "loop", "stack", "pooled"])},
    }  # fmt: skip
    if source == "synthetic":
        made["data"] = {"clients": 5, "largest": 40, **made["data"]}
    if rng.random() < 0.3:
        made["model"] = _chosen(NETS, rng) if rng.random() < 0.8 else {"name": "logistic"}
    if rng.random() < 0.25:
        made["cohort"] = _chosen(COHORTS, rng)
    if rng.random() < 0.15:
        made["read"] = _chosen(READERS, rng)
    if rng.random() < 0.2:
        made["uplink"] = _uplink(rng)
    if rng.random() < 0.1:
        made["privacy"]["schedule"] = _chosen(SCHEDULES, rng)
    if rng.random() < 0.1:
        made["candidates"] = {"source": rng.choice(["procedural", "x"]), "per_class": rng.choice([2, 5, 0, -1, "x"])}
    if rng.random() < 0.02:
        made["privacy"]["ledger"] = rng.choice(["", 3, "/nowhere/ledger"])
    for _ in range(rng.choice([0] * 9 + [1])):
        made[rng.choice([*made, "unknown"])] = rng.choice(STRANGE)
    return made


def _chosen(choices: Any, rng: random.Random, key: str = "name") -> Table:
    name = rng.choice(sorted(choices))
    return {key: name, **SMALL.get(name, {}), **_settings(choices[name], rng)}


def _settings(made: Any, rng: random.Random) -> Table:
    found: Table = {}
    hints = get_type_hints(made)
    for name, parameter in inspect.signature(made).parameters.items():
        if name in ("read", "uplink", "shape", "classes") or name.startswith("_"):
            continue
        needed = parameter.default is inspect.Parameter.empty
        if (needed and rng.random() < 0.9) or rng.random() < 0.12:
            found[name] = CHEAP.get(name, _value(hints.get(name), rng)) if rng.random() < 0.97 else rng.choice(STRANGE)
    return found


def _some(section: Any, rng: random.Random, share: float, among: set[str] | None = None) -> Table:
    return {
        name: _value(field.annotation, rng)
        for name, field in section.model_fields.items()
        if name not in ("source", "path", "ledger", "cache", "network", "executor", "schedule")
        and (among is None or name in among)
        and rng.random() < share
    }


def _value(kind: Any, rng: random.Random) -> Any:
    if rng.random() < 0.02:
        return rng.choice(STRANGE)
    if get_origin(kind) is Literal:
        return rng.choice(get_args(kind))
    if inner := tuple(arg for arg in get_args(kind) if arg is not type(None)):
        if kind is dict or get_origin(kind) is dict:
            return {}
        return [_value(inner[0], rng)] if get_origin(kind) in (list, tuple) else _value(rng.choice(inner), rng)
    made: dict[Any, Any] = {
        int: rng.choice([1, 2, 3, 10]),
        float: rng.choice([0.01, 0.1, 0.5, 1.0, 2.0]),
        bool: rng.random() < 0.5,
        str: rng.choice(["full", "x", ""]),
    }
    return made.get(kind, rng.choice(STRANGE))


def _uplink(rng: random.Random) -> Any:
    stages = [
        _chosen(STAGES, rng) if rng.random() < 0.8 else rng.choice([*STAGES, *STRANGE]) for _ in range(rng.randrange(4))
    ]
    if rng.random() < 0.4:
        return stages
    return {
        "client": stages,
        "server": [_chosen(STAGES, rng)] if rng.random() < 0.5 else rng.choice([[], [], 3, "noise"]),
    }
