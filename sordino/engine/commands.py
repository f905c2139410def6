"""What a site is asked to do: commands, as JSON that says by name what is what. The numbers of a model travel behind
them, as wire messages.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from sordino.errors import WireError
from sordino.types import Terms


@dataclass(frozen=True)
class Round:
    """Compute round t of the clients named in `terms`."""

    t: int
    terms: dict[int, Terms]
    apart: bool = False  # is every client told something of its own? Then there is a message for each
    do: Literal["round"] = "round"

    @property
    def messages(self) -> int:
        return len(self.terms) if self.apart else 1


@dataclass(frozen=True)
class Score:
    """Say how well models meet the test examples of your clients."""

    t: int
    models: int
    ways: list[str] = field(default_factory=list)
    do: Literal["score"] = "score"
    messages = 1


@dataclass(frozen=True)
class Keep:
    """Make the states of your clients durable."""

    step: int
    do: Literal["keep"] = "keep"
    messages = 0


@dataclass(frozen=True)
class Restore:
    """Go on from states that you kept."""

    step: int
    place: str
    do: Literal["restore"] = "restore"
    messages = 0


@dataclass(frozen=True)
class End:
    """It is over."""

    do: Literal["end"] = "end"
    messages = 0


Command = Round | Score | Keep | Restore | End
_COMMAND: TypeAdapter[Command] = TypeAdapter(Annotated[Command, Field(discriminator="do")])


def packed(command: Command) -> bytes:
    return json.dumps(asdict(command)).encode()


def parsed(frame: bytes) -> Command:
    try:
        return _COMMAND.validate_python(json.loads(frame))
    except (ValueError, ValidationError) as error:
        raise WireError(
            "a site was sent what is no command",
            why=str(error),
            fix="server and sites must run the same version of the library",
            code="no-command",
        ) from None
