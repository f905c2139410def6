"""agreement.toml: the agreement of the sites before a run, and all that the server ever knows of their data.

    format = 1
    [data]                        # what everybody may know of one example
    kind = "table"
    shape = [30]
    classes = 2
    ...
    [[clients]]                   # one for each client, in the order of their numbers
    name = "hospital-a"
    site = "hospital-a"           # where it lies
    examples = 812                # that it trains on
    tested = 203                  # and that it is tested on
    commitment = "5f1c..."        # digest of its data, under a key that stays there

Its digest stands for the data in the server's ledger, and in every message between server and sites.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path

import tomli_w
from pydantic import Field, ValidationError, model_validator

from sordino.accounting.facts import Fact, Format
from sordino.config import Experiment
from sordino.data.schema import TableSchema
from sordino.errors import ConfigError
from sordino.planning.agreement import MOST, AboutData, PublicNumbers
from sordino.runs.public_inputs import declared_scale
from sordino.sites.identity import Name


class Announced(AboutData):
    """Announcement of a site about its examples; no field can hold a number computed from rows."""

    declared: str = ""  # digest of a table's schema
    reach: tuple[float, float] | None = None  # of values of a user's own source, as its class declares it


class AgreedClient(Fact, extra="forbid"):
    """One client of the agreement, as its site has announced it: name, numbers of examples, digest of its data."""

    name: Name
    site: Name
    examples: int = Field(ge=1, le=MOST)
    tested: int = Field(default=0, ge=0, le=MOST)
    commitment: str = ""


class SitesAgreement(Fact, extra="forbid"):
    """Contents of agreement.toml: the clients of a run between sites, and public facts about their data."""

    format: Format
    data: Announced
    clients: tuple[AgreedClient, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _each_once(self) -> SitesAgreement:
        names = [client.name for client in self.clients]
        if len(set(names)) < len(names):
            raise ValueError("two clients have the same name")
        return self

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    @property
    def sites(self) -> dict[str, list[int]]:
        """Sites by name, each with the numbers of its clients."""
        found: dict[str, list[int]] = {}
        for k, client in enumerate(self.clients):
            found.setdefault(client.site, []).append(k)
        return found

    def public(self, experiment: Experiment, schema: TableSchema | None) -> PublicNumbers:
        """Public numbers of the clients' data, such as their sizes. Inputs are scaled by declared values: no number
        here is computed from rows."""
        data = self.data
        mean, std = declared_scale(experiment.data, data.kind, data.shape, schema, data.reach)
        return PublicNumbers(
            **data.about,
            sizes=tuple(client.examples for client in self.clients),
            mean=mean,
            std=std,
            clients=tuple(client.name for client in self.clients),
        )

    def toml(self) -> str:
        return tomli_w.dumps(self.to_json())


def merged(parts: Sequence[SitesAgreement]) -> SitesAgreement:
    """Merges the sites' announcements of their data into one agreement; they must be equal in everything but the
    clients.
    """
    first = parts[0].data.to_json()
    for part in parts[1:]:
        if differs := [name for name, value in part.data.to_json().items() if value != first.get(name)]:
            raise ConfigError(
                f"{part.clients[0].name} announces another {differs[0]} than {parts[0].clients[0].name}",
                why=f"{part.data.to_json()[differs[0]]!r:.80} is not {first.get(differs[0])!r:.80}; one model must fit "
                "all sites, and nothing may be learned from one site's rows",
                fix="use the same experiment and schema everywhere",
                code="sites-differ",
            )
    return read_toml(tomli_w.dumps({**parts[0].to_json(), "clients": [c.to_json() for p in parts for c in p.clients]}))


def read(path: Path) -> SitesAgreement:
    try:
        return read_toml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the agreement {path}",
            why=str(error),
            fix="`sordino data agree` makes one from the announcements of the sites",
            code="no-agreement",
        ) from None


def read_toml(text: str, name: str = "the agreement") -> SitesAgreement:
    try:
        return SitesAgreement.model_validate_json(json.dumps(tomllib.loads(text)))
    except (ValidationError, ValueError, RecursionError) as error:
        why = (
            "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:3])
            if isinstance(error, ValidationError)
            else str(error)
        )
        raise ConfigError(
            f"{name} is not an agreement",
            why=why,
            fix="`sordino data agree` makes one from the announcements of the sites",
            code="bad-agreement",
        ) from None
