"""Declared data of an experiment: columns, labels, scaling and clients, as settings and schema say before any row is
read. `load` then reads the rows.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from sordino import config, keys, user_code
from sordino.config import Data, Experiment, build, filled
from sordino.data import SOURCES, is_one_file, schema
from sordino.data.dataset import Dataset
from sordino.data.label_kinds import NextTokens
from sordino.data.schema import Column, TableSchema, TextColumn
from sordino.data.sources import RowSource, load, rows_of
from sordino.errors import ConfigError, UnsoundGuarantee
from sordino.partition import SCHEMES, Scheme
from sordino.partition.row_numbers import unfit
from sordino.planning import methods
from sordino.tasks import Problem

LEARNED = "learned"  # data.schema: inferred from the rows
INVENTED = ("quadratic", "synthetic")  # data of no person
SHIPPED = "digits"  # rows that come with the package

Scaling = Literal["fixed", "channel", "pixel", "none"]


@dataclass(frozen=True)
class DeclaredData:
    """Declarations about an experiment's data: its settings and its schema."""

    experiment: Experiment
    given: TableSchema | None = None  # schema of a table that came without the file that the experiment names

    @property
    def data(self) -> Data:
        return self.experiment.data

    def seed(self, purpose: str) -> int:
        """A seed for one purpose, from the seed of the run."""
        return keys.word(keys.fold(keys.root(self.experiment.seed), purpose))

    @cached_property
    def problem(self) -> Problem:
        """The kind of prediction (classes, numbers, several labels or next tokens), with its labels and loss."""
        return methods.problem_of(self.experiment)

    @cached_property
    def scheme(self) -> Scheme:
        """The partition scheme; one that divides by label is refused where the task has no classes."""
        found = build(self.experiment.partition, SCHEMES, "partition", "scheme", own=Scheme)
        if found.anonymous and not found.reads_labels:
            raise unfit("it renames the labels of its clients (anonymous) and says that it reads none")
        if self.problem.outcome is not None and found.reads_labels:
            raise methods.unfit(
                self.experiment.task["name"],
                f"partition.scheme = {self.experiment.partition.get('scheme')!r}",
                "this scheme divides classes, and there are none",
                'set partition = {scheme = "iid", clients = 8}, or name the clients\' column in data.group',
            )
        return found

    @cached_property
    def own(self) -> RowSource | None:
        """A source of the user's own, or rows in memory; None where the source is the library's."""
        source = self.data.source
        if not user_code.is_own(source):
            return None
        if not user_code.is_lent(source) or isinstance(user_code.load(source, "data"), type):
            made = user_code.of_kind(source, "data", RowSource)  # type: ignore[type-abstract]
            return filled(made, self.data.options, "[data.options]")
        return rows_of(user_code.load(source, "data"))

    @property
    def known_to_all(self) -> bool:
        """True for rows that everyone can look at: those that the library ships or generates."""
        return self.data.source in (SHIPPED, *INVENTED)

    @cached_property
    def schema(self) -> TableSchema | None:
        """The schema of a table; None where columns are inferred from its rows, and for other data. With real noise,
        columns are inferred only where the experiment says so."""
        data, private = self.data, self.experiment.privacy.real
        if self.given is not None or data.source != "tabular" or data.schema == LEARNED:
            return self.given
        if data.schema is None:
            if private:
                raise UnsoundGuarantee(
                    "a table without a schema, with real noise",
                    why="columns, levels and classes would be learned from the rows: a value that only one row has "
                    "would change the model's shape, and no noise hides that",
                    fix=f"run `{_drafting(data)}`, confirm what it wrote, and set data.schema to that file; or set "
                    f'data.schema = "{LEARNED}", which guarantees nothing',
                    code="table-without-schema",
                )
            return None
        found = schema.read(data.schema)
        if found.draft and private:
            raise UnsoundGuarantee(
                f"the schema {data.schema} is still a draft, with real noise",
                why="a draft is made from the rows, so the model's shape and scale would reveal what single rows hold",
                fix="confirm every range, level and class from what you know of the columns, then delete "
                "`draft = true`",
                code="schema-is-a-draft",
            )
        return found

    @property
    def rows_per_key(self) -> int:
        """The most rows of one person, as the schema of a table declares it; 1 without a schema."""
        return 1 if self.schema is None else self.schema.rows_per_key(self.data.key)

    @cached_property
    def scaling(self) -> Scaling:
        """Scaling of inputs: by declared numbers, unless the experiment asks for statistics or no range is declared."""
        data, own, asked = self.data, self.own, self.data.standardise
        if data.source in INVENTED:
            return "none"
        table = data.source == "tabular"
        ranged = own.reach is not None if own is not None else not table or self.schema is not None
        if asked == "none" and own is None:
            raise _no_scaling(
                data,
                "only rows of a source of your own are taken as they are",
                'set data.standardise = "fixed" or "channel", or leave it out',
            )
        if asked is None and own is not None and isinstance(self.problem.outcome, NextTokens):
            return "none"
        if asked == "pixel" and table:
            raise _no_scaling(
                data, "a table has columns, not pixels", 'set data.standardise = "channel", or leave it out'
            )
        if asked == "fixed" and not ranged:
            raise _no_scaling(
                data,
                f"this scaling needs declared ranges, and {'this source' if own else 'a table without a schema'} "
                "declares none",
                'give its class `reach = (lowest, highest)`, or set data.standardise = "channel" or "none"'
                if own
                else f'give a data.schema (`{_drafting(data)}` writes a draft), or set data.standardise = "channel"',
            )
        return asked or ("fixed" if ranged else "channel")

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of the loader, by name."""
        data, problem = self.data, self.problem
        source = config.data_source(data.source)
        for name in source.needs:
            if getattr(data, name) is None and not (name == "label" and problem.columns is not None):
                raise ConfigError(
                    f"data.source = {data.source!r} needs data.{name}",
                    why="this source has no default for it",
                    fix=f"set data.{name}",
                    code="missing-key",
                )
        if self.experiment.privacy.real:
            check_dropped(data)
        decided: dict[str, Any] = {"standardise": self.scaling, "schema": self.schema}
        values = {key: decided.get(key, getattr(data, key)) for key in (*source.needs, *source.loads)}
        given = {key: value for key, value in values.items() if value is not None}
        given |= {} if problem.columns is None else {"label": problem.columns}
        given |= {} if problem.outcome is None else {"outcome": problem.outcome}
        if isinstance(data.path, str) and user_code.is_lent(data.path):
            from sordino.data.frames import in_memory

            given["path"] = in_memory(user_code.load(data.path, "data"))
        if source.draws is not None:
            given["seed"] = self.seed(source.draws)
        return given

    def load(self) -> Dataset:
        """The rows, read by the loader of the source."""
        data, outcome, own = self.data, self.problem.outcome, self.own
        if own is None:
            return SOURCES[data.source](**self.settings)
        if self.experiment.privacy.real and not isinstance(outcome, NextTokens):
            check_own(data, own, outcome is None)
        drawn, coins = self.seed(config.DATA_SEED), self.seed(config.HELD_BACK)
        return load(own, data.source, self.scaling, data.test_fraction, drawn, coins, outcome)


def _no_scaling(data: Data, why: str, fix: str) -> ConfigError:
    return ConfigError(
        f'data.standardise = "{data.standardise}" with data.source = {data.source!r}',
        why=why,
        fix=fix,
        code="no-such-scaling",
    )


def _drafting(data: Data) -> str:
    """The command that drafts a schema for these data."""
    roles = {role: getattr(data, role) for role in ("label", "group", "key")}
    named = [f"--{role} {shlex.quote(name)}" for role, name in roles.items() if name is not None]
    where = "data.csv" if isinstance(data.path, str) and user_code.is_lent(data.path) else data.path  # once written
    paths = where if isinstance(where, list) else [str(where)]
    out = f"{Path(paths[0]).stem}.schema.toml" if is_one_file(where) else "draft.schema.toml"
    return " ".join(["sordino data schema", *map(shlex.quote, paths), *named, "--out", shlex.quote(out)])


def check_own(data: Data, own: RowSource, classes: bool) -> None:
    """Refuses, with real noise, a user's own rows that declare nothing. `classes`: True where the label is a class;
    other labels are declared in [task].
    """
    unsaid = [] if own.classes is not None or not classes else ["classes"]
    if own.reach is None and data.standardise is None:
        unsaid.append("reach")
    if unsaid:
        raise UnsoundGuarantee(
            f"data.source = {data.source!r} declares no {' and no '.join(unsaid)}, with real noise",
            why="how many classes there are, or how values are scaled, would be learned from the rows, and no noise "
            "hides that",
            fix="declare them in the source: classes = 2, reach = (0.0, 1.0); values outside are clipped",
            code="own-data-undeclared",
        )


def check_dropped(data: Data) -> None:
    """Refuses, with real noise, to leave out rows with a missing value (data.missing = "drop"): that shows in a
    client's public size, moves other rows to other clients, or removes a client from the public list of names."""
    if data.source != "tabular" or data.missing != "drop":
        return
    raise UnsoundGuarantee(
        'data.missing = "drop", with real noise',
        why="whether a row lacks a value would decide how many rows its client has, or whether there is such a client; "
        "who the clients are, and how many rows each has, is public",
        fix='set data.missing = "fill", with missing = VALUE for columns of the schema, so that each row stays; or '
        "take such rows out before",
        code="rows-dropped",
    )


READERS = ("text", "transformer")  # the built-in models that read words


def check_words(experiment: Experiment, columns: Mapping[str, Column]) -> None:
    """Refuses a text model for a table without a text, another built-in model for a text, and a text model whose
    settings do not fit the schema.
    """
    model, texts = experiment.model, {name: one for name, one in columns.items() if isinstance(one, TextColumn)}
    name = str(model.get("name"))
    if not columns or user_code.is_own(name) or not (texts or name in READERS):
        return
    if not texts:
        raise ConfigError(
            f"model = {name!r} for a table without a text",
            why="it reads words, as the schema declares them",
            fix="choose logistic or mlp, or declare a column of text",
            code="words-are-no-quantities",
        )
    starts = dict(zip(columns, accumulate((one.width for one in columns.values()), initial=0), strict=False))
    language = experiment.task["name"] == "next_token"
    tokens = None if language else max(one.tokens for one in texts.values())
    places = None if len(texts) == len(columns) else [[starts[one], texts[one].length] for one in texts]
    fitting = "transformer" if language or (name == "transformer" and len(columns) == 1) else "text"
    fields = {"name": f'"{fitting}"', "tokens": tokens, "texts": places}
    wanted = f"model = {{{', '.join(f'{key} = {value}' for key, value in fields.items() if value is not None)}}}"
    if name != fitting:
        raise ConfigError(
            f"model = {name!r} for a column of text",
            why="each word is stored as its index in the vocabulary: text reads it beside other columns, transformer "
            "alone and in its order, and no other built-in model",
            fix=f"set {wanted}; or write a model of your own that takes them apart",
            code="words-are-no-quantities",
        )
    if (place_of_texts := model.get("texts")) != places:
        raise ConfigError(
            f"model.texts = {place_of_texts!r}",
            why="it says where the words of a text are among the inputs ([first, length] of each), and the schema "
            "declares them at other places",
            fix=f"set {wanted}",
            code="texts-do-not-fit",
        )
    if model.get("tokens") != tokens:
        raise ConfigError(
            f"model.tokens = {model.get('tokens')!r}",
            why="the task says how many tokens there are"
            if language
            else f"the schema declares texts whose words are numbers below {tokens}: with buckets or a tokenizer one "
            "more than these, with a list of words two more",
            fix=f"set {wanted}",
            code="tokens-do-not-fit",
        )
