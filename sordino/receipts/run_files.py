"""What the JSON files of a run folder hold. A file of another shape is damaged, and told so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from sordino.accounting.claims import Adversary, Neighbours, Status, Unit
from sordino.accounting.facts import Epsilon, Fact, Format, Number
from sordino.accounting.statement import Guarantee, Written

F = TypeVar("F", bound=Fact)


class Environment(Fact):
    """environment.json: which run this is, and where it was computed."""

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
    began: str = ""  # from the run's folder to where relative paths lead from
    prepared: str = ""  # the run whose preparation was taken over
    site: str = ""  # whose folder this is, in a run between sites; "server" for the server's
    clients: tuple[int, ...] | None = None  # of a site: its own, by their numbers
    shares_scores: bool | None = None  # of a site: does it tell the server how well models meet its examples?
    unwitnessed: str = ""  # why nobody would have noticed that an older copy of the ledger was put in its place


class Promised(Guarantee):
    """What one phase promises, given what went out before it."""

    accountant: str = ""
    accountants: Mapping[str, Epsilon] = {}
    releases: int = 0
    event: Written | None = None


class OfPhase(Fact):
    """What one phase released, and what it promises."""

    phase: str
    releases: int
    guarantees: tuple[Promised, ...]


class Between(Fact):
    """How a number is spread over clients."""

    min: Number
    median: Number
    max: Number


class Group(Fact):
    """Clients that grant the same."""

    granted: Number
    clients: int
    spent: Epsilon  # by the client that lost most, from the ledger's events
    status: Status
    claimed: Number | None  # as published
    exposures: Between


class Subject(Fact):
    """Whose loss groups tell, under which change, to whom."""

    unit: Unit
    neighbours: Neighbours
    adversary: Adversary


class ReceiptBudget(Fact):
    """What clients granted and spent, in the currency that adds up."""

    epsilon: Number
    delta: Number
    currency: str
    granted: tuple[float, ...]
    spent_share: Between
    exposures_planned: Between
    exposures_used: Between
    groups: tuple[Group, ...] = ()
    subject: Subject | None = None


class Receipt(Fact):
    """privacy.json"""

    format: Format
    run: str
    config: str
    simulated: bool
    rounds: int
    clients: int
    guarantees: tuple[Guarantee, ...]
    budget: ReceiptBudget | None
    phases: tuple[OfPhase, ...] = ()
    assumptions: tuple[str, ...]
    ledger_head: str
    files: Mapping[str, str] = {}  # digests


class OfClient(Fact):
    """What one client has spent; None: unknown, or nothing that may be told."""

    client: int
    name: str = ""  # where clients have names
    examples: int | None
    exposures: int | None
    planned: int | None
    spent: tuple[float, ...]
    granted: tuple[float, ...] | None  # None: without a limit
    epsilon: Number | None


class Spending(Receipt):
    """What a run has spent until now."""

    by_client: tuple[OfClient, ...]
    currency: str


class OfRun(Fact):
    run: str
    releases: int


class Lifetime(Fact):
    """What all runs on one ledger have spent together."""

    guarantees: tuple[Guarantee, ...]
    phases: tuple[OfPhase, ...] = ()
    simulated: bool
    assumptions: tuple[str, ...]
    budget: ReceiptBudget | None
    runs: tuple[OfRun, ...]
    by_client: tuple[OfClient, ...]
    currency: str


class LeftInRun(Fact):
    """What somebody found out about a run afterwards, and left in its folder."""

    experiment: str  # its digest
