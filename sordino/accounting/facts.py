"""Facts: records with named and typed fields, as they are written into files and read from there.

A file may have been edited by anybody, so reading is strict: a value of another type is refused. JSON has no infinity;
it is written as "inf", and only this module converts it.
"""

from __future__ import annotations

import json
import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    NonNegativeFloat,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from sordino.errors import RunError, damaged
from sordino.version import __version__

F = TypeVar("F", bound="Fact")
Epsilon = Annotated[
    NonNegativeFloat,
    BeforeValidator(lambda value: math.inf if value == "inf" else value),
    PlainSerializer(lambda value: value if math.isfinite(value) else "inf"),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"const": "inf"}]}),
]
Number = int | float  # written as it is: a count stays a count
Format = Literal[1]  # of every file: another one is refused, never read wrongly
FORMAT: Format = 1


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(made := dict(pairs)) < len(pairs):
        raise ValueError("a name occurs twice")
    return made


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


# refused: a name given twice, of which readers may take either value, and text after the end
read_names_once = json.JSONDecoder(object_pairs_hook=_once).decode
read_json = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_number).decode


def delta_text(delta: float) -> str:
    """A delta to three digits, rounded up."""
    return f"{_up(repr(float(delta))):.3g}"


def epsilon_text(epsilon: float, digits: int = 3) -> str:
    """An epsilon, or a noise multiplier, to three digits, rounded up; first to nine digits, which removes
    floating-point errors."""
    return "∞" if epsilon == math.inf else f"{_up(f'{epsilon:.9g}', digits):.{digits}g}"


def at_least_text(bound: float) -> str:
    """A lower bound on an epsilon, or noise that was drawn, to three digits, rounded down."""
    return f"{float(Context(prec=3, rounding=ROUND_FLOOR).create_decimal(repr(float(bound)))):.3g}"


def _up(number: str, digits: int = 3) -> float:
    return float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(number))


class Fact(BaseModel):
    """Base class of the records that files hold, validated when read. Unknown keys of a file are ignored."""

    # protected_namespaces: older versions of pydantic warn of every name that begins with model_
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", protected_namespaces=())

    @model_validator(mode="after")
    def _refuse_nulls(self, info: ValidationInfo) -> Self:
        """Refuses a null in a file for an optional value: files leave such values out, so a null is an edit."""
        if info.mode == "json":
            for name in self.model_fields_set:
                if self.__dict__[name] is None and not type(self).model_fields[name].is_required():
                    raise ValueError(f"{name} is null")
        return self

    def to_json(self) -> dict[str, Any]:
        """Names and values in the order of their declaration, without those that equal their default."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def beside(self, **known: object) -> Self:
        """Copy of the record with these values changed."""
        return self.model_copy(update=known)


def text_of(path: Path, fix: str) -> str:
    """The content of a text file of a run; refused where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(path, error, fix) from None


def parsed(path: Path, text: str, kind: type[F], fix: str) -> F:
    """Parses a JSON text into a record. Refuses another format version, text that does not fit the record, and
    duplicate keys.
    """
    try:
        found = kind.model_validate_json(text)
        read_names_once(text)
        return found
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"] == ("format",) and isinstance(first["input"], int):
            raise RunError(
                f"{path} has format {first['input']}",
                why=f"another version of sordino wrote it: this one, {__version__}, reads format {FORMAT}",
                fix="open it with the version that wrote it",
                code="unknown-format",
            ) from None
        place = "".join(f"{part}: " for part in [".".join(map(str, first["loc"]))] if part)
        raise damaged(path, place + first["msg"], fix) from None
    except ValueError as error:
        raise damaged(path, str(error), fix) from None
