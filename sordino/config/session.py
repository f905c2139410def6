"""Python objects in place of names in an experiment: each object is replaced by a name under which it can be
looked up."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from sordino import user_code
from sordino.errors import ConfigError

Settings = Mapping[str, object]
CHOSEN = ("model", "algorithm", "partition", "cohort", "loss")  # by one name
TRAIN = "train"  # a function that trains: algorithm.of
LISTED = ("metrics", "evaluation.metrics", "callbacks")
DATA = "data"  # the name of data in memory
FRAMES = {("pandas", "DataFrame"), ("datasets", "Dataset")}  # that may not hand over columns as Arrow does


class NamedSettings(NamedTuple):
    """Settings as a file can hold them (objects replaced by names), and those objects by name."""

    settings: dict[str, object]
    lent: dict[str, object]


def named(settings: Settings) -> NamedSettings:
    """Settings of a Python session in which each object, such as an algorithm or a model, is replaced by a name under
    which it is found again, so that they can be written to a file.
    """
    lent: dict[str, object] = {}
    found: dict[str, object] = {}
    for place, value in settings.items():
        if place == DATA and (source := _source_of(value)):
            lent[DATA] = value
            found |= source
        elif place == DATA and inspect.isclass(value):
            found["data.source"] = _name(value, lent)
        elif place == TRAIN:
            found.setdefault("algorithm", {"name": "trainer"})
            found["algorithm.of"] = _called(value, lent)
        elif place in CHOSEN:
            found[place] = _chosen(place, value, lent)
        elif place in LISTED:
            listed = value if isinstance(value, list | tuple) else [value]
            found["evaluation.metrics" if place == "metrics" else place] = [_one(one, lent) for one in listed]
        else:
            found[place] = value
    if "evaluation.metrics" in found:  # behind a table of [evaluation], which would replace it
        found["evaluation.metrics"] = found.pop("evaluation.metrics")
    if DATA in lent:  # label="..." is data.label
        found = {f"data.{key}" if key in ("label", "group", "key", "schema") else key: v for key, v in found.items()}
    return NamedSettings(found, lent)


def named_in_all(experiments: Iterable[object]) -> tuple[list[Any], dict[str, object]]:
    """The experiments with names in place of the objects in their tables, and these objects: one for each name."""
    found, lent = [], dict[str, object]()
    for one in experiments:
        plain, own = named(one) if isinstance(one, Mapping) else NamedSettings({}, {})
        for name, value in own.items():
            if lent.setdefault(name, value) is not value:
                raise ConfigError(
                    f"two experiments have different objects called {name!r}",
                    why="a comparison is one session, in which a name stands for one object",
                    fix="give all of them the same data; rename one of the classes or functions",
                    code="two-objects-of-one-name",
                )
        found.append(plain if isinstance(one, Mapping) else one)
    return found, lent


def objects(given: Settings) -> dict[str, object]:
    """Objects of this Python session that a run was begun with, by the names in its experiment. Other values in
    `given`, such as changed settings, are refused.
    """
    lent = named(given).lent
    for place, value in given.items():
        if _has_name(value):
            lent.setdefault(str(getattr(value, "__name__", "")), value)
        elif place not in (DATA, TRAIN, *CHOSEN, *LISTED):
            raise ConfigError(
                f"{place} cannot be given here",
                why="a run continues with the experiment that it began with; only objects of the session in which it "
                "began are given again",
                fix="give for example model=Net or data=frame, or leave it out",
                code="not-an-object",
            )
    return lent


def _source_of(value: object) -> dict[str, object]:
    """Settings that name data in memory; {} if the value is a table of settings or a name."""
    if _is_table(value):
        return {"data.source": "tabular", "data.path": user_code.ROWS}
    return {"data.source": user_code.ROWS} if _is_rows(value) else {}


def _is_table(value: object) -> bool:
    """True for a data frame of pandas or polars, a `datasets` data set, and other objects that export columns as Arrow
    does. No library is imported here.
    """
    kind = type(value)
    return hasattr(kind, "__arrow_c_stream__") or (kind.__module__.partition(".")[0], kind.__name__) in FRAMES


def _is_rows(value: object) -> bool:
    """True for a dictionary of arrays x and y, and for a data set of torch."""
    torch = sys.modules.get("torch")
    arrays = isinstance(value, Mapping) and {"x", "y"} <= value.keys()
    return arrays or (torch is not None and isinstance(value, torch.utils.data.Dataset))


def _chosen(place: str, value: object, lent: dict[str, object]) -> object:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return {key: _name(one, lent) if _has_name(one) else one for key, one in value.items()}
    chooser = "scheme" if place == "partition" else "name"
    if _has_name(value):
        return {chooser: _name(value, lent)}
    from sordino.algorithms.algorithm import NAMES, Algorithm

    if isinstance(value, Algorithm):
        made = type(value)
        return {"name": NAMES.get(made) or _name(made, lent), **dict(_settings(value))}
    raise ConfigError(
        f"{place} = {type(value).__name__} object",
        why="a run builds it again in every process, so it needs the class and its arguments instead of an object",
        fix=f"give the class, {place}=MyClass; with arguments: {place}={{'{chooser}': MyClass, ...}}, and those of a "
        "model in 'options'",
        code="object-for-a-class",
    )


def _has_name(value: object) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value)


def _called(value: object, lent: dict[str, object]) -> object:
    """Name that stands for a training function in the settings, which hold plain values only; the function itself is
    kept in `lent`. A name is returned unchanged.
    """
    if isinstance(value, str):
        return value
    if inspect.isfunction(value):
        return _name(value, lent)
    lent[TRAIN] = value
    return user_code.SESSION + TRAIN


def _one(value: object, lent: dict[str, object]) -> object:
    """Name for one entry of a list: a class or function has its own; another object, such as a callback, gets the name
    of its class.
    """
    if isinstance(value, str | Mapping):
        return value
    if _has_name(value):
        return _name(value, lent)
    lent[type(value).__name__] = value
    return user_code.SESSION + type(value).__name__


def _name(made: Any, lent: dict[str, object]) -> str:
    name = user_code.name_of(made)
    if user_code.is_lent(name):
        lent[name.removeprefix(user_code.SESSION)] = made
    return name


def _settings(made: Any) -> Iterator[tuple[str, object]]:
    """The parameters of an algorithm that differ from their defaults."""
    for field in fields(made):
        value = getattr(made, field.name)
        if value == field.default or value is None:
            continue
        if not isinstance(value, str | bool | int | float | list | tuple):
            raise ConfigError(
                f"{field.name} of this {type(made).__name__} is an object",
                why="an experiment is stored as a file of plain values, which cannot hold a Python object",
                fix=f"give plain values to the algorithm; a reader or an uplink as a table beside it, for example "
                f"{field.name}={{'name': 'sum'}} (`sordino algorithms` lists the names)",
                code="object-for-a-value",
            )
        yield field.name, list(value) if isinstance(value, tuple) else value


def remarks(table: object) -> list[str]:
    """Remark that this run can be resumed only with its Python objects; none if it has none."""
    names = sorted({name for name in user_code.named(table) if user_code.is_lent(name)})
    if not names:
        return []
    return [
        f"{', '.join(names)}: an object of this Python session, kept in no file. To resume the run, give it again: "
        "sordino.resume(folder, ...=...)"
    ]
