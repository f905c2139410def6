"""Backend of one phase of a run: the server's plan, data and ledger, and how it reaches the clients. `Simulation` has
the rows of all clients beside it; `sites.serve` has connections to sites, and no client's rows.

The server's own data beside its state are examples that it keeps, and images from public sources. Client processes
never get them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, NamedTuple, Self

import numpy as np
import torch

from sordino import keys
from sordino.accounting.events import Json
from sordino.branches import part
from sordino.config import EvaluationSettings, Experiment, build, filled, parameters, resolved_table
from sordino.config.reading import check_keys
from sordino.data.dataset import DISCLOSED, Candidates, CandidateSource, ImageNeeds, Split, cache_folder
from sordino.data.schema import Column
from sordino.device import CPU, here, on
from sordino.engine.checkpoint import Loaded
from sordino.engine.executor import Executor
from sordino.engine.server import FederatedServer
from sordino.errors import COUNT, ConfigError, UnsoundGuarantee
from sordino.keys import Key
from sordino.metrics import Scores
from sordino.metrics.evaluation import Score, check_models, check_scores
from sordino.planning import Agreement
from sordino.runs.setup import PhaseSetup, RunSetup
from sordino.tree import Tree
from sordino.types import Examples, Params, Task


class StartingPoint(NamedTuple):
    """A checkpoint with the clients' states from which a phase starts or goes on, saved in this phase or at the end of
    the one before; and its folder.
    """

    place: Path
    loaded: Loaded


@dataclass(frozen=True)
class Backend(ABC):
    """Backend of a phase: the planned phase, the server's data, and how clients are reached."""

    setup: PhaseSetup
    home: ServerData

    @property
    @abstractmethod
    def dataset(self) -> str:
        """The digest that identifies the data."""

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, Column]:
        """Columns of a table's features, stored with the model for those who use it."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks about the data, such as values that the schema does not allow. They depend on rows, so only the
        holder of the data may see them: between sites each site gets its own.
        """
        return ()

    def at(self, stage: int) -> Self:
        """Backend of phase number `stage` of the same run."""
        return replace(self, setup=self.setup.whole.phases[stage])

    @abstractmethod
    def evaluation(self) -> Callable[[int, Tree, Score], Scores]:
        """The function that evaluates models after a round, on the test examples that this side holds."""

    def check_evaluation(self) -> EvaluationSettings:
        """The settings of [evaluation]; refused where this phase cannot be evaluated so."""
        setup, given = self.setup, self.setup.experiment.evaluation
        check_scores(given.scores, given.metrics, setup.task, setup.ways)
        if given.models:
            check_models(given.models, setup.algorithm.models(setup.state("server")))
        return given

    @abstractmethod
    def executor(
        self,
        folder: Path,
        place: Path,
        run: str,
        begun: StartingPoint | None,
        public_tensors: Params | None,
        stack: ExitStack,
    ) -> Executor:
        """Executor of this phase's clients, from the states in which they stopped (`begun`); `public_tensors`: what
        every client received before the first round. Closing `stack` ends it."""

    @cached_property
    def preparation(self) -> tuple[Self, ...]:
        """The phases before the training."""
        return tuple(self.at(i) for i in range(len(self.setup.preparation)))

    def agreement(self) -> Agreement:
        """The public agreement between server and sites."""
        return self.setup.whole.agreement(self.dataset)

    def federation(self, ledger: Path | str, run: str) -> FederatedServer:
        """The server of this phase, with its privacy ledger."""
        return self.setup.federation(self.home, self.dataset, ledger, run)


class CandidateSettings(NamedTuple):
    """Settings of [candidates] (public images for the server) that every source takes."""

    per_class: Annotated[int, COUNT] = 200
    network: bool = False  # connections to other machines are allowed


class ServerRows(NamedTuple):
    """The server's own examples: for tests, for ranking models, and to choose candidates (public images) from."""

    tested: Split | None = None  # examples that results are measured on
    probe: Split | None = None  # examples to rank models with
    pool: Split | None = None  # examples that candidates may be chosen from


@dataclass(frozen=True)
class ServerData:
    """The server's own data. Candidates (public images), which may take hours to draw, are drawn on first use."""

    whole: RunSetup = field(repr=False)
    kept: ServerRows = field(default=ServerRows(), repr=False)

    @property
    def task(self) -> Task:
        return self.whole.task

    @property
    def key(self) -> Key:
        return keys.root(self.whole.experiment.seed)

    @property
    def sizes(self) -> Sequence[int]:
        return self.whole.public.sizes

    @cached_property
    def probe(self) -> Examples | None:
        return None if self.kept.probe is None else examples_of(self.kept.probe)

    @cached_property
    def tested(self) -> Examples:
        """The examples that results are measured on, for a method; refused beside real noise, since no noise covers
        what a method makes of them, and its findings may be shown."""
        assert self.kept.tested is not None
        if self.whole.experiment.privacy.real:
            raise UnsoundGuarantee(
                "a method that reads the test examples, with real noise",
                why="its models and the tables of its preparation would tell of them, and test scores are the "
                "evaluator's alone",
                fix='rank by other examples of the server: with slaug_fl, algorithm.probe = "holdout" or "candidates"',
                code="method-reads-tests",
            )
        return examples_of(self.kept.tested)

    @cached_property
    def candidates(self) -> Examples | None:
        return None if self.drawn is None else examples_of(self.drawn)

    @property
    def story(self) -> Json | None:
        """The manifest of the candidates (public images that the server obtained); None where this process drew
        none."""
        drawn = self.__dict__.get("drawn")
        return None if drawn is None else drawn.manifest

    @property
    def disclosed(self) -> list[str]:
        """Warnings about other machines to which the names of the classes were sent."""
        hosts = self.story[DISCLOSED] if self.story else []
        return [f"the names of the classes were disclosed to {host}, which wrote prompts" for host in hosts]

    @cached_property
    def drawn(self) -> Candidates | None:
        """Candidates (public images that the server obtains) with their manifest; None where the experiment asks for
        none."""
        experiment, public = self.whole.experiment, self.whole.public
        if (asked := asked_for(experiment)) is None or (source := source_of(experiment)) is None:
            return None
        if public.kind != "image":
            raise ConfigError(
                f"[candidates] with data.source = {experiment.data.source!r}",
                why="candidates are images, but the clients' examples are not",
                fix="leave the [candidates] table out, or use image data",
                code="candidates-are-images",
            )
        height, width, channels = public.shape
        wanted = ImageNeeds(
            classes=public.class_names,
            per_class=asked.per_class,
            shape=(height, width, channels),
            key=keys.word(keys.fold(self.key, "candidates")),
            pool=self.kept.pool,
            cache=cache_folder(experiment.engine.cache, "candidates"),
            network=asked.network,
        )
        began = time.monotonic()
        with on(CPU):  # a source says itself where it draws
            made = source.build(wanted)
        return made._replace(manifest={**made.manifest, "seconds": round(time.monotonic() - began, 3)})


def source_of(experiment: Experiment) -> CandidateSource | None:
    """The source from which the server gets candidates (public images), as [candidates] names it; None where it gets
    none.
    """
    if asked_for(experiment) is None:
        return None
    assert experiment.candidates is not None
    table = resolved_table(experiment, experiment.candidates)
    own = {name: value for name, value in table.items() if name not in CandidateSettings._fields}
    made: CandidateSource = build(own, part("candidates", "sources"), "candidates", "source")
    return made


def asked_for(experiment: Experiment) -> CandidateSettings | None:
    """The settings of [candidates] (public images for the server) that every source takes; None without any."""
    table = experiment.candidates
    if table is None:
        return None
    if (made := part("candidates", "sources").get(str(table.get("source")))) is not None:
        check_keys(table, ["source", *CandidateSettings._fields, *parameters(made)], f"[candidates] {table['source']}")
    return filled(
        CandidateSettings, {name: table[name] for name in CandidateSettings._fields if name in table}, "[candidates]"
    )


def examples_of(held: Split | Candidates) -> Examples:
    """Rows as tensors on the device of this run."""
    return Examples(here(torch.from_numpy(np.asarray(held.x))), here(torch.from_numpy(np.asarray(held.y))))
