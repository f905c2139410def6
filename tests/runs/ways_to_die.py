"""Runs that are killed, and what they leave."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.laws import warm
from tests.laws.cases import Case

ROUNDS = 12


def experiment_file(case: Case, folder: Path, **changes: Any) -> Path:
    file = folder / f"{case.name}.toml"
    file.write_text(case.experiment(**{"rounds": ROUNDS} | changes).toml())
    return file


def sordino(*arguments: object, **options: Any) -> warm.Process:
    return warm.Process([sys.executable, "-m", "sordino", *map(str, arguments)], **options)


def _lines(out: Path) -> list[str]:
    metrics = out / "metrics.jsonl"
    return metrics.read_text().splitlines() if metrics.exists() else []


def _alive() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}
