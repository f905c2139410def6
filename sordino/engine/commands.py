"""Commands to a site and its answers: JSON with named fields. The tensors of models follow it as wire messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from sordino.errors import OwnCodeError, RunError, SordinoError, WireError
from sordino.types import Terms

BEGIN_FIRST = "begin-first"  # code of a restarted site's refusal of rounds, until it gets `begin`


@dataclass(frozen=True)
class Round:
    """Command to compute round t of the clients named in `terms`."""

    t: int
    terms: dict[int, Terms]
    apart: bool = False  # true: one message for each client, in place of one broadcast
    among: int = 0  # clients that begin the round, in a secure sum; 0: single uploads are read
    do: Literal["round"] = "round"

    @property
    def messages(self) -> int:
        return len(self.terms) if self.apart else 1


@dataclass(frozen=True)
class Mask:
    """Command to take the next step of the secure-aggregation protocol (masks) with these clients."""

    t: int
    step: Literal["roster", "inbox", "request"]
    clients: list[int]
    do: Literal["mask"] = "mask"

    @property
    def messages(self) -> int:
        return len(self.clients) if self.step == "inbox" else 1


@dataclass(frozen=True)
class Score:
    """Command to score models on the test examples of the site's clients."""

    t: int
    models: int
    ways: list[str] = field(default_factory=list)
    do: Literal["score"] = "score"
    messages = 1


@dataclass(frozen=True)
class Keep:
    """Command to save the states of the site's clients durably."""

    step: int
    do: Literal["keep"] = "keep"
    messages = 0


@dataclass(frozen=True)
class Restore:
    """Command to continue from the client states that the site saved at this step."""

    step: int
    place: str
    do: Literal["restore"] = "restore"
    messages = 0


@dataclass(frozen=True)
class Begin:
    """Command to join this run: the site answers whether it takes part, and with which clients."""

    answered: bool = False  # true: the newest head that the site has signed comes with it
    do: Literal["begin"] = "begin"

    @property
    def messages(self) -> int:
        return int(self.answered)


@dataclass(frozen=True)
class Store:
    """Command to store the tensors that every client receives before the first round."""

    do: Literal["hand"] = "hand"
    messages = 1


@dataclass(frozen=True)
class Publish:
    """Command to send the public half of the key; for a key holder only."""

    do: Literal["publish"] = "publish"
    messages = 0


@dataclass(frozen=True)
class Encrypt:
    """Command to encrypt uploads under this public key."""

    do: Literal["encrypt"] = "encrypt"
    messages = 1


@dataclass(frozen=True)
class OpenSum:
    """Command to decrypt the encrypted sum of a round; for a key holder only."""

    t: int
    clients: int  # number of uploads in the sum, without what the server has added
    size: int = 0  # numbers of an upload, where compression rates follow from earlier sums, which the holder forgets
    do: Literal["open"] = "open"
    messages = 1


@dataclass(frozen=True)
class End:
    """Command to end the run."""

    models: int = 0  # 1: the trained model comes with it, for the site to keep
    do: Literal["end"] = "end"

    @property
    def messages(self) -> int:
        return min(1, self.models)


Command = Round | Mask | Score | Keep | Restore | Begin | Store | Publish | Encrypt | OpenSum | End
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
    """Validated command from decoded JSON."""
    try:
        return _COMMAND.validate_python(fields)
    except ValidationError as error:
        raise _no_command(error) from None


def _no_command(error: ValueError) -> WireError:
    return WireError(
        "a site received something that is not a command",
        why=str(error),
        fix="server and sites must run the same version of the library",
        code="no-command",
    )


@dataclass(frozen=True)
class Answered:
    """Answer that holds one message for each of these clients, in this order."""

    clients: list[int] = field(default_factory=list)
    do: Literal["answered"] = "answered"


@dataclass(frozen=True)
class Done:
    """Answer that the command was carried out."""

    do: Literal["done"] = "done"


@dataclass(frozen=True)
class Accepted:
    """Answer to `Begin` that this site takes part, with these clients."""

    clients: list[int]
    scores: bool = False  # true: the site shares scores of models on its examples
    do: Literal["accepted"] = "accepted"


@dataclass(frozen=True)
class Refused:
    """Answer that refuses a command and says why. `own`: a user's own code failed."""

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
        """Error to raise on the side that sent the command. Its text comes from the other side: it is only displayed,
        never used for decisions.
        """
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
