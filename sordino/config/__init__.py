"""Settings of an experiment: read from TOML and checked.

Its tables and keys, the gates it may name, and what is said of a wrong one.
"""

from sordino.config.choices import CHOOSERS, build, filled, parameters
from sordino.config.experiment import load, places, validate
from sordino.config.paths import resolved_table
from sordino.config.settings import (
    Chaos,
    Data,
    Engine,
    EvaluationSettings,
    Experiment,
    Network,
    Privacy,
    Section,
    Slow,
    Table,
)

__all__ = [
    "CHOOSERS",
    "Chaos",
    "Data",
    "Engine",
    "EvaluationSettings",
    "Experiment",
    "Network",
    "Privacy",
    "Section",
    "Slow",
    "Table",
    "build",
    "filled",
    "load",
    "parameters",
    "places",
    "resolved_table",
    "validate",
]
