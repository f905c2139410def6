"""What a site answers: JSON in the head of a letter, with messages behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from sordino.errors import OwnCodeError, RunError, SordinoError, WireError

BEGIN_FIRST = "begin-first"  # what a site that was started again refuses rounds with, until it is asked to begin


@dataclass(frozen=True)
class Answered:
    """The messages of these clients are the bodies, in this order."""

    clients: list[int] = field(default_factory=list)
    do: Literal["answered"] = "answered"


@dataclass(frozen=True)
class Done:
    """What was asked for is done."""

    do: Literal["done"] = "done"


@dataclass(frozen=True)
class Accepted:
    """This site takes part, with these clients."""

    clients: list[int]
    scores: bool = False  # does it share how well models meet its examples?
    do: Literal["accepted"] = "accepted"


@dataclass(frozen=True)
class Refused:
    """What was asked for is not done, and why. `own`: the code of somebody's own failed."""

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
        """The refusal as an error here. It is somebody else's text: shown, and not believed."""
        if self.own:
            return OwnCodeError(self.what, why=self.why, fix=self.fix, code="own-code")
        code = BEGIN_FIRST if self.code == BEGIN_FIRST else "client-refused"
        return RunError(f"{who} refused", why=f"{self.what}\n{self.why}".strip(), fix=self.fix, code=code)


Answer = Answered | Done | Accepted | Refused
_ANSWER: TypeAdapter[Answer] = TypeAdapter(Annotated[Answer, Field(discriminator="do")])


def said(answer: Answer) -> dict[str, Any]:
    return asdict(answer)


def heard(told: Mapping[str, Any]) -> Answer:
    try:
        return _ANSWER.validate_python(told)
    except ValidationError as error:
        raise WireError(
            "what a site said is no answer",
            why=str(error)[:300],
            fix="server and sites must run the same version of sordino",
            code="no-answer",
        ) from None
