"""Settings of an experiment: read from TOML and checked.

Its tables and keys, the gates it may name, and what is said of a wrong one.
"""

from sordino.config.data_section import Data
from sordino.config.engine_section import Engine, Network
from sordino.config.experiment import (
    CHOOSERS,
    Chaos,
    EvaluationSettings,
    Experiment,
    Privacy,
    Slow,
    Table,
    build,
    filled,
    load,
    parameters,
    places,
    validate,
)
from sordino.config.paths import resolved_table
from sordino.config.section import Section

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
