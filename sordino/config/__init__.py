"""Settings of an experiment: read from TOML and checked.

Its tables and keys, the readers and uplink stages that it may name, and the errors for wrong settings.
"""

from sordino.config.choices import CHOOSERS, build, filled, parameters
from sordino.config.experiment import load, places, resolved_table, validate
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
