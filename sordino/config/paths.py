"""Relative paths of an experiment are read from the folder where its run began, whoever reads the run and from where.

The run folder stores the way to that folder relative to itself: both can be moved together, and neither discloses where
it lies."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sordino import user_code
from sordino.config.settings import Experiment

PATHS = ("path", "file", "schema", "ledger", "cache")  # keys that name a file or a folder, in whatever table


def start_of(folder: Path) -> str:
    """The working directory, where a run begins, relative to the run's folder."""
    return os.path.relpath(Path.cwd(), Path(os.path.realpath(folder.parent), folder.name))


def resolved(experiment: Experiment, folder: Path, start: str) -> Experiment:
    """The experiment of a run, with its paths as they are read from the present working directory. Its digest is the
    same.
    """
    place = Path(os.path.realpath(Path(os.path.realpath(folder), start)))
    if place == Path.cwd():
        return experiment
    changed: dict[str, Any] = {}
    for name in ("data", "privacy", "engine"):
        section = getattr(experiment, name)
        paths = {key: getattr(section, key) for key in PATHS if getattr(section, key, None) is not None}
        if name == "data" and section.download and not Path(place, str(section.path)).exists():
            paths.pop("path", None)  # the name of a data set on the hub
        if paths:
            changed[name] = section.model_copy(update=_resolved(paths, place))
    found = experiment.model_copy(update=changed)
    found._start = place
    return found


def resolved_table(experiment: Experiment, table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of an experiment, with its paths as they are read from the present working directory."""
    return dict(table) if experiment._start is None else _resolved(table, experiment._start)


def _resolved(table: Mapping[str, Any], place: Path) -> dict[str, Any]:
    return {
        key: _path(value, place) if key in PATHS else _resolved(value, place) if isinstance(value, Mapping) else value
        for key, value in table.items()
    }


def _path(value: Any, place: Path) -> Any:
    if isinstance(value, list | tuple):
        return [_path(one, place) for one in value]
    if not isinstance(value, str) or value in ("", "learned") or value.startswith("~") or user_code.is_lent(value):
        return value
    return os.path.normpath(place / value)
