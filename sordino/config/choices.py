"""Settings tables that name a choice and take exactly its parameters: `[algorithm] name = "fedprox"`.

The signature of the chosen class or function is the schema, so a new algorithm needs nothing beside its file.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from sordino import user_code
from sordino.accounting.claims import check_neighbours
from sordino.config.reading import check_keys, nearest, wrong
from sordino.errors import ConfigError, Range, check_range

T = TypeVar("T")
CHOOSERS = {
    "partition": "scheme",
    "model": "name",
    "cohort": "name",
    "algorithm": "name",
    "data": "source",
    "candidates": "source",
    "loss": "name",
    "task": "name",
}


def build(
    table: Mapping[str, object],
    choices: Mapping[str, Callable[..., T]],
    where: str,
    key: str = "name",
    own: type[T] | None = None,
) -> T:
    """Calls the class or function that a table names, with the rest of the table as arguments. `own`: the class that a
    user's own choice must be a subclass of.
    """
    rest = {field: tuple(value) if isinstance(value, list) else value for field, value in table.items()}
    name = rest.pop(key, None)
    if own is not None and isinstance(name, str) and user_code.is_own(name):
        return filled(user_code.of_kind(name, where, own), rest, f"[{where}] {name}")
    if not isinstance(name, str) or name not in choices:
        raise ConfigError(
            f"[{where}] {key} = {name!r} is not known", fix=nearest(str(name), choices), code="unknown-choice"
        )
    if rest and not parameters(choices[name]):
        takers = [other for other in choices if rest.keys() <= parameters(choices[other]).keys()]
        raise ConfigError(
            f"[{where}] {name} has no key {next(iter(rest))!r}",
            why=f"{name} takes no settings",
            fix=(f"choose it without: {where}={name}" if where in CHOOSERS else "leave it out")
            + (f"; or one that takes it: {where}.{key}={' or '.join(takers)}" if takers else ""),
            code="unknown-key",
        )
    return filled(choices[name], rest, f"[{where}] {name}")


def filled(made: Callable[..., T], table: Mapping[str, object], where: str) -> T:
    """Call a class or function with a table as its arguments, checked by its signature."""
    fields = parameters(made)
    if table.keys() - fields.keys():
        from sordino.algorithms.preset import Preset

        if isinstance(made, Preset):
            made.refuse_fixed(table)
    check_keys(table, fields, where)
    if table.get("neighbours") is not None:
        check_neighbours(table["neighbours"])
    try:
        values = _model(made).model_validate(table)
    except ValidationError as error:
        raise wrong(error, where, {}) from None
    check_ranges(values, f"{where[1:].partition(']')[0]}.")
    return made(**{field: getattr(values, field) for field in fields if field in table})


def check_ranges(values: BaseModel, inside: str = "") -> None:
    """Refuses numbers outside the range of their setting; a list holds one number for each client process."""
    for name, allowed in _ranges(type(values)):
        value, place = getattr(values, name), f"{inside}{name}"
        if value == []:
            raise ConfigError(
                f"{place} is an empty list",
                why="a list has a number for each client process, in turn",
                fix="write numbers into it, or leave the setting out",
                code="out-of-range",
            )
        for number in value if isinstance(value, list) else [value]:
            if number is not None and number != "auto":
                check_range(place, number, allowed, "out-of-range")
    for name, value in values.__dict__.items():
        if isinstance(value, BaseModel):
            check_ranges(value, f"{inside}{name}.")


@lru_cache(maxsize=256)
def _ranges(kind: type[BaseModel]) -> Sequence[tuple[str, Range]]:
    """Settings of a table that have a range, each with that range."""
    return [(n, told) for n, field in kind.model_fields.items() for told in field.metadata if isinstance(told, Range)]


@lru_cache(maxsize=256)
def _model(made: Callable[..., object]) -> type[BaseModel]:
    strict = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
    model: type[BaseModel] = create_model("Table", __config__=strict, **parameters(made))  # type: ignore[call-overload]
    return model


@lru_cache(maxsize=256)
def parameters(made: Callable[..., object]) -> dict[str, tuple[Any, Any]]:
    """The parameters of a class or function that a table may set: name -> (type, default). Left out are reader and
    uplink, which have tables of their own, and names that begin with `_`, which the engine sets."""
    # a class that is no dataclass has its type hints in the constructor
    written = inspect.isclass(made) and inspect.isfunction(made.__init__) and not dataclasses.is_dataclass(made)
    hints = get_type_hints(made, include_extras=True)
    hints |= get_type_hints(made.__init__, include_extras=True) if written else {}
    found = {}
    for name, parameter in inspect.signature(made).parameters.items():
        if name not in ("read", "uplink") and not name.startswith("_"):
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            found[name] = (hints.get(name, Any), default)
    return found
