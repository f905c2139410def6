"""Privacy receipts of runs, and run folders: guarantees and spent budgets, which others can recompute.

Nothing here trains, reads data, draws noise or serves.

The classes below are the JSON files of a run folder; a file of another shape is refused as damaged. `receipt_schema`
makes the published JSON Schema from the fields of `Receipt` and their descriptions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from pydantic import Field

from sordino.accounting.claims import AN_EVENT, Status, Subject
from sordino.accounting.events import KINDS, Json
from sordino.accounting.facts import Epsilon, Fact, Format, Number
from sordino.accounting.statement import Guarantee, OfPhase

OWN_COUNT = ", by the publication's own count, which proves nothing"


class Environment(Fact):
    """environment.json: the run's name, and where it was computed."""

    format: Format  # of the whole folder
    run: str
    config: str
    sordino: str
    python: str = ""
    torch: str = ""
    platform: str = ""
    processor: str = ""
    cores: int = 0
    started: str = ""
    began: str = ""  # path from the run's folder to the folder that relative paths start from
    prepared: str = ""  # the run whose preparation was taken over
    site: str = ""  # in a run between sites: the site that owns this folder; "server" for the server's
    clients: tuple[int, ...] | None = None  # numbers of a site's own clients
    shares_scores: bool | None = None  # at a site: true where it sends the server scores of models on its examples
    unwitnessed: str = ""  # why an older copy of the ledger, put in place of this one, would go unnoticed


class Between(Fact):
    """Smallest, median and largest of a number over clients."""

    min: Number = Field(description="The smallest over all clients.")
    median: Number = Field(description="The median over all clients.")
    max: Number = Field(description="The largest over all clients.")


class Group(Fact):
    """Clients with the same privacy budget (epsilon)."""

    granted: Number = Field(ge=0, description="The epsilon that each of them grants.")
    clients: int = Field(description="Number of clients in the group.")
    spent: Epsilon = Field(
        description="The epsilon of the client with the largest privacy loss, from the ledger's events."
    )
    status: Status = Field(description="Strength of the proof, as in a guarantee.")
    claimed: Number | None = Field(
        description="The epsilon by the publication's own count, which proves nothing; null where the count is sound."
    )
    participations: Between = Field(description="Number of rounds in which they paid.")


class ReceiptBudget(Fact):
    """Privacy budget of the clients, and the share of it that is spent, counted in a quantity that adds up over
    rounds."""

    epsilon: Number = Field(ge=0, description="The largest epsilon that a client grants, over all rounds.")
    delta: Number = Field(ge=0, description="The delta of that epsilon.")
    currency: str = Field(
        description="The quantity that adds up in the ledger: such as rho of zCDP, mu^2 of Gaussian DP, or epsilon."
    )
    granted: tuple[float, ...] = Field(
        description="The largest budget in that currency; several numbers where the currency has several orders."
    )
    spent_share: Between = Field(description="The share of its own budget that a client has spent.")
    participations_planned: Between = Field(description="Number of rounds in which a client was to pay.")
    participations_used: Between = Field(description="Number of rounds in which a client did pay.")
    groups: tuple[Group, ...] = Field(default=(), description="Personal budgets: clients that grant the same.")
    subject: Subject | None = Field(default=None, description="Unit, change and adversary of the groups' epsilons.")

    def nominal(self, rows: Sequence[Guarantee]) -> bool:
        """True if it is counted by a publication's formula, which proves nothing, as one of the guarantees says."""
        printed = self.epsilon * self.spent_share.max
        return any(one.claimed is not None for one in self.groups) or printed in [row.nominal_epsilon for row in rows]

    def caveat(self, rows: Sequence[Guarantee]) -> str:
        """Words to stand behind what is spent of it; empty where it is counted by a sound rule."""
        return OWN_COUNT if self.nominal(rows) else ""


class Receipt(Fact):
    """privacy.json: the guarantees of a run, and the budget that was spent."""

    format: Format = Field(description="The version of this shape: 1.")
    run: str = Field(description="The run's name in the ledger and in environment.json.")
    config: str = Field(description="Digest of experiment.toml, which every entry of the ledger names too.")
    simulated: bool = Field(
        description="true: the noise came from a seed and can be repeated, so this run protects nobody."
    )
    rounds: int = Field(description="Rounds that the ledger knows: one that was begun counts.")
    clients: int = Field(description="Number of clients that this receipt is about: all of them, or those of one site.")
    guarantees: tuple[Guarantee, ...] = Field(description="One row for each unit and adversary.")
    budget: ReceiptBudget | None = Field(
        description="Budgets that clients granted, and the part that is spent; null where they granted none."
    )
    phases: tuple[OfPhase, ...] = Field(
        default=(), description="Guarantees of each phase of a run with a preparation, given what went out before it."
    )
    assumptions: tuple[str, ...] = Field(
        description="Assumptions behind the numbers, in words. They are part of the guarantee."
    )
    ledger_head: str = Field(description="Hash of the ledger's last entry when the receipt was sealed.")
    files: Mapping[str, str] = Field(
        default={},
        description="SHA-256 of the files that belong to the receipt, by name (of agreement.json: without `dataset`).",
    )


class OfClient(Fact):
    """Spending of one client; None: unknown, or not to be shown."""

    client: int
    name: str = ""  # where clients have names
    examples: int | None
    participations: int | None
    planned: int | None
    spent: tuple[float, ...]
    granted: tuple[float, ...] | None  # None: without a limit
    epsilon: Number | None

    @property
    def spent_share(self) -> float:
        """Share of the budget that is spent, in the component that is closest to its limit."""
        parts = () if self.granted is None else zip(self.spent, self.granted, strict=True)
        return max((part / limit for part, limit in parts if limit), default=0.0)


class Spending(Receipt):
    """Receipt of a run so far, with the spending of each client."""

    by_client: tuple[OfClient, ...]
    currency: str


class OfRun(Fact):
    """Number of releases that a ledger holds of one run."""

    run: str
    releases: int


class Lifetime(Fact):
    """Spending of all runs on one ledger together."""

    guarantees: tuple[Guarantee, ...]
    phases: tuple[OfPhase, ...] = ()
    simulated: bool
    assumptions: tuple[str, ...]
    budget: ReceiptBudget | None
    runs: tuple[OfRun, ...]
    by_client: tuple[OfClient, ...]
    currency: str


class LeftInRun(Fact):
    """Base class for results that an audit or an attack stores in the folder of a run."""

    experiment: str  # its digest

    def to_json(self) -> dict[str, object]:
        """All fields, defaults included, so that the file can be read on its own."""
        return self.model_dump(mode="json", exclude_none=True)


# the published JSON Schema ------------------------------------------------------------------------------------------
DIALECT = "https://json-schema.org/draft/2020-12/schema"
TITLE = "privacy.json: what a run of sordino promised and spent, to whom, under which assumptions"
LINK = {"$ref": "#/$defs/Event"}
INSIDE: Mapping[str, Json] = {  # the types that fields of events have
    "float": {"type": "number"},
    "int": {"type": "integer"},
    "str": {"type": "string"},
    "Event": LINK,
    "tuple[Event, ...]": {"type": "array", "items": LINK},
}


def receipt_schema() -> Json:
    """JSON Schema of privacy.json. Fields that it does not name are not allowed."""
    made = Receipt.model_json_schema(mode="validation")
    shapes = made.pop("$defs")
    known = shapes["Guarantee"]["properties"]
    receipt = {"$schema": DIALECT, **made, "title": TITLE}
    for shape in (receipt, *shapes.values()):
        shape["additionalProperties"] = False
        shape["properties"] = {  # a row of a phase, and a subject, mean what a guarantee means
            field: {"description": known.get(field, kind).get("description", ""), **_written(kind)}
            for field, kind in shape["properties"].items()
        }
    whole: Json = _linked({**receipt, "$defs": {**shapes, "Event": {"oneOf": list(_events())}}})
    return whole


def _written(kind: Json) -> Json:
    """The type of a field in a file: a value that equals its default is left out, so null is not among its types."""
    kept = {name: value for name, value in kind.items() if name not in ("title", "default")}
    if "default" in kind and kind["default"] is None:
        kept["anyOf"] = [one for one in kind["anyOf"] if one != {"type": "null"}]
    return kept


def _events() -> Iterator[Json]:
    for kind, made in KINDS.items():
        parts = {field.name: INSIDE[str(field.type)] for field in fields(made)}
        yield {
            "type": "object",
            "description": made.meaning,
            "properties": {"kind": {"const": kind}, **parts},
            "required": ["kind", *parts],
            "additionalProperties": False,
        }


def _linked(part: Any) -> Any:
    """The schema with each copy of the event schema replaced by a reference to it."""
    if part == AN_EVENT:
        return LINK
    if isinstance(part, dict):
        return {name: _linked(inner) for name, inner in part.items()}
    return [_linked(inner) for inner in part] if isinstance(part, list) else part
