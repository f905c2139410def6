"""agreement.toml: the agreement of the sites before a run, and all that the server ever knows of their data.

    format = 1
    [data]                        # what everybody may know of one example
    kind = "table"
    shape = [30]
    classes = 2
    ...
    [[clients]]                   # one for each client, in the order of their numbers
    name = "hospital-a"
    site = "hospital-a"           # that holds its data
    examples = 812                # for training
    tested = 203                  # for tests
    commitment = "5f1c..."        # digest of its data, under a key that stays there

Its digest stands for the data in the server's ledger, and in every message between server and sites.

invitation.toml: all that a site must know to decide about taking part. It holds no secret. A forged one is noticed by
the fingerprint of the server's key, which sites compare over another channel.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import Field, ValidationError, model_validator

from sordino import config, user_code
from sordino.accounting.facts import FORMAT, Fact, Format
from sordino.config import Engine, Experiment
from sordino.data import schema
from sordino.data.schema import TableSchema
from sordino.errors import ConfigError
from sordino.planning import MOST, AboutData, PublicNumbers
from sordino.runs.declared_data import LEARNED
from sordino.runs.public_inputs import declared_scale
from sordino.sites.identity import Name
from sordino.transport.message import Signer


class Announced(AboutData):
    """Announcement of a site about its examples; no field can hold a number computed from rows."""

    declared: str = ""  # digest of a table's schema
    reach: tuple[float, float] | None = None  # range of a user's own source, as its class declares


class AgreedClient(Fact, extra="forbid"):
    """One client of the agreement, as its site has announced it: name, numbers of examples, digest of its data."""

    name: Name
    site: Name
    examples: int = Field(ge=1, le=MOST)
    tested: int = Field(default=0, ge=0, le=MOST)
    commitment: str = Field(pattern="^[0-9a-f]{64}$")


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
        if len({client.commitment for client in self.clients}) < len(names):  # only of one site: each has a key
            raise ValueError("two clients have the same rows: each would be promised its own epsilon, and lose both")
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


SERVER = "server"


class Invited(Fact, extra="forbid"):
    """Contents of invitation.toml, as text."""

    format: Format
    run: str = Field(pattern="^[A-Za-z0-9_-]{1,64}$")  # in the name of a folder and, before a dot, of ledger entries
    server: str  # HOST:PORT
    server_key: str = Field(pattern="^[0-9a-f]{64}$")  # Ed25519
    experiment: str  # TOML
    agreement: str  # TOML
    table_schema: str = ""  # TOML


@dataclass(frozen=True)
class Invitation:
    """Invitation of a site to a run, parsed."""

    fields: Invited

    @cached_property
    def experiment(self) -> Experiment:
        """Experiment of the run. Of `[engine]` only the settings that change numbers are taken; all others are up to
        this machine.
        """
        whole = config.load(tomllib.loads(self.fields.experiment))
        engine = Engine(executor=whole.engine.executor, precision=whole.engine.precision)
        return whole.model_copy(update={"engine": engine})

    @cached_property
    def agreement(self) -> SitesAgreement:
        return read_toml(self.fields.agreement, "the agreement in the invitation")

    @property
    def server_key(self) -> Ed25519PublicKey:
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.fields.server_key))

    @property
    def declared(self) -> TableSchema | None:
        return schema.parsed(self.fields.table_schema) if self.fields.table_schema else None

    def signer(self, name: str, config: str, identity: Ed25519PrivateKey) -> Signer:
        """Signing identity of an invited side; `config`: digest of the experiment with that side's own settings."""
        return Signer(name, self.fields.run, config, self.agreement.digest, identity, {SERVER: self.server_key})

    def toml(self) -> str:
        return tomli_w.dumps(self.fields.to_json(), multiline_strings=True)


def invite(
    run: str, address: str, identity: Ed25519PrivateKey, experiment: Experiment, agreed: SitesAgreement
) -> Invitation:
    """Make the server's invitation of sites to a run. It names no file here; a table's schema is in it as text, without
    the comments of a draft, which tell of the rows that it was made from.
    """
    text, data = "", experiment.data
    if data.source == "tabular" and data.schema not in (None, LEARNED):
        text = tomli_w.dumps(tomllib.loads(Path(str(data.schema)).expanduser().read_text(encoding="utf-8")))
    shown = experiment.model_copy(update={"data": data.model_copy(update={"path": None})})
    return Invitation(
        Invited(
            format=FORMAT,
            run=run,
            server=address,
            server_key=identity.public_key().public_bytes_raw().hex(),
            experiment=shown.toml(),
            agreement=agreed.toml(),
            table_schema=text,
        )
    )


def read_invitation(path: Path, with_code: bool = False) -> Invitation:
    """Read and check an invitation. `with_code`: the caller knows the user-defined classes that the invitation names,
    and lets them run."""
    try:
        return parsed_invitation(path.read_bytes(), with_code, str(path))
    except OSError as error:
        raise _no_invitation(str(path), error) from None


def parsed_invitation(text: bytes, with_code: bool, name: str = "what the server sends") -> Invitation:
    """Parse and check the text of an invitation. `with_code`: it may name user-defined classes, which then run here."""
    try:
        fields = Invited.model_validate_json(json.dumps(tomllib.loads(text.decode())))
        found = Invitation(fields)
        _check_text(name, tomllib.loads(fields.experiment), fields, with_code)
        _ = found.server_key, found.experiment, found.declared, found.agreement
    except (UnicodeDecodeError, ValidationError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise _no_invitation(name, error) from None
    return found


def _no_invitation(name: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{name} is not an invitation",
        why=str(error)[:300],
        fix="`sordino serve` writes invitation.toml into its run folder: ask for that file",
        code="no-invitation",
    )


def _check_text(path: str, experiment: dict[str, Any], fields: Invited, with_code: bool) -> None:
    """Refuse an experiment that would run a program on this machine, or read one of its files."""
    if not with_code and (named := sorted(set(user_code.named(experiment)))):
        raise ConfigError(
            f"{path} names code: {', '.join(named)}",
            why="it would run here, beside this site's data, with all that you may do on this machine",
            fix="read that file on this machine, and if you trust it, say --with-code",
            code="code-in-invitation",
        )
    data = experiment.get("data")
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema not in (None, LEARNED) and not fields.table_schema:
        raise ConfigError(
            f"{path} names the file {schema!r} as the schema of the table, but does not contain it",
            why="the file of that name on this machine may differ from the server's",
            fix="ask for an invitation that `sordino serve` wrote: it holds the schema",
            code="schema-not-in-invitation",
        )
