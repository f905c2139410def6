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
    among: int = 0  # clients that begin the round, where nobody may read one upload; 0: uploads are read
    do: Literal["round"] = "round"

    @property
    def messages(self) -> int:
        return len(self.terms) if self.apart else 1


@dataclass(frozen=True)
class Mask:
    """Take the next step of a round whose uploads are masked, with these clients."""

    t: int
    step: Literal["roster", "inbox", "request"]
    clients: list[int]
    do: Literal["mask"] = "mask"

    @property
    def messages(self) -> int:
        return len(self.clients) if self.step == "inbox" else 1


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
class Begin:
    """Say whether you take part in this run."""

    answered: bool = False  # does the newest head that you have signed come along?
    do: Literal["begin"] = "begin"

    @property
    def messages(self) -> int:
        return int(self.answered)


@dataclass(frozen=True)
class Hand:
    """Keep what every client is given before the first round."""

    do: Literal["hand"] = "hand"
    messages = 1


@dataclass(frozen=True)
class Publish:
    """Give out the public half of your key; a key holder is asked this."""

    do: Literal["publish"] = "publish"
    messages = 0


@dataclass(frozen=True)
class Encrypt:
    """Encrypt uploads under this public key."""

    do: Literal["encrypt"] = "encrypt"
    messages = 1


@dataclass(frozen=True)
class OpenSum:
    """Open the encrypted sum of a round; a key holder is asked this."""

    t: int
    clients: int  # whose uploads are in the sum, beside what the server has added
    do: Literal["open"] = "open"
    messages = 1


@dataclass(frozen=True)
class End:
    """It is over."""

    models: int = 0  # what was trained, for the site to keep
    do: Literal["end"] = "end"

    @property
    def messages(self) -> int:
        return min(1, self.models)


Command = Round | Mask | Score | Keep | Restore | Begin | Hand | Publish | Encrypt | OpenSum | End
_COMMAND: TypeAdapter[Command] = TypeAdapter(Annotated[Command, Field(discriminator="do")])


def packed(command: Command) -> bytes:
    return json.dumps(asdict(command)).encode()


def parsed(frame: bytes) -> Command:
    try:
        return understood(json.loads(frame))
    except ValueError as error:
        if isinstance(error, WireError):
            raise
        raise _no_command(error) from None


def understood(told: object) -> Command:
    """The command in what was read of JSON."""
    try:
        return _COMMAND.validate_python(told)
    except ValidationError as error:
        raise _no_command(error) from None


def _no_command(error: ValueError) -> WireError:
    return WireError(
        "a site was sent what is no command",
        why=str(error),
        fix="server and sites must run the same version of the library",
        code="no-command",
    )
