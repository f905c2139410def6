"""What the JSON files of a run folder look like: as much of it as anything that reads them counts on. A file of another
shape is damaged, and told so.

Keys that are not named here may be anything.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from sordino.errors import damaged

MOST, MOST_CLIENTS = 10**9, 10**7  # of anything that is counted here
Epsilon = float | Literal["inf"]


class Shape(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class Scored(Shape):
    """Of one model: scores come together."""

    accuracy: float = 0.0
    loss: float = 0.0
    clients: Spread | None = None

    @model_validator(mode="after")
    def _together(self) -> Scored:
        if {"accuracy", "clients"} & self.model_fields_set and "loss" not in self.model_fields_set:
            raise ValueError("it has scores without a loss")
        if "clients" in self.model_fields_set and self.clients is None:
            raise ValueError("clients is null")
        return self


class Spread(Shape):
    metric: Literal["accuracy", "loss"] = "loss"
    mean: float
    std: float
    worst_tenth: float
    each: list[float | None] = []


class Secure(Shape):
    mode: Literal["full", "probe"]
    saturated: int = 0


class Round(Scored):
    """A line of metrics.jsonl."""

    round: int
    bytes_down: int = 0
    bytes_up: int = 0
    lost: bool = False
    active: int = 0
    answered: int = 0
    payload: int = 0
    device_flops: float = 0.0
    model_norm: float = 0.0
    also: dict[str, Scored] = {}
    secure: Secure = Secure(mode="full", saturated=0)


class Evaluated(Round):
    """A line of private/metrics.jsonl: what an evaluator may see."""


class Prepared(Shape):
    """A line of preparation.jsonl."""

    phase: str
    round: int
    bytes_down: int
    bytes_up: int
    payload: int
    active: int = 0
    answered: int = 0
    device_flops: float = 0.0


class Cost(Shape):
    """A line of costs.jsonl."""

    round: int
    seconds: float = 0.0
    cpu_seconds: dict[str, float] = {}


class Environment(Shape):
    """environment.json"""

    run: str
    config: str
    sordino: str
    started: str = ""
    prepared: str = ""


class Agreed(Shape):
    """agreement.json"""

    format: Literal[1]
    dataset: str
    kind: Literal["image", "table"]
    shape: list[int]
    classes: int
    named: int
    sizes: list[list[int]]
    coordinates: dict[str, int]
    assumed: list[str]
    void: list[str]
    note: str
    names: list[str]

    @model_validator(mode="after")
    def _possible(self) -> Agreed:
        if not self.shape or min(self.shape) < 1 or math.prod(self.shape) > MOST:
            raise ValueError(f"shape is {self.shape}")
        if not all(len(pair) == 2 and 1 <= pair[0] <= MOST and pair[1] >= 1 for pair in self.sizes):
            raise ValueError("sizes are no pairs of a size and how many clients have it")
        if not 1 <= sum(many for _, many in self.sizes) <= MOST_CLIENTS:
            raise ValueError(f"sizes are of no client, or of more than {MOST_CLIENTS:,}")
        if not all(0 <= many <= MOST for many in (self.classes, self.named, *self.coordinates.values())):
            raise ValueError("a count is negative, or it is too large")
        return self


class Guarantee(Shape):
    unit: Literal["pixel", "image", "example", "cell", "client"]
    neighbours: Literal["add_remove", "replace", "zero_out"]
    adversary: Literal["server", "participants", "public"]
    epsilon: Epsilon
    delta: float
    status: Literal["proved", "conditional", "asymptotic", "nominal", "none"]
    because: list[str]
    accountant: str
    nominal_epsilon: Epsilon = 0.0
    nominal_composed: Epsilon = 0.0


class OfPhase(Shape):
    phase: str
    releases: int
    guarantees: list[Promised]


class Promised(Guarantee):
    accountant: str = ""


class Between(Shape):
    min: float
    max: float


class Level(Shape):
    granted: float
    clients: int
    spent: Epsilon
    status: str
    claimed: float | None
    exposures: Between


class Subject(Shape):
    unit: str
    neighbours: str
    adversary: str


class Budget(Shape):
    epsilon: float
    delta: float
    currency: str
    granted: list[float]
    spent_share: Between
    exposures_used: Between
    groups: list[Level] = []
    subject: Subject | None = None


class Receipt(Shape):
    """privacy.json"""

    rounds: int
    clients: int
    simulated: bool
    guarantees: list[Guarantee]
    budget: Budget | None
    assumptions: list[str]
    phases: list[OfPhase] = []
    files: dict[str, str] = {}


def parsed(path: Path, text: str | bytes, shape: type[Shape], fix: str) -> dict[str, Any]:
    """The object in a text, as it stands there."""
    try:
        found: dict[str, Any] = json.loads(text)
        shape.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        raise damaged(path, f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}", fix) from None
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}", fix) from None
    return found
