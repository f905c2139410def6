"""Everybody's rows, in a simulation: which client trains and is tested on which of them, and what the server keeps.

Between real sites nobody has this: a site has its own rows, the server has its own, and both know the public numbers
alone. So nothing here is seen by rules and plans (`runs.setup`), which are made of `Population.public`. Deterministic:
a client process finds exactly the rows that the server's process found.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from sordino import keys, user_code
from sordino.accounting.events import Json
from sordino.config import Experiment, build, data_sources, filled
from sordino.config.session import LENT_PATH
from sordino.data import SOURCES
from sordino.data.dataset import CLASSES, Dataset
from sordino.data.reserve import Reserved, reserve, resized, smaller
from sordino.data.row_source import RowSource, load, rows_of
from sordino.data.schema import TableSchema
from sordino.errors import ConfigError, UnsoundGuarantee
from sordino.partition.rows import Array, RowNumbers, checked, unfit
from sordino.partition.schemes import SCHEMES, Natural, Scheme
from sordino.planning.agreement import PublicNumbers
from sordino.planning.methods import problem_of
from sordino.planning.refusals import check_everybody_has_data
from sordino.runs import public_inputs
from sordino.runs.home import ServersRows, source_of
from sordino.runs.learning_task import check_scheme, check_words
from sordino.sampling.kinds import alike
from sordino.tasks.problems import Problem

LISTED = 8  # names in a sentence
TRUSTED = "{} is somebody's own program, which is trusted not to keep or send what it is shown"


@dataclass(frozen=True)
class Population:
    """The rows of all clients, and those of the server."""

    experiment: Experiment
    data_key: bytes = field(default=b"", repr=False)  # of the digest that stands for the data
    schema: TableSchema | None = None  # of a table, where it came without the file that the experiment names

    @classmethod
    def like(cls, known: Population, experiment: Experiment, data_key: bytes | None = None) -> Population:
        """The rows of a changed experiment, or under another key; what is the same in both is not read again."""
        other, same = cls(experiment, known.data_key if data_key is None else data_key), known.experiment
        read = (experiment.data, experiment.candidates, experiment.seed, experiment.privacy.noise, experiment.task)
        if read == (same.data, same.candidates, same.seed, same.privacy.noise, same.task):
            kept = {
                "own",
                "_loaded",
                "_reserved",
                "dataset",
                *(("shares",) if experiment.partition == same.partition else ()),
            }
            vars(other).update({name: value for name, value in vars(known).items() if name in kept})
        return other

    @property
    def key(self) -> int:
        return keys.root(self.experiment.seed)

    @cached_property
    def dataset(self) -> Dataset:
        """What clients hold together."""
        return self._reserved.dataset

    @cached_property
    def public(self) -> PublicNumbers:
        """Public numbers of these data."""
        data, sizes = self.dataset, self.sizes
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
            assumed=self._assumed,
            void=self._void,
            note="" if self.experiment.privacy.real else data.note,  # it may say how the rows were written
            names=data.names,
            clients=self.clients,
            rows_per_key=self._rows_per_key,
        )

    def check(self) -> None:
        """Refuses to begin with rows that are written in another way than was declared."""
        if self._loaded.misfit is not None:
            raise self._loaded.misfit

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of the clients. With real noise only those that somebody has declared: a group may be a person."""
        held = self.dataset.train.group
        if held is None or not self._tells_names or not isinstance(self.scheme, Natural):
            return ()
        return tuple(self.dataset.groups[k] for k in np.unique(held))

    @property
    def _tells_names(self) -> bool:
        return bool(self.dataset.groups) and (self.dataset.groups_declared or not self.experiment.privacy.real)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks for whoever holds the data, and for nobody else."""
        return (*self.left_out, *self._loaded.remarks)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Who takes no part, because nothing is left to train on, for those who hold the data: it tells how many rows
        they have.
        """
        held, tested = self.dataset.train.group, self.dataset.test.group
        if held is None or tested is None or not isinstance(self.scheme, Natural):
            return ()
        names = self.dataset.groups
        known = np.arange(len(names)) if self.dataset.groups_declared else np.unique(tested)
        if not len(gone := np.setdiff1d(known, held)):
            return ()
        who = [f"{names[k]} ({(tested == k).sum()} held back)" for k in gone[:LISTED]] if self._tells_names else []
        told = f": {', '.join(who)}{', ...' if len(gone) > LISTED else ''}" if who else ""
        some = "1 client takes" if len(gone) == 1 else f"{len(gone):,} clients take"
        return (f"{some} no part, as no row is left to train on{told}",)

    @property
    def _assumed(self) -> tuple[str, ...]:
        """What every number rests on, because of how the data were read."""
        made, void = self.experiment, self._void
        shown = made.algorithm, made.model, made.partition, made.loss, made.evaluation.metrics, made.data.source
        code = user_code.named(shown)
        trusted = tuple(TRUSTED.format(name) for name in dict.fromkeys(code) if name != LENT_PATH)
        taken = (said for said in (*self.learned_from_rows, *self.drawn_from_labels) if said not in void)
        data = made.data
        unsaid = data.key not in (None, data.group) and self._rows_per_key == 1
        several = (public_inputs.SEVERAL.format(data.key),) if unsaid else ()
        return (*several, *taken, *trusted)

    @property
    def _rows_per_key(self) -> int:
        """The most rows of one person, as the schema of a table declares it."""
        return 1 if self.declared is None else self.declared.rows_per_key(self.experiment.data.key)

    @property
    def _void(self) -> tuple[str, ...]:
        """Why nothing holds that is claimed of a row: with real noise, all that secret rows decide without any."""
        if not self.experiment.privacy.real:
            return ()
        chosen = () if self._shown else (said for said in self.drawn_from_labels if said in public_inputs.CHOSEN)
        return (*self.learned_from_rows, *chosen)

    @cached_property
    def fingerprint(self) -> str:
        """Which data these are and which client holds what, told to nobody who could not tell anyway.

        Runs on one ledger add up client by client: a client of the same number must be the same one in all of them.
        """
        digest = hmac.new(self.data_key, self.dataset.fingerprint(self.data_key).encode(), hashlib.sha256)
        trained, tested = self.shares
        # merged data are cut into training and test within a client: whichever of both, it is this client's
        for held in [(trained, tested)] if self.experiment.data.merge else [(trained,), (tested,)]:
            rows, owners = (np.concatenate([getattr(each, of) for each in held]) for of in ("numbers", "owners"))
            order = np.lexsort((owners, rows))
            digest.update(np.stack([rows[order], owners[order]]).astype("<i8").tobytes())
        return digest.hexdigest()

    @cached_property
    def _reserved(self) -> Reserved:
        """Resized, and without what the server keeps for itself."""
        data, found, seed = self.experiment.data, self._loaded, keys.word(keys.fold(self.key, "reserve"))
        if data.side is not None:
            found = resized(found, data.side)
        source = source_of(self.experiment)
        pool = source.pool if source is not None else 0.0
        sliced = data.probe is not None or pool
        kept = reserve(found, data.probe, pool or None, seed) if sliced else Reserved(found, None, None)
        if data.train is not None or data.test is not None:
            kept = kept._replace(dataset=smaller(kept.dataset, data.train, data.test, seed))
        if self.scaling == "fixed" and found.kind == "image":
            half = (0.5,) * found.shape[-1]
            kept = kept._replace(dataset=replace(kept.dataset, mean=half, std=half))
        return kept

    @property
    def kept(self) -> ServersRows:
        """What the server keeps for itself."""
        return ServersRows(self.dataset.test, self._reserved.probe, self._reserved.pool)

    @cached_property
    def _loaded(self) -> Dataset:
        own, asked = self.own, self.asked
        if own is None:
            return SOURCES[self.experiment.data.source](**asked)
        if self.experiment.privacy.real:
            public_inputs.check_own(self.experiment.data, own, self.problem.outcome is None)
        drawn, coins = (keys.word(keys.fold(self.key, part)) for part in (data_sources.DATA, data_sources.HELD_BACK))
        data, outcome = self.experiment.data, self.problem.outcome
        return load(own, data.source, self.scaling, data.test_fraction, drawn, coins, outcome)

    @cached_property
    def problem(self) -> Problem:
        """What is predicted."""
        return problem_of(self.experiment)

    @cached_property
    def own(self) -> RowSource | None:
        """A source of somebody's own, or rows in memory; None where the library has the source."""
        source = self.experiment.data.source
        if not user_code.is_own(source):
            return None
        if not user_code.is_lent(source) or isinstance(user_code.load(source, "data"), type):
            made = user_code.of_kind(source, "data", RowSource)  # type: ignore[type-abstract]
            return filled(made, self.experiment.data.options, "[data.options]")
        return rows_of(user_code.load(source, "data"))

    @property
    def _placed(self) -> bool:
        """Do rows lie in an order that may be a secret: in a table, or in somebody's own source?"""
        return self.experiment.data.source == "tabular" or self.own is not None

    @property
    def _shown(self) -> bool:
        """Can everybody look at these rows?"""
        return self.experiment.data.source in (public_inputs.SHIPPED, *public_inputs.INVENTED)

    @property
    def asked(self) -> dict[str, Any]:
        """What the loader of these data is asked for, by the names of its settings."""
        data = self.experiment.data
        source = data_sources.of(data.source)
        problem = self.problem
        for name in source.needs:
            if getattr(data, name) is None and not (name == "label" and problem.columns):
                raise ConfigError(
                    f"data.source = {data.source!r} needs data.{name}",
                    why="this source has no default for it",
                    fix=f"set data.{name}",
                    code="missing-key",
                )
        if self.experiment.privacy.real:
            natural = isinstance(self.scheme, Natural)
            public_inputs.check_dropped(data, self.experiment.privacy.public_sizes, natural)
        decided: Json = {"standardise": self.scaling, "schema": self.declared}
        values = {key: decided.get(key, getattr(data, key)) for key in (*source.needs, *source.loads)}
        given = {key: value for key, value in values.items() if value is not None}
        given |= {"label": problem.columns} if problem.columns else {}
        given |= {} if problem.outcome is None else {"outcome": problem.outcome}
        if isinstance(data.path, str) and user_code.is_lent(data.path):
            from sordino.data.table_files import in_memory

            given["path"] = in_memory(user_code.load(data.path, "data"))
        if source.draws is not None:
            given["seed"] = keys.word(keys.fold(self.key, source.draws))
        return given

    @cached_property
    def declared(self) -> TableSchema | None:
        """What was declared of a table's columns; None where they are learned from the rows, and of other data."""
        return self.schema or public_inputs.declared(self.experiment.data, self.experiment.privacy.real)

    @property
    def scaling(self) -> public_inputs.Scaling:
        """How inputs are scaled."""
        return public_inputs.scaling(self.experiment.data, self.declared, self.own)

    # what a receipt must say of the data -----------------------------------------------------------------------------

    @property
    def scaled_by_rows(self) -> bool:
        """Are inputs scaled by a mean and a deviation of examples, which no noise covers?"""
        return self.scaling in ("channel", "pixel")

    @property
    def learned_from_rows(self) -> tuple[str, ...]:
        """Sentences on the shape and scale that were read off rows before any noise: everything that loaders learn is
        here."""
        if self.experiment.data.source in public_inputs.INVENTED:
            return ()
        found = public_inputs.learned(self.experiment.data, self.declared)
        if self.own is not None and self.own.classes is None:
            found = (public_inputs.COUNTED,)
        counted = () if self.problem.outcome is None else (CLASSES, public_inputs.COUNTED)
        scaled = (public_inputs.SCALING,) if self.scaled_by_rows else ()
        return (*scaled, *self._loaded.learned, *(said for said in found if said not in counted))

    @property
    def drawn_from_labels(self) -> tuple[str, ...]:
        """What was decided from all examples together (their labels, or their places): two neighbours must agree on
        it."""
        data = self.experiment.data
        if data.source in public_inputs.INVENTED:
            return ()
        asked = [*self._loaded.taken_as_public]
        if self._placed and data.key is None:
            asked.append(public_inputs.PLACES)
        if self.scheme.reads_labels:
            asked.append(public_inputs.PARTITION)
        elif not (self._shown or isinstance(self.scheme, Natural)):
            asked.append(public_inputs.DEALT)
        if any(part is not None for part in (data.train, data.test, data.probe)) or self._reserved.pool is not None:
            asked.append(public_inputs.RESERVED)
        return tuple(asked)

    @cached_property
    def shares(self) -> tuple[RowNumbers, RowNumbers]:
        """Row numbers of each client, of the training and the test examples."""
        train, test = self.dataset.train, self.dataset.test
        rng = np.random.default_rng(keys.word(keys.fold(self.key, "partition")))
        if self.experiment.privacy.real and not self._shown and self.scheme.reads_labels:
            raise UnsoundGuarantee(
                f"partition.scheme = {self.experiment.partition['scheme']!r} with real noise, for rows that are a "
                "secret",
                why="one changed label would move other rows to other clients, and no noise hides that",
                fix='set partition = {scheme = "iid", clients = 8}, or of a table {scheme = "natural"} with data.group',
                code="partition-from-labels",
            )
        own = type(self.scheme) not in SCHEMES.values()
        if own and not self.scheme.reads_labels:  # what it says it does not read it does not get
            train, test = (part._replace(y=np.zeros(len(part.y), np.int64)) for part in (train, test))
        rows = self.scheme.assign(train.y, train.group, rng)
        if own:
            rows = checked(rows, len(train.y))
        if self.experiment.data.merge:
            fraction = self.experiment.data.test_fraction
            return rows.held_back(0.1 if fraction is None else fraction, rng)
        tested = self.scheme.match(train, rows, test, rng)
        return rows, checked(tested, len(test.y)) if own else tested

    @property
    def counted(self) -> Array:
        """The class of each training example; one that all are in where there are no classes to count."""
        y = np.asarray(self.dataset.train.y)
        return y if self.dataset.classes else np.zeros(len(y), np.int64)

    @cached_property
    def scheme(self) -> Scheme:
        found = build(self.experiment.partition, SCHEMES, "partition", "scheme", own=Scheme)
        if found.anonymous and not found.reads_labels:
            raise unfit("it renames the labels of its clients (anonymous) and says that it reads none")
        check_scheme(self.problem, self.experiment, found.reads_labels)
        return found

    @cached_property
    def named(self) -> Dataset:
        """The data with the labels as the clients call them: what is learned and tested."""
        data = self.dataset
        if not self.scheme.anonymous:
            return data
        rows, tests = self.shares
        if self.experiment.data.merge:  # both are of one set
            rows = tests = RowNumbers.of(np.concatenate(both) for both in zip(rows, tests, strict=True))
        rng = np.random.default_rng(keys.word(keys.fold(self.key, "names")))
        train, test, classes = self.scheme.relabel(data.train.y, rows, data.test.y, tests, rng)
        data = replace(data, names=())
        return replace(data, train=data.train._replace(y=train), test=data.test._replace(y=test), classes=classes)

    @cached_property
    def sizes(self) -> Sequence[int]:
        """How many training examples each client really has."""
        return self.shares[0].sizes
