"""Commands to a site, and its answers: JSON that says by name what is what. The numbers of a model travel behind it, as
wire messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from sordino.errors import OwnCodeError, RunError, SordinoError, WireError
from sordino.types import Terms

BEGIN_FIRST = "begin-first"  # what a site that was started again refuses rounds with, until it is asked to begin


@dataclass(frozen=True)
class Round:
    """Compute round t of the clients named in `terms`."""

    t: int
    terms: dict[int, Terms]
    apart: bool = False  # is every client told something of its own? Then there is a message for each
    among: int = 0  # clients that begin the round, in a secure sum; 0: single uploads are read
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
    """End the run."""

    models: int = 0  # what was trained, for the site to keep
    do: Literal["end"] = "end"

    @property
    def messages(self) -> int:
        return min(1, self.models)


Command = Round | Mask | Score | Keep | Restore | Begin | Hand | Publish | Encrypt | OpenSum | End
_COMMAND: TypeAdapter[Command] = TypeAdapter(Annotated[Command, Field(discriminator="do")])


def encode_command(command: Command) -> bytes:
    return json.dumps(asdict(command)).encode()


def decode_command(frame: bytes) -> Command:
    try:
        return read_command(json.loads(frame))
    except ValueError as error:
        if isinstance(error, WireError):
            raise
        raise _no_command(error) from None


def read_command(fields: object) -> Command:
    """The command in what was read of JSON."""
    try:
        return _COMMAND.validate_python(fields)
    except ValidationError as error:
        raise _no_command(error) from None


def _no_command(error: ValueError) -> WireError:
    return WireError(
        "a site was sent something that is not a command",
        why=str(error),
        fix="server and sites must run the same version of the library",
        code="no-command",
    )


@dataclass(frozen=True)
class Answered:
    """The messages of these clients are the bodies, in this order."""

    clients: list[int] = field(default_factory=list)
    do: Literal["answered"] = "answered"


@dataclass(frozen=True)
class Done:
    """The command is done."""

    do: Literal["done"] = "done"


@dataclass(frozen=True)
class Accepted:
    """This site takes part, with these clients."""

    clients: list[int]
    scores: bool = False  # does it share how well models meet its examples?
    do: Literal["accepted"] = "accepted"


@dataclass(frozen=True)
class Refused:
    """The command is refused, and why. `own`: a user's own code failed."""

    what: str
    why: str = ""
    fix: str = ""
    code: str = ""
    own: bool = False
    do: Literal["refused"] = "refused"

    @classmethod
    def of(cls, error: SordinoError) -> Refused:
        return cls(error.what[:2000], error.why[:2000], error.fix[:2000], error.code, isinstance(error, OwnCodeError))

    def error(self, who: str) -> SordinoError:
        """Error to raise here. Its text is the other side's: shown, and not believed."""
        if self.own:
            return OwnCodeError(self.what, why=self.why, fix=self.fix, code="own-code")
        code = BEGIN_FIRST if self.code == BEGIN_FIRST else "client-refused"
        return RunError(f"{who} refused", why=f"{self.what}\n{self.why}".strip(), fix=self.fix, code=code)


Answer = Answered | Done | Accepted | Refused
_ANSWER: TypeAdapter[Answer] = TypeAdapter(Annotated[Answer, Field(discriminator="do")])


def read_answer(fields: Mapping[str, Any]) -> Answer:
    try:
        return _ANSWER.validate_python(fields)
    except ValidationError as error:
        raise WireError(
            "a site sent something that is not an answer",
            why=str(error)[:300],
            fix="server and sites must run the same version of sordino",
            code="no-answer",
        ) from None
