"""Experiments whose charges are counted."""

from __future__ import annotations

from typing import Any

from sordino import config


# rounds without training ----------------------------------------------------------------------------------------------
def experiment(algorithm: dict[str, Any], **changes: Any) -> config.Experiment:
    table = {
        "rounds": 4,
        "partition": {"scheme": "iid", "clients": 5},
        "cohort": {"name": "round_robin", "size": 2},
        "algorithm": algorithm,
        "privacy": {"epsilon": 4.0, "delta": 1e-5},
        "evaluation": {"every": 100, "final": 1},
    }
    return config.validate(table | changes)
