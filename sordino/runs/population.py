"""The rows of all clients in a simulation: declared, loaded, reduced by what the server keeps, divided among clients.

A federation of real sites has no such object: a site has its own rows, the server has its own, and both know the public
numbers alone. So plans (`runs.setup`) are made from `Population.public`, and see nothing else. Deterministic: a client
process derives exactly the rows that the server's process derives."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sordino.config import Experiment
from sordino.data.dataset import PLACES, Array, Dataset, Split, area, each_pixel_stats, pixel_stats
from sordino.data.schema import TableSchema
from sordino.errors import INSIDE, DataError, UnsoundGuarantee, check_range
from sordino.partition import SCHEMES, Natural
from sordino.partition.row_numbers import RowNumbers, checked
from sordino.planning import PublicNumbers
from sordino.planning.prices import check_everybody_has_data
from sordino.runs.backend import ServerRows, source_of
from sordino.runs.declared_data import DeclaredData, check_words
from sordino.runs.public_inputs import Disclosures
from sordino.sampling import alike

LISTED = 8  # names in a sentence


class Reserved(NamedTuple):
    """The clients' data set, and the parts taken out of it for the server; None for a part that was not requested."""

    dataset: Dataset
    probe: Split | None  # labelled examples the server ranks models with
    pool: Split | None  # public examples


@dataclass(frozen=True)
class Population:
    """The rows of all clients, and those of the server. Attributes stand in the order in which rows are processed."""

    experiment: Experiment
    data_key: bytes = field(default=b"", repr=False)  # key of the digest of the data
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
        data, sizes, disclosures = self.dataset, self.sizes, self.disclosures
        self._check_places()
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
            assumed=disclosures.assumed,
            void=disclosures.void,
            note="" if self.experiment.privacy.real else data.note,  # it may say how the rows were written
            names=data.names,
            clients=self.clients,
            rows_per_key=self.source.rows_per_key,
        )

    def _check_places(self) -> None:
        """Refuses, with real noise, sizes that are to be secret where places among the rows of all clients decide."""
        data, privacy, natural = self.experiment.data, self.experiment.privacy, isinstance(self.source.scheme, Natural)
        own_files = data.source == "tabular" and data.group is None
        moves = not natural or (PLACES in self.loaded.taken_as_public and not own_files)
        if privacy.real and not privacy.public_sizes and not self.source.known_to_all and moves:
            raise UnsoundGuarantee(
                "privacy.public_sizes = false, where the places of rows decide which of them train, or whose they are",
                why="one row more at one client moves the rows of others, and no noise on the sum is sized for that",
                fix="set privacy.public_sizes = true, or let each client's rows be its own affair: partition = "
                '{scheme = "natural"}, with a column in data.key that names each row, or with a file for each client',
                code="sizes-move-rows",
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


# reductions of a data set before the partition, drawn class by class from a seed --------------------------------------


def resized(dataset: Dataset, side: int) -> Dataset:
    """Every image averaged down to side x side pixels; mean and std are those of the new training images."""
    if dataset.kind != "image":
        raise DataError(
            f"{dataset.name} cannot be resized to {side}x{side}",
            why="its examples are rows of a table, not images",
            fix="leave data.side out, or use images",
            code="not-an-image-set",
        )
    if dataset.shape[:2] == (side, side):
        return dataset
    train = dataset.train._replace(x=area(dataset.train.x, side))
    merged = dataset.test is dataset.train
    test = train if merged else dataset.test._replace(x=area(dataset.test.x, side))
    stats = (pixel_stats if len(dataset.mean) == dataset.shape[-1] else each_pixel_stats)(train.x)
    return replace(dataset, train=train, test=test, mean=stats[0], std=stats[1])


def smaller(dataset: Dataset, train: int | None, test: int | None, seed: int) -> Dataset:
    """A random subset of a data set with the same proportions of classes: `train` and `test` examples; None leaves a
    split as it is. Means and deviations stay those of the whole.
    """
    if dataset.test is not dataset.train:
        return replace(dataset, train=_part(dataset, "train", train, seed), test=_part(dataset, "test", test, seed))
    if test is not None:
        raise DataError(
            f"data.test = {test} for {dataset.name}",
            why="with data.merge there is no separate test set: each client holds back some of its own examples",
            fix="leave data.test out",
            code="no-test-set-of-its-own",
        )
    both = _part(dataset, "train", train, seed)
    return replace(dataset, train=both, test=both)


def _part(dataset: Dataset, name: str, count: int | None, seed: int) -> Split:
    split: Split = getattr(dataset, name)
    if count is None:
        return split
    classes, held = np.unique(split.y, return_counts=True)
    if not len(classes) <= count <= len(split.y):
        raise DataError(
            f"data.{name} = {count} for {dataset.name}",
            why=f"it has {len(split.y):,} such examples, and each of its {len(classes)} classes must keep at least one",
            fix=f"set a number from {len(classes)} to {len(split.y):,}",
            code="bad-subset-size",
        )
    rng = np.random.default_rng([seed, name == "test"])
    rows = [
        rng.permutation(np.flatnonzero(split.y == label))[:share]
        for label, share in zip(classes, _shares(held, count), strict=True)
    ]
    return split.at(np.sort(np.concatenate(rows)))


def _shares(held: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Whole numbers, at least 1 each, that sum to `count` and are as near as possible to the proportions of `held`."""
    given: NDArray[np.int64] = np.maximum(held * count // held.sum(), 1)
    while left := count - int(given.sum()):
        lacks = held * count - given * held.sum()
        if left > 0:
            given[lacks.argmax()] += 1
        else:  # small classes were given more than their share: the one with the most beyond its own gives back
            given[np.where(given > 1, lacks, lacks.max() + 1).argmin()] -= 1
    return given


def reserve(dataset: Dataset, probe: int | float | None, pool: float | None, seed: int) -> Reserved:
    """Takes examples out of the training set for the server. `probe`: labelled examples on which it ranks models, a
    number of each class, or a fraction of each class, rounded up. `pool`: public images to choose from, this fraction
    of each class, at least one.
    """
    if probe is not None and not (0 < probe < 1 if isinstance(probe, float) else probe >= 1):
        raise DataError(
            f"data.probe = {probe}",
            why="it must be a whole number of examples of each class, at least 1, or a share of each class, above "
            "0 and below 1",
            fix="set data.probe = 50 or data.probe = 0.02, or leave it out if no algorithm needs it",
            code="bad-reserve",
        )
    if pool is not None:
        why = "it is a share of each class"
        check_range("pool", pool, INSIDE, "bad-reserve", error=DataError, why=why, fix="set for example 0.1")
    if dataset.classes == 0:
        raise DataError(
            f"examples of each class cannot be held back from {dataset.name}",
            why="this data has no classes",
            fix="use labelled data",
            code="no-classes",
        )
    if probe is None and pool is None:
        return Reserved(dataset, None, None)
    train, rng = dataset.train, np.random.default_rng(seed)
    taken: dict[str, list[Array]] = {"rest": [], "probe": [], "pool": []}
    for label in range(dataset.classes):
        rows = rng.permutation(np.flatnonzero(train.y == label))
        # 0.02 of 150 is 3: not so for floats
        first = math.ceil(Fraction(str(probe)) * len(rows)) if isinstance(probe, float) else probe or 0
        second = first + (max(1, round(pool * len(rows))) if pool else 0)
        if second >= len(rows):
            raise DataError(
                f"class {dataset.class_names[label]} of {dataset.name} has only {len(rows)} training examples",
                why=f"{first} of them would be the probe, {second - first} would be public, and the clients need at "
                "least one",
                fix="set a smaller data.probe or a smaller public share, or use more data",
                code="class-too-small",
            )
        for name, slice_ in (("probe", rows[:first]), ("pool", rows[first:second]), ("rest", rows[second:])):
            taken[name].append(slice_)
    found = {name: train.at(np.sort(np.concatenate(rows))) for name, rows in taken.items()}
    rest = found["rest"]
    left = replace(dataset, train=rest, test=rest if dataset.test is train else dataset.test)
    return Reserved(left, found["probe"] if probe else None, found["pool"] if pool else None)
