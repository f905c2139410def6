"""The rows of all clients in a simulation: declared, loaded, reduced by what the server keeps, divided among clients.

A federation of real sites has no such object: a site has its own rows, the server has its own, and both know the public
numbers alone. So plans (`runs.setup`) are made from `Population.public`, and see nothing else. Deterministic: a client
process derives exactly the rows that the server's process derives."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from sordino.config import Experiment
from sordino.data.dataset import Dataset
from sordino.data.reserve import Reserved, reserve, resized, smaller
from sordino.data.schema import TableSchema
from sordino.errors import UnsoundGuarantee
from sordino.partition import SCHEMES, Natural
from sordino.partition.row_numbers import Array, RowNumbers, checked
from sordino.planning import PublicNumbers
from sordino.planning.prices import check_everybody_has_data
from sordino.runs.backend import ServerRows, source_of
from sordino.runs.declared_data import DeclaredData, check_words
from sordino.runs.public_inputs import Disclosures
from sordino.sampling import alike

LISTED = 8  # names in a sentence


@dataclass(frozen=True)
class Population:
    """The rows of all clients, and those of the server. Attributes stand in the order in which rows are processed."""

    experiment: Experiment
    data_key: bytes = field(default=b"", repr=False)  # of the digest that stands for the data
    schema: TableSchema | None = None  # of a table that came without the file that the experiment names

    @classmethod
    def like(cls, known: Population, experiment: Experiment, data_key: bytes | None = None) -> Population:
        """Population of a changed experiment, or with another key for the digest of its data. Rows are not read again
        where the settings that decide them are equal.
        """
        other, same = cls(experiment, known.data_key if data_key is None else data_key), known.experiment
        read = (experiment.data, experiment.candidates, experiment.seed, experiment.privacy.noise, experiment.task)
        if read == (same.data, same.candidates, same.seed, same.privacy.noise, same.task):
            kept = {"loaded", "reserved", *(("shares",) if experiment.partition == same.partition else ())}
            vars(other).update({name: value for name, value in vars(known).items() if name in kept})
            if "own" in vars(known.source):  # making it may have read the rows
                vars(other.source)["own"] = known.source.own
        return other

    @cached_property
    def source(self) -> DeclaredData:
        return DeclaredData(self.experiment, self.schema)

    # rows -------------------------------------------------------------------------------------------------------------

    @cached_property
    def loaded(self) -> Dataset:
        return self.source.load()

    def check(self) -> None:
        """Refuse a table where most values of a column, at one owner, are not what its schema allows."""
        if self.loaded.misfit is not None:
            raise self.loaded.misfit

    @cached_property
    def reserved(self) -> Reserved:
        """The data, divided into the clients' part and what the server reserves, after images are resized."""
        data, found, seed = self.experiment.data, self.loaded, self.source.seed("reserve")
        if data.side is not None:
            found = resized(found, data.side)
        candidates = source_of(self.experiment)
        pool = candidates.pool if candidates is not None else 0.0
        sliced = data.probe is not None or pool
        kept = reserve(found, data.probe, pool or None, seed) if sliced else Reserved(found, None, None)
        if data.train is not None or data.test is not None:
            kept = kept._replace(dataset=smaller(kept.dataset, data.train, data.test, seed))
        if self.source.scaling == "fixed" and found.kind == "image":
            half = (0.5,) * found.shape[-1]
            kept = kept._replace(dataset=replace(kept.dataset, mean=half, std=half))
        return kept

    @cached_property
    def dataset(self) -> Dataset:
        """The data set that is divided among clients."""
        return self.reserved.dataset

    @property
    def kept(self) -> ServerRows:
        """The server's own examples: for tests, for ranking models, and to choose candidates (public images) from."""
        return ServerRows(self.dataset.test, self.reserved.probe, self.reserved.pool)

    # clients ----------------------------------------------------------------------------------------------------------

    @cached_property
    def shares(self) -> tuple[RowNumbers, RowNumbers]:
        """Row numbers of each client, of the training and the test examples."""
        data, scheme, train, test = self.experiment.data, self.source.scheme, self.dataset.train, self.dataset.test
        rng = np.random.default_rng(self.source.seed("partition"))
        if self.experiment.privacy.real and not self.source.known_to_all and scheme.reads_labels:
            raise UnsoundGuarantee(
                f"partition.scheme = {self.experiment.partition['scheme']!r} with real noise, for secret rows",
                why="one changed label would move other rows to other clients, and no noise hides that",
                fix='set partition = {scheme = "iid", clients = 8}, or, with data.group, {scheme = "natural"}',
                code="partition-from-labels",
            )
        own = type(scheme) not in SCHEMES.values()
        if own and not scheme.reads_labels:  # what it says it does not read it does not get
            train, test = (part._replace(y=np.zeros(len(part.y), np.int64)) for part in (train, test))
        rows = scheme.assign(train.y, train.group, rng)
        if own:
            rows = checked(rows, len(train.y))
        if data.merge:
            return rows.held_back(0.1 if data.test_fraction is None else data.test_fraction, rng)
        tested = scheme.match(train, rows, test, rng)
        return rows, checked(tested, len(test.y)) if own else tested

    @property
    def sizes(self) -> Sequence[int]:
        """Number of training examples of each client."""
        return self.shares[0].sizes

    @property
    def counted(self) -> Array:
        """The class of each training example, for counting them by class; 0 for all where no class is predicted."""
        y = np.asarray(self.dataset.train.y)
        return y if self.dataset.classes else np.zeros(len(y), np.int64)

    @cached_property
    def named(self) -> Dataset:
        """The data set for training and tests; an anonymous partition gives the labels new numbers at each client."""
        data, scheme = self.dataset, self.source.scheme
        if not scheme.anonymous:
            return data
        rows, tests = self.shares
        if self.experiment.data.merge:  # both are of one set
            rows = tests = RowNumbers.of(np.concatenate(both) for both in zip(rows, tests, strict=True))
        rng = np.random.default_rng(self.source.seed("names"))
        train, test, classes = scheme.relabel(data.train.y, rows, data.test.y, tests, rng)
        data = replace(data, names=())
        return replace(data, train=data.train._replace(y=train), test=data.test._replace(y=test), classes=classes)

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients. With real noise only declared ones: an undeclared group may be a person."""
        held = self.dataset.train.group
        if held is None or not self._tells_names or not isinstance(self.source.scheme, Natural):
            return ()
        return tuple(self.dataset.groups[k] for k in np.unique(held))

    @property
    def _tells_names(self) -> bool:
        return bool(self.dataset.groups) and (self.dataset.groups_declared or not self.experiment.privacy.real)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Remark on clients without a row to train on, which take no part. For the owner of the data: it tells how many
        rows they have.
        """
        held, tested = self.dataset.train.group, self.dataset.test.group
        if held is None or tested is None or not isinstance(self.source.scheme, Natural):
            return ()
        names = self.dataset.groups
        known = np.arange(len(names)) if self.dataset.groups_declared else np.unique(tested)
        if not len(gone := np.setdiff1d(known, held)):
            return ()
        who = [f"{names[k]} ({(tested == k).sum()} held back)" for k in gone[:LISTED]] if self._tells_names else []
        listed = f": {', '.join(who)}{', ...' if len(gone) > LISTED else ''}" if who else ""
        some = "1 client takes" if len(gone) == 1 else f"{len(gone):,} clients take"
        return (f"{some} no part, as no row is left to train on{listed}",)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks that only the owner of the data may read, because they depend on the rows."""
        return (*self.left_out, *self.loaded.remarks)

    # what others learn ------------------------------------------------------------------------------------------------

    @property
    def disclosures(self) -> Disclosures:
        return Disclosures(self.source, self.loaded, self.reserved.pool is not None)

    @cached_property
    def public(self) -> PublicNumbers:
        """The public numbers of these data, such as the sizes of clients, on which plans are based."""
        data, sizes, said = self.dataset, self.sizes, self.disclosures
        check_words(self.experiment, data.columns)
        check_everybody_has_data(sizes, self.clients)
        return PublicNumbers(
            kind=data.kind,
            shape=data.shape,
            classes=data.classes,
            named=self.named.classes,
            sizes=sizes if self.experiment.privacy.public_sizes else alike(1, len(sizes)),
            mean=data.mean,
            std=data.std,
            assumed=said.assumed,
            void=said.void,
            note="" if self.experiment.privacy.real else data.note,  # it may say how the rows were written
            names=data.names,
            clients=self.clients,
            rows_per_key=self.source.rows_per_key,
        )

    @cached_property
    def fingerprint(self) -> str:
        """A keyed digest of the data and of their division among clients.

        Runs on one ledger add up client by client: a client of the same number must be the same one in all of them.
        """
        digest = hmac.new(self.data_key, self.dataset.fingerprint(self.data_key).encode(), hashlib.sha256)
        trained, tested = self.shares
        # merged data are divided into training and test within each client, so both belong to the same client
        for held in [(trained, tested)] if self.experiment.data.merge else [(trained,), (tested,)]:
            rows, owners = (np.concatenate([getattr(each, of) for each in held]) for of in ("numbers", "owners"))
            order = np.lexsort((owners, rows))
            digest.update(np.stack([rows[order], owners[order]]).astype("<i8").tobytes())
        return digest.hexdigest()
