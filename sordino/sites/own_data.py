"""Data of a site, or of a server, read from its own file; and the announcement of a site's data to the others before a
run: numbers of examples and a keyed digest.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sordino.accounting.facts import FORMAT
from sordino.config import Experiment
from sordino.data.schema import TableSchema
from sordino.errors import DataError
from sordino.runs.backend import ServerRows, examples_of
from sordino.runs.population import Population
from sordino.runs.public_inputs import DEALT, PARTITION, brought, check_announced
from sordino.sites.agreement_file import AgreedClient, Announced, SitesAgreement
from sordino.types import Examples


@dataclass(frozen=True)
class OwnData:
    """Rows of one client, read from its own file as the experiment says."""

    experiment: Experiment
    path: Path
    key: bytes  # key of the data's digest; it is sent to nobody
    schema: TableSchema | None = None  # schema of a table, if the experiment's file is not here

    @cached_property
    def _population(self) -> Population:
        """Data of this client alone, with no examples set aside for a server."""
        data = self.experiment.data.model_copy(
            update={"path": str(self.path), "train": None, "test": None, "probe": None}
        )
        alone = {"data": data, "partition": {"scheme": "iid", "clients": 1}, "candidates": None}
        return Population(self.experiment.model_copy(update=alone), self.key, self.schema)

    def announced(self, name: str, site: str = "") -> SitesAgreement:
        """Announcement of this client and of public facts about its data. Of the rows it tells only their number and a
        keyed digest.
        """
        held = self._population
        check_announced(held.experiment.data, held.disclosures.learned_from_rows)
        client = AgreedClient(
            name=name,
            site=site or name,
            examples=len(self.trained.y),
            tested=len(self.tested.y),
            commitment=self.commitment,
        )
        held.check()
        public, own = held.public, held.source.own
        # all rows here belong to one client, so there is no partition to assume anything about
        kept = (sentence for sentence in public.assumed if sentence not in (DEALT, PARTITION))
        assumed = tuple(dict.fromkeys((*kept, *brought(self.experiment))))  # what the server takes is not of these rows
        reach = None if own is None else own.reach
        announced = Announced(**public.about | {"assumed": assumed}, declared=self.declared, reach=reach)
        return SitesAgreement(format=FORMAT, data=announced, clients=(client,))

    @property
    def declared(self) -> str:
        schema = self._population.source.schema
        return "" if schema is None else schema.digest

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks for the owner of these rows alone."""
        return self._population.remarks

    @cached_property
    def commitment(self) -> str:
        digest = self._population.dataset.fingerprint(hashlib.sha256(b"sordino data" + self.key).digest())
        return hmac.new(self.key, digest.encode(), hashlib.sha256).hexdigest()

    @cached_property
    def trained(self) -> Examples:
        return examples_of(self._population.dataset.train)

    @cached_property
    def tested(self) -> Examples:
        return examples_of(self._population.dataset.test)

    def check(self, agreed: SitesAgreement, client: int) -> None:
        """Refuse data that differ from those that were announced."""
        theirs = agreed.clients[client]
        announced = self.announced(theirs.name, theirs.site)
        pairs = [
            ("examples to train on", announced.clients[0].examples, theirs.examples),
            ("examples to be tested on", announced.clients[0].tested, theirs.tested),
            *((name, value, getattr(agreed.data, name)) for name, value in announced.data),
            ("data", announced.clients[0].commitment, theirs.commitment),
        ]
        for what, here, there in pairs:
            if here != there:
                raise DataError(
                    f"{self.path} is not what {theirs.name} announced: {what}",
                    why=f"here {here!r:.80}, in the agreement {there!r:.80}"
                    if what != "data"
                    else "its rows differ, or they were announced with another identity",
                    fix="use the file and the identity that were announced, or announce these data and agree anew",
                    code="other-data",
                )


def servers_rows(experiment: Experiment, path: Path) -> ServerRows:
    """Examples of the server, from a file of its own, with which it measures results and ranks models."""
    data = experiment.data.model_copy(update={"path": str(path)})
    alone = {"data": data, "partition": {"scheme": "iid", "clients": 1}}
    population = Population(experiment.model_copy(update=alone))
    population.check()
    return population.kept
